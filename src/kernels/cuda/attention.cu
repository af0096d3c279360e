// Attention by our own kernels, to whole sequences and to parts of them: converts matrices to the
// kernels' operands. Scratch holds `delta` (dout . out) and, for parts in bf16, a sum before
// rounding, so that merging many blocks loses no precision.
#include "attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "attention_kernels.cuh"
#include "reduce.cuh"
#include "trireme/base/error.hpp"
#include "trireme/device/cuda/launch.cuh"
#include "trireme/device/gpu.hpp"
#include "vector.cuh"

namespace trireme::kernels::cuda {

static_assert(kAttentionMostDims == gpu::kMostHeadDim);

namespace {

AttentionRows RowsOf(const Positions& positions, std::int64_t count) {
  const std::int64_t early = std::min(positions.early.Size(), count);
  return {static_cast<int>(positions.early.begin), static_cast<int>(early),
          static_cast<int>(positions.late.begin), static_cast<int>(count - early)};
}

template <typename T>
bool AllowAttentionVectors(const AttentionPass& c) {
  for (const Matrix* m : {&c.qkv, &c.block.data, &c.out, &c.dout, &c.dqkv, &c.dblock}) {
    if (!RowsOnVectorBoundaries(*m)) return false;
  }
  return c.shape.head_dim % std::max(kVectorWidth<T>, kAttentionWidth) == 0;
}

template <typename T>
void TellDropout(const AttentionPass& c, AttentionOperands<T>& a) {
  const PhiloxKey key = MakeKey(c.dropout.seed, c.dropout.purpose, c.dropout.layer);
  a.seed = key[0];
  a.purpose = key[1];
  a.threshold = c.dropout.Threshold();
  a.first_head = static_cast<int>(c.shape.first_head);
  a.kept_scale = static_cast<SumOf<T>>(c.dropout.Scale());
  a.ordinals = c.dropout.ordinals;
}

template <typename T>
AttentionOperands<T> OperandsOf(const AttentionPass& c, const std::int32_t* served) {
  const AttentionShape& s = c.shape;
  AttentionOperands<T> a{};
  // The values' columns of a matrix that holds keys, then values.
  const auto values = [&](const Matrix& m) {
    return View<T>{static_cast<T*>(m.Offset(s.kv_heads * s.head_dim)), m.stride};
  };
  a.query = ViewOf<const T>(c.qkv), a.key = ViewOf<const T>(c.block.data);
  a.value = {values(c.block.data).data, c.block.data.stride};
  a.out = ViewOf<T>(c.out), a.lse = ViewOf<SumOf<T>>(c.lse), a.dout = ViewOf<const T>(c.dout);
  a.dquery = ViewOf<T>(c.dqkv), a.dkey = ViewOf<T>(c.dblock), a.dvalue = values(c.dblock);
  a.delta = static_cast<SumOf<T>*>(c.scratch.data);
  if (!c.whole && !std::is_same_v<T, SumOf<T>>) a.exact = a.delta + gpu::AttentionDelta(s);
  a.queries = RowsOf(c.Queries(), s.length);
  a.keys = RowsOf(c.block.positions, c.block.positions.Count());
  a.heads = static_cast<int>(s.heads), a.kv_heads = static_cast<int>(s.kv_heads);
  a.head_dim = static_cast<int>(s.head_dim);
  a.first_task = static_cast<int>(c.tasks.begin), a.tasks = static_cast<int>(c.tasks.Size());
  a.scale = static_cast<SumOf<T>>(1 / s.Divisor());
  a.begins = s.begins, a.key_lengths = s.key_lengths, a.served = served;
  a.causal = s.causal, a.whole = c.whole, a.vector = AllowAttentionVectors<T>(c);
  TellDropout(c, a);
  return a;
}

// Whether tensor cores compute this call. Short sequences use the other kernels, whose backward
// pass is a single launch.
bool OnMatrices(const AttentionOperands<Bf16>& a) { return a.vector && !AttentionIsOneTile(a); }

}  // namespace

void CheckAttentionRoom(const device::GpuContext& gpu, int head_dim, int bytes) {
  if (bytes <= gpu.shared_bytes) return;
  throw RunError("attention on a GPU: heads of " + std::to_string(head_dim) + " take " +
                     std::to_string(bytes) + " bytes of shared memory, and " + gpu.name +
                     " gives a block " + std::to_string(gpu.shared_bytes),
                 "Choose more heads (model.heads) or a smaller model.head_dim, or another card.");
}

void OwnAttentionOfRest(const AttentionPass& pass, const std::int32_t* served) {
  gpu::CheckHeadDim(pass.shape);
  if (pass.tasks.Size() == 0) return;
  Dispatch(pass.qkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    const AttentionOperands<T> a = OperandsOf<T>(pass, served);
    if constexpr (std::is_same_v<T, Bf16>) {
      if (OnMatrices(a)) {
        if (!pass.backward) return LaunchMatrixForward(pass.stream, a);
        LaunchAttentionDelta(pass.stream, a);
        LaunchMatrixQueryGradient(pass.stream, a);
        return LaunchMatrixKeyGradient(pass.stream, a);
      }
    }
    (pass.backward ? LaunchAttentionBackward<T> : LaunchAttentionForward<T>)(pass.stream, a);
  });
}

