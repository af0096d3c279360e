// Slices of the heads that a tensor rank holds.
#ifndef TRIREME_MODEL_HEAD_SLICES_HPP_
#define TRIREME_MODEL_HEAD_SLICES_HPP_

#include "trireme/base/partition.hpp"
#include "trireme/parallel/tensor_group.hpp"

namespace trireme::model {

// Key/value heads of this rank: its slice, or the one head that its query heads read, if other
// ranks hold that head too.
struct KeyValueSlice {
  Part heads;
  int copies = 1;
};
inline KeyValueSlice SliceOfKeyValue(std::int64_t kv_heads, const parallel::TensorGroup& tensor) {
  if (kv_heads >= tensor.Size()) return {tensor.Slice(kv_heads), 1};
  const int copies = tensor.Size() / static_cast<int>(kv_heads);
  const std::int64_t head = tensor.Rank() / copies;
  return {{head, head + 1}, copies};
}

inline Part Times(const Part& part, std::int64_t factor) {
  return {part.begin * factor, part.end * factor};
}

}  // namespace trireme::model

#endif  // TRIREME_MODEL_HEAD_SLICES_HPP_
