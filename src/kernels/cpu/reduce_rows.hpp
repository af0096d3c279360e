// Sums over rows in kReductionBlocks fixed blocks of rows: the same bits for any number of threads.
#ifndef TRIREME_SRC_KERNELS_CPU_REDUCE_ROWS_HPP_
#define TRIREME_SRC_KERNELS_CPU_REDUCE_ROWS_HPP_

#include <algorithm>
#include <cstdint>

#include "trireme/kernels/norm.hpp"

namespace trireme::kernels {

// Runs add(begin, end, partial) for the rows [begin, end) of every block, partial being the block's
// zeroed row of scratch; returns the number of blocks. The caller adds the partials up in order.
// `width` may be 0, for rows that leave no sum.
template <typename T, typename Add>
int ReduceRows(const device::Stream& stream, std::int64_t row_count, std::int64_t width,
               const Matrix& scratch, Add add) {
  const int blocks = static_cast<int>(std::clamp<std::int64_t>(row_count, 1, kReductionBlocks));
#pragma omp parallel for num_threads(stream.threads) schedule(static)
  for (int block = 0; block < blocks; ++block) {
    T* partial = scratch.As<T>() + block * width;
    std::fill(partial, partial + width, T(0));
    add(row_count * block / blocks, row_count * (block + 1) / blocks, partial);
  }
  return blocks;
}

}  // namespace trireme::kernels

#endif  // TRIREME_SRC_KERNELS_CPU_REDUCE_ROWS_HPP_