void OwnAttention(const AttentionPass& pass) { OwnAttentionOfRest(pass, nullptr); }

void AttentionPartStart(const device::Stream& stream, const Matrix& out, const Matrix& lse) {
  Fill(stream, out, 0);
  Fill(stream, lse, -std::numeric_limits<double>::infinity());
}

Matrix ExactSum(const AttentionShape& shape, const Matrix& scratch) {
  const std::int64_t width = shape.heads * shape.head_dim;
  return {scratch.Offset(gpu::AttentionDelta(shape)), scratch.dtype, shape.sequences * shape.length,
          width, width};
}

void AttentionPartStartBackward(const device::Stream& stream, const AttentionShape& shape,
                                const Matrix& dqkv, const Matrix& scratch) {
  Fill(stream, dqkv.Columns(0, shape.heads * shape.head_dim), 0);
  if (dqkv.dtype == Dtype::kBfloat16) Fill(stream, ExactSum(shape, scratch), 0);
}

// A warp merges one row of one head. A block's output o with log-sum-exp s is merged into those of
// the earlier blocks, O and S: S' = log(e^S + e^s), O' = O e^(S - S') + o e^(s - S') (Liu et al.
// 2023, "Ring attention").

namespace {

constexpr int kMergeThreads = 256, kWarp = 32;
constexpr int kWidth = kVectorWidth<Bf16>;  // elements per lane
static_assert(kWarp * kWidth >= 256, "a warp holds a row of the widest head");

struct MergeOperands {
  const Bf16* part;
  const float* part_lse;  // [sequences, heads, rows] of `part`; null: just add
  Bf16* stored;
  float *exact, *lse;
  std::int64_t stored_stride, exact_stride, lse_stride;
  std::int64_t tasks, sequence_rows, rows;
  int heads, head_dim;
};

// Returns the factors of the existing and of the added output, computed from both log-sum-exps;
// lane 0 stores the merged one.
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
  if (o.part_lse != nullptr) {
    factors = Factors(o.lse + at * o.lse_stride + head,
                      o.part_lse[(sequence * o.heads + head) * o.rows + row], lane);
  }
  const int column = lane * kWidth;
  if (column >= o.head_dim) return;
  const std::int64_t of_head = std::int64_t{head} * o.head_dim + column;
  Bf16* const stored = o.stored + at * o.stored_stride + of_head;
  float* const exact = o.exact + at * o.exact_stride + of_head;
  float added[kWidth], sum[kWidth];
  WidenPack(LoadPack<kWidth>(o.part + packed * o.heads * o.head_dim + of_head), added);
  const Pack<float, kWidth> before = LoadPack<kWidth>(exact);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    // Before the first block of a forward pass, `exact` is uninitialised.
    const float kept = factors.x == 0 ? 0.0F : before.values[i];
    sum[i] = kept * factors.x + added[i] * factors.y;
  }
  StorePack(NarrowPack<float, kWidth>(sum), exact);
  StorePack(NarrowPack<Bf16, kWidth>(sum), stored);
}

}  // namespace

