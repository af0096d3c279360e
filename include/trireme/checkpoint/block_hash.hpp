// The hash of a block of training state, wherever it lies.
#ifndef TRIREME_CHECKPOINT_BLOCK_HASH_HPP_
#define TRIREME_CHECKPOINT_BLOCK_HASH_HPP_

#include <cstdint>

#include "trireme/checkpoint/writer.hpp"
#include "trireme/kernels/state_block.hpp"

namespace trireme::checkpoint {

// XXH3 (64 bits) of elements [first, last) of a block, counted in the flattened tensor, as bytes of
// the block's dtype. read: as of State; with one, memory for a piece of 4 MiB.
std::uint64_t BlockHash(const kernels::StateBlock& block, std::int64_t first, std::int64_t last,
                        const ReadBlock& read = {});

}  // namespace trireme::checkpoint

#endif  // TRIREME_CHECKPOINT_BLOCK_HASH_HPP_
