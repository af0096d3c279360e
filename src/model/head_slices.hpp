// Slices of the heads that a tensor rank holds, and sums over them.
#ifndef TRIREME_SRC_MODEL_HEAD_SLICES_HPP_
#define TRIREME_SRC_MODEL_HEAD_SLICES_HPP_

#include <cstdint>
#include <utility>

#include "initialisers.hpp"
#include "slice_sums.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/kernels/matrix_multiply.hpp"
#include "trireme/parallel/tensor_group.hpp"

namespace trireme::model {

inline Part Times(const Part& part, std::int64_t factor) {
  return {part.begin * factor, part.end * factor};
}

// Heads of this rank, and the rows of weights that belong to them.
struct HeadSlices {
  HeadSlices(const Options& o, const parallel::TensorGroup& tensor)
      : heads(tensor.Slice(o.heads)), query_rows(Times(heads, o.head_dim)) {
    if (o.kv_heads >= tensor.Size()) {
      kv_heads = tensor.Slice(o.kv_heads);
    } else {
      copies = tensor.Size() / static_cast<int>(o.kv_heads);
      const std::int64_t head = tensor.Rank() / copies;
      kv_heads = {head, head + 1};
    }
    key_rows = Times(kv_heads, o.head_dim);
  }
  // Registers the rank's rows of a key's or a value's weight or bias.
  kernels::ParameterId AddKeyValue(const ParameterPlace& place, kernels::Parameter parameter) const {
    const auto sum = copies > 1 ? kernels::GradientSum::kKeyValue : kernels::GradientSum::kNone;
    return AddSlice(place, std::move(parameter), key_rows, copies, sum);
  }

  Part heads;
  Part kv_heads;   // its slice, or the one head that its query heads read
  int copies = 1;  // ranks that hold this head, too
  Part query_rows, key_rows;
};

// y = in weight, of the features of heads, canonical slices apart. in: [rows, heads head_dim] of
// this rank, weight: [heads head_dim, dim], both with `parts` (keys, then values) one after the
// other. all: heads of all ranks.
inline void SumOverHeads(const Pass& pass, const Matrix& in, const Matrix& weight, std::int64_t all,
                         std::int64_t head_dim, int parts, const Matrix& y) {
  const Part own = pass.tensor->Slice(all);
  SumSlices(pass, y, [&](int slice, const Matrix& sum) {
    const Part heads = pass.tensor->SliceOf(all, slice);
    for (int part = 0; part < parts; ++part) {
      const std::int64_t begin = heads.begin - own.begin + part * own.Size();
      const Part features = Times({begin, begin + heads.Size()}, head_dim);
      kernels::MatrixMultiply(pass.stream, kernels::Form::kPlain,
                              in.Columns(features.begin, features.Size()), kernels::Form::kPlain,
                              weight.Rows(features.begin, features.Size()), sum, part > 0);
    }
  });
}

}  // namespace trireme::model

#endif  // TRIREME_SRC_MODEL_HEAD_SLICES_HPP_
