// BlockHash: one pass over a block, in pieces if it must be read.
#include "trireme/checkpoint/block_hash.hpp"

#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "checksums.hpp"
#include "trireme/base/error.hpp"

namespace trireme::checkpoint {

std::uint64_t BlockHash(const kernels::StateBlock& block, std::int64_t first, std::int64_t last,
                        const ReadBlock& read) {
  const auto size = static_cast<std::int64_t>(SizeOf(block.dtype));
  if (!read) {
    return Hash(static_cast<const char*>(block.data) + (first - block.begin) * size,
                (last - first) * size);
  }
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              &XXH3_freeState);
  if (state == nullptr) throw RunError("out of memory: the state of a hash");
  XXH3_64bits_reset(state.get());
  const std::int64_t most = kSegmentBytes / size;
  std::vector<char> piece(static_cast<std::size_t>(std::min(last - first, most) * size));
  for (std::int64_t at = first; at < last; at += most) {
    const std::int64_t end = std::min(last, at + most);
    read(block, at, end, piece.data());
    XXH3_64bits_update(state.get(), piece.data(), static_cast<std::size_t>((end - at) * size));
  }
  return XXH3_64bits_digest(state.get());
}

}  // namespace trireme::checkpoint