void MergeAttention(const device::Stream& stream, const AttentionWindow& window, const Matrix& part,
                    const float* part_lse, const RoundedSum& sum, const Matrix& lse) {
  MergeOperands o = {};
  o.tasks = window.sequences * window.rows * window.heads;
  if (o.tasks == 0) return;
  o.part = part.As<Bf16>(), o.part_lse = part_lse;
  o.stored = sum.stored.As<Bf16>(), o.stored_stride = sum.stored.stride;
  o.exact = sum.exact.As<float>(), o.exact_stride = sum.exact.stride;
  if (part_lse != nullptr) o.lse = lse.As<float>(), o.lse_stride = lse.stride;
  o.sequence_rows = window.sequence_rows, o.rows = window.rows;
  o.heads = static_cast<int>(window.heads), o.head_dim = static_cast<int>(window.head_dim);
  const std::int64_t blocks = CeilDivide(o.tasks * kWarp, std::int64_t{kMergeThreads});
  device::cuda::Launch(device::cuda::Queue(stream), &MergeKernel,
                       dim3(static_cast<unsigned>(blocks)), dim3(kMergeThreads), 0, o);
}

// The documents of a batch as cuDNN reads them: their lengths, and where they begin in each
// operand. Overwrites everything.

namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarpLanes;

struct IndexOperands {
  const std::int32_t* begins;  // [sequences, length]: AttentionShape::begins
  DocumentIndex to;
  int length, documents, sequences_of_piece;
};

// firsts[i] = row of the first token of the sequence's document i, for the first `documents` ones.
// Returns the number of documents. All threads of the block must call it; it ends with a barrier.
__device__ int FindDocuments(const std::int32_t* begins, int length, int documents, int* firsts) {
  __shared__ int counts[kWarps];
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarpLanes, lane = thread % kWarpLanes;
  int found = 0;
  for (int first = 0; first < length; first += kThreads) {
    const int row = first + thread;
    const bool begins_here = row < length && (row == 0 || begins[row] != begins[row - 1]);
    const unsigned in_warp = __ballot_sync(kAllLanes, begins_here);
    if (lane == 0) counts[warp] = __popc(in_warp);
    __syncthreads();
    int before = found + __popc(in_warp & ((1u << lane) - 1));
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) before += counts[w];
      found += counts[w];
    }
    if (begins_here && before < documents) firsts[before] = row;
    __syncthreads();  // everyone has read `counts` and written `firsts`
  }
  return found;
}

// One block per sequence.
__global__ void __launch_bounds__(kThreads) DocumentIndexKernel(const IndexOperands o) {
  __shared__ int firsts[kMostDocuments];
  const int sequence = static_cast<int>(blockIdx.x);
  const int found =
      FindDocuments(o.begins + std::int64_t{sequence} * o.length, o.length, o.documents, firsts);
  const bool served = found <= o.documents;
  const int piece = sequence / o.sequences_of_piece, place = sequence % o.sequences_of_piece;
  const std::int64_t first_entry = std::int64_t{place} * o.documents;
  const std::int64_t of_piece = std::int64_t{o.sequences_of_piece} * o.documents + 1;
  // After its last entry a piece has one more offset: its end.
  const bool last = place == o.sequences_of_piece - 1;
  for (int i = static_cast<int>(threadIdx.x); i < o.documents + (last ? 1 : 0); i += kThreads) {
    const bool real = served && i < found;
    const int row = real ? firsts[i] : served || i == o.documents ? o.length : 0;
    for (int operand = 0; operand < DocumentIndex::kOffsets; ++operand) {
      std::int64_t* const offsets = o.to.offsets[operand] + piece * of_piece + first_entry;
      offsets[i] = (std::int64_t{place} * o.length + row) * o.to.strides[operand];
    }
    if (i == o.documents) continue;
    const int end = real && i + 1 < found ? firsts[i + 1] : o.length;
    o.to.lengths[std::int64_t{sequence} * o.documents + i] = real ? end - row : 0;
  }
  if (threadIdx.x == 0) o.to.served[sequence] = served ? 1 : 0;
}

}  // namespace

void IndexDocuments(const device::Stream& stream, const AttentionShape& shape,
                    std::int64_t documents, std::int64_t sequences_of_piece,
                    const DocumentIndex& to) {
  if (shape.sequences == 0) return;
  const IndexOperands operands = {shape.begins, to, static_cast<int>(shape.length),
                                  static_cast<int>(documents),
                                  static_cast<int>(sequences_of_piece)};
  device::cuda::Launch(device::cuda::Queue(stream), &DocumentIndexKernel,
                       dim3(static_cast<unsigned>(shape.sequences)), dim3(kThreads), 0, operands);
}

}  // namespace trireme::kernels::cuda
