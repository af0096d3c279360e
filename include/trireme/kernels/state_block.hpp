// StateBlock: a named piece of training state, as checkpoints walk it.
#ifndef TRIREME_KERNELS_STATE_BLOCK_HPP_
#define TRIREME_KERNELS_STATE_BLOCK_HPP_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/dtype.hpp"

namespace trireme::kernels {

using Shape = std::vector<std::int64_t>;  // global, row-major

inline std::int64_t ElementCount(std::span<const std::int64_t> shape) {
  std::int64_t count = 1;
  for (std::int64_t extent : shape) count *= extent;
  return count;
}

// The elements [begin, end) of the flattened global tensor, held contiguously at `data` on this
// rank. Each element is held by `replicas` ranks, each with another number `replica` (a writer may
// split the work among them by number and place in the tensor; the ranges of ranks that are sharded
// differently may begin and end elsewhere). A list of blocks names every tensor of the model once
// and in the same order on every rank: a rank that holds nothing of a tensor (another pipeline
// stage's, another shard's) lists it with begin == end. So the order in a file is a property of the
// model, never of the layout.
struct StateBlock {
  std::string name;  // global name, e.g. "blocks.3.attention.query.weight"
  Shape shape;       // global shape
  Dtype dtype = Dtype::kFloat32;
  std::int64_t begin = 0, end = 0;
  void* data = nullptr;  // (end - begin) elements; may be null when begin == end
  int replica = 0, replicas = 1;
};

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_STATE_BLOCK_HPP_
