// A warp merges one row of one head. A block's output o with log-sum-exp s joins those of the
// blocks before, O and S: S' = log(e^S + e^s), O' = O e^(S - S') + o e^(s - S') (Liu et al. 2023,
// "Ring attention").
#include "attention_merge.hpp"

#include "trireme/base/partition.hpp"
#include "vector.cuh"

namespace trireme::kernels::cuda {

namespace {


constexpr int kMergeThreads = 256, kWarp = 32;
constexpr int kWidth = kVectorWidth<Bf16>;  // elements of a lane
static_assert(kWarp * kWidth >= 256, "a warp holds a row of the widest head");

struct MergeOperands {
  const Bf16* part;
  const float* statistics;  // null: a plain sum
  Bf16* stored;
  float *exact, *lse;
  std::int64_t stored_stride, exact_stride, lse_stride;
  std::int64_t tasks, sequence_rows, rows;
  int heads, head_dim;
};

// Factors of what is there and of what is added, from the log-sum-exps of both; lane 0 keeps that
// of the merged.
__device__ __forceinline__ float2 Factors(float* lse, float added, int lane) {
  const float before = *lse;
  const float most = fmaxf(before, added);
  const float sum = most + logf(expf(before - most) + expf(added - most));
  __syncwarp();
  if (lane == 0) *lse = sum;
  return make_float2(expf(before - sum), expf(added - sum));
}

__global__ void __launch_bounds__(kMergeThreads) MergeKernel(MergeOperands o) {
  const std::int64_t task = (std::int64_t{blockIdx.x} * kMergeThreads + threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (task >= o.tasks) return;
  const int head = static_cast<int>(task % o.heads);
  const std::int64_t packed = task / o.heads, sequence = packed / o.rows, row = packed % o.rows;
  const std::int64_t at = sequence * o.sequence_rows + row;
  float2 factors = make_float2(1, 1);
  if (o.statistics != nullptr) {
    factors = Factors(o.lse + at * o.lse_stride + head,
                      o.statistics[(sequence * o.heads + head) * o.rows + row], lane);
  }
  const int column = lane * kWidth;
  if (column >= o.head_dim) return;
  const std::int64_t of_head = std::int64_t{head} * o.head_dim + column;
  Bf16* const stored = o.stored + at * o.stored_stride + of_head;
  float* const exact = o.exact + at * o.exact_stride + of_head;
  float before[kWidth], added[kWidth], sum[kWidth];
  WidenPack(LoadPack<kWidth>(stored), before);
  WidenPack(LoadPack<kWidth>(o.part + packed * o.heads * o.head_dim + of_head), added);
  const Pack<float, kWidth> kept = LoadPack<kWidth>(exact);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    // A sum begins at zero, before `exact` has been written.
    const bool same = Widen(Narrow<Bf16>(kept.values[i])) == before[i];
    if (same && before[i] != 0) before[i] = kept.values[i];
    sum[i] = before[i] * factors.x + added[i] * factors.y;
  }
  StorePack(NarrowPack<float, kWidth>(sum), exact);
  StorePack(NarrowPack<Bf16, kWidth>(sum), stored);
}

void Merge(const device::Stream& stream, const AttentionWindow& window, const Matrix& part,
           const float* statistics, const RoundedSum& sum, const Matrix& lse) {
  MergeOperands o = {};
  o.tasks = window.sequences * window.rows * window.heads;
  if (o.tasks == 0) return;
  o.part = part.As<Bf16>(), o.statistics = statistics;
  o.stored = sum.stored.As<Bf16>(), o.stored_stride = sum.stored.stride;
  o.exact = sum.exact.As<float>(), o.exact_stride = sum.exact.stride;
  if (statistics != nullptr) o.lse = lse.As<float>(), o.lse_stride = lse.stride;
  o.sequence_rows = window.sequence_rows, o.rows = window.rows;
  o.heads = static_cast<int>(window.heads), o.head_dim = static_cast<int>(window.head_dim);
  const std::int64_t blocks = CeilDivide(o.tasks * kWarp, std::int64_t{kMergeThreads});
  device::cuda::Launch(device::cuda::Queue(stream), &MergeKernel,
                       dim3(static_cast<unsigned>(blocks)), dim3(kMergeThreads), 0, o);
}

}  // namespace

void MergeAttention(const device::Stream& stream, const AttentionWindow& window, const Matrix& part,
                    const float* statistics, const RoundedSum& out, const Matrix& lse) {
  Merge(stream, window, part, statistics, out, lse);
}

void AddQueryGradient(const device::Stream& stream, const AttentionWindow& window,
                      const Matrix& part, const RoundedSum& dquery) {
  Merge(stream, window, part, nullptr, dquery, {});
}

}  // namespace trireme::kernels::cuda
