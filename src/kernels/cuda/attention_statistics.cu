// Copies of the log-sum-exp of attention's rows between our layout and that of libraries.
// Overwrites its destination.
#include "attention.hpp"
#include "attention_kernels.cuh"
#include "attention_merge.hpp"

namespace trireme::kernels::cuda {

namespace {

constexpr int kStatisticsThreads = 256;

// lse: rows stride elements apart, sequences sequence_rows rows; packed: [sequences, heads, rows].
template <bool kPack>
__global__ void __launch_bounds__(kStatisticsThreads)
    StatisticsKernel(float* lse, std::int64_t stride, float* packed, std::int64_t elements,
                     int heads, int rows, std::int64_t sequence_rows) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kStatisticsThreads + threadIdx.x;
  if (i >= elements) return;
  const std::int64_t position = i % rows, head = i / rows % heads;
  const std::int64_t row = i / rows / heads * sequence_rows + position;
  if constexpr (kPack) {
    packed[i] = lse[row * stride + head];
  } else {
    lse[row * stride + head] = packed[i];
  }
}

template <bool kPack>
void Move(const device::Stream& stream, const AttentionWindow& window, const Matrix& lse,
          float* packed) {
  const std::int64_t elements = window.sequences * window.rows * window.heads;
  if (elements == 0) return;
  device::cuda::Launch(device::cuda::Queue(stream), &StatisticsKernel<kPack>,
                       dim3(static_cast<unsigned>(CeilDivide(elements, kStatisticsThreads))),
                       dim3(kStatisticsThreads), 0, lse.As<float>(), lse.stride, packed, elements,
                       static_cast<int>(window.heads), static_cast<int>(window.rows),
                       window.sequence_rows);
}

AttentionWindow Whole(const AttentionShape& s) {
  return {s.sequences, s.length, s.length, s.heads, s.head_dim};
}

}  // namespace

void PackStatistics(const device::Stream& stream, const AttentionWindow& window,
                    const Matrix& lse, float* statistics) {
  Move<true>(stream, window, lse, statistics);
}

void PackStatistics(const device::Stream& stream, const AttentionShape& shape,
                    const Matrix& lse, float* packed) {
  PackStatistics(stream, Whole(shape), lse, packed);
}
void UnpackStatistics(const device::Stream& stream, const AttentionShape& shape,
                      const float* packed, const Matrix& lse) {
  // The kernel writes to one of the two, by its direction.
  Move<false>(stream, Whole(shape), lse, const_cast<float*>(packed));
}

}  // namespace trireme::kernels::cuda
