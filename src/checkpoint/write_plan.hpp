// The plan of who holds which bytes of one tensor file, made and checked by all ranks before a byte
// is written. A rank knows the part of its writer's group alone: nothing grows with the number of
// groups.
#ifndef TRIREME_SRC_CHECKPOINT_WRITE_PLAN_HPP_
#define TRIREME_SRC_CHECKPOINT_WRITE_PLAN_HPP_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "safetensors.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/kernels/registry.hpp"

namespace trireme::checkpoint {

// A segment of the file that this rank gives to its writer.
struct OwnSegment {
  static constexpr std::size_t kHeader = static_cast<std::size_t>(-1);
  std::size_t segment = 0;      // in WritePlan::segments
  std::size_t block = kHeader;  // of the list that the plan was made from; or the file's header
  std::int64_t first = 0, last = 0;  // elements of the flattened tensor
};

struct WritePlan {
  std::string file;               // "model.safetensors"
  Layout layout;                  // of the whole file, the same on every rank
  std::vector<Segment> segments;  // of the group, by their offsets; hashes set by Hasher
  std::vector<int> holders;       // rank of the group that has each segment
  std::vector<OwnSegment> own;    // segments of this rank, in the order of their offsets
};

// The segment of that number in plan.segments, which is among the rank's own.
const OwnSegment& OwnOf(const WritePlan& plan, std::size_t segment);

// Collective. The range of a block is cut into segments that its replicas write in turn. group: the
// ranks, among them this one, that share a writer.
// AgreedError (exit code 1) if ranks list different tensors, or if an element would be written
// by no rank or by several: the state would not be whole.
WritePlan MakeWritePlan(const comm::Communicator& world, const comm::Communicator& group,
                        const std::string& file, const std::vector<kernels::StateBlock>& blocks);

}  // namespace trireme::checkpoint

#endif  // TRIREME_SRC_CHECKPOINT_WRITE_PLAN_HPP_
