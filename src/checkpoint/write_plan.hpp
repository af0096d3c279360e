// The plan of who writes which bytes of one tensor file, made and checked by all ranks before a
// byte is written.
#ifndef TRIREME_SRC_CHECKPOINT_WRITE_PLAN_HPP_
#define TRIREME_SRC_CHECKPOINT_WRITE_PLAN_HPP_

#include <cstdint>
#include <string>
#include <vector>

#include "checksums.hpp"
#include "parallel_file.hpp"
#include "safetensors.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/tensor/state_block.hpp"

namespace trireme::checkpoint {

struct WritePlan {
  std::string file;           // "model.safetensors"
  Layout layout;              // the same on every rank
  std::vector<Piece> pieces;  // this rank's; they point into the blocks and into layout.header
  FileSums sums;              // of the whole file, from memory; the same on every rank
};

// Collective. The range of a block is cut into segments that its replicas write in turn.
// AgreedError (exit code 1) if ranks list different tensors, or if an element would be written
// by no rank or by several: the state would not be whole.
WritePlan MakeWritePlan(const comm::Communicator& world, const std::string& file,
                        const std::vector<tensor::StateBlock>& blocks);

}  // namespace trireme::checkpoint

#endif  // TRIREME_SRC_CHECKPOINT_WRITE_PLAN_HPP_
