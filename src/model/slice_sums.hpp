// Sums over slices of the contracted dimension: heads, hidden features, vocabulary. One product in
// the fast mode; canonical slices apart, joined in the fixed tree (doc/numerics.md).
#ifndef TRIREME_SRC_MODEL_SLICE_SUMS_HPP_
#define TRIREME_SRC_MODEL_SLICE_SUMS_HPP_

#include "trireme/kernels/elementwise.hpp"
#include "trireme/model/pass.hpp"

namespace trireme::model {

// Levels of scratch that SumSlices needs: log2 of the slices.
inline int SliceLevels(int slices) {
  int levels = 0;
  while ((1 << levels) < slices) ++levels;
  return levels;
}

// y = sum of this rank's slices [begin, begin + count); product(slice, out) overwrites `out` with
// one of them. y: [rows, dim], no more rows than the workspace's.
template <typename Product>
void SumSlices(const Pass& pass, const kernels::Matrix& y, const Product& product, int begin,
               int count, int level) {
  if (count == 1) return product(begin, y);
  const std::int64_t most = pass.workspace.slices.rows / SliceLevels(pass.tensor->Slices());
  const kernels::Matrix right = pass.workspace.slices.Rows(level * most, y.rows);
  SumSlices(pass, y, product, begin, count / 2, level + 1);
  SumSlices(pass, right, product, begin + count / 2, count / 2, level + 1);
  kernels::Add(pass.stream, right, y);
}
template <typename Product>
void SumSlices(const Pass& pass, const kernels::Matrix& y, const Product& product) {
  SumSlices(pass, y, product, 0, pass.tensor->Slices(), 0);
}

}  // namespace trireme::model

#endif  // TRIREME_SRC_MODEL_SLICE_SUMS_HPP_
