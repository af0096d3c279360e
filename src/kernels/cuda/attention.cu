// Attention to whole sequences and to parts of them by our own kernels: from matrices to the
// kernels' operands. Scratch holds `inner` (dout . out) and, for parts in bf16, a sum before it is
// rounded to the stored type, so that merging many blocks costs no precision.
#include "attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>

#include "attention/matrix.cuh"
#include "attention_kernels.cuh"
#include "backends.hpp"
#include "gpu_sizes.hpp"
#include "trireme/base/error.hpp"
#include "trireme/device/gpu.hpp"
#include "vector_pass.cuh"

namespace trireme::kernels::cuda {

static_assert(kAttentionMostDims == gpu::kMostHeadDim);

namespace {


template <typename T, int kElements>
struct FillOperation {
  static constexpr int kWidth = kElements;
  View<T> data;  // [rows, columns]
  SumOf<T> value;

  __device__ __forceinline__ void operator()(std::int64_t row, std::int64_t column) const {
    SumOf<T> values[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] = value;
    Store<kWidth>(values, data.At(row, column));
  }
};

void Fill(const device::Stream& stream, const Matrix& m, double value) {
  Dispatch(m.dtype, [&](auto zero) {
    using T = decltype(zero);
    WithWidth<T>(AllowVectors<T>(m.columns, m), [&](auto width) {
      Pass(stream, m.rows, m.columns,
           FillOperation<T, width()>{ViewOf<T>(m), static_cast<SumOf<T>>(value)});
    });
  });
}

// Operands of a call; in the forward pass the last three are Empty().
struct Call {
  const device::Stream& stream;
  const AttentionShape& shape;
  const Matrix& qkv;
  KeyValueBlock block;
  Part tasks;
  const Dropout& dropout;
  const Matrix& out;
  const Matrix& lse;
  const Matrix& scratch;
  bool whole;
  Matrix dout, dqkv, dblock;
  const std::int32_t* served = nullptr;  // AttentionOperands::served
};

AttentionRows RowsOf(const Positions& positions, std::int64_t count) {
  const std::int64_t early = std::min(positions.early.Size(), count);
  return {static_cast<int>(positions.early.begin), static_cast<int>(early),
          static_cast<int>(positions.late.begin), static_cast<int>(count - early)};
}

template <typename T>
bool AllowAttentionVectors(const Call& c) {
  for (const Matrix* m : {&c.qkv, &c.block.data, &c.out, &c.dout, &c.dqkv, &c.dblock}) {
    if (!RowsOnVectorBoundaries(*m)) return false;
  }
  return c.shape.head_dim % std::max(kVectorWidth<T>, kAttentionWidth) == 0;
}

template <typename T>
void TellDropout(const Call& c, AttentionOperands<T>& a) {
  const PhiloxKey key = MakeKey(c.dropout.seed, c.dropout.purpose, c.dropout.layer);
  a.seed = key[0];
  a.purpose = key[1];
  a.threshold = c.dropout.Threshold();
  a.first_head = static_cast<int>(c.shape.first_head);
  a.kept_scale = static_cast<SumOf<T>>(c.dropout.Scale());
  a.ordinals = c.dropout.ordinals;
}

template <typename T>
AttentionOperands<T> OperandsOf(const Call& c) {
  const AttentionShape& s = c.shape;
  AttentionOperands<T> a{};
  const auto data = [](const Matrix& m) { return static_cast<T*>(m.data); };
  const auto values = [&](T* keys) {
    return keys == nullptr ? keys : keys + s.kv_heads * s.head_dim;
  };
  a.query = data(c.qkv), a.query_stride = c.qkv.stride;
  a.key = data(c.block.data), a.value = values(data(c.block.data));
  a.key_stride = c.block.data.stride;
  a.out = data(c.out), a.out_stride = c.out.stride;
  a.lse = static_cast<SumOf<T>*>(c.lse.data), a.lse_stride = c.lse.stride;
  a.dout = data(c.dout), a.dout_stride = c.dout.stride;
  a.dquery = data(c.dqkv), a.dquery_stride = c.dqkv.stride;
  a.dkey = data(c.dblock), a.dvalue = values(data(c.dblock)), a.dkey_stride = c.dblock.stride;
  a.inner = static_cast<SumOf<T>*>(c.scratch.data);
  if (!c.whole && !std::is_same_v<T, SumOf<T>>) a.exact = a.inner + gpu::AttentionInner(s);
  a.queries = RowsOf(c.whole ? c.block.positions : s.positions, s.length);
  a.keys = RowsOf(c.block.positions, c.block.positions.Count());
  a.heads = static_cast<int>(s.heads), a.kv_heads = static_cast<int>(s.kv_heads);
  a.head_dim = static_cast<int>(s.head_dim);
  a.first_task = static_cast<int>(c.tasks.begin), a.tasks = static_cast<int>(c.tasks.Size());
  a.scale = static_cast<SumOf<T>>(1 / std::sqrt(static_cast<double>(s.head_dim)));
  a.begins = s.begins, a.key_lengths = s.key_lengths, a.served = c.served;
  a.causal = s.causal, a.whole = c.whole, a.vector = AllowAttentionVectors<T>(c);
  TellDropout(c, a);
  return a;
}

// RunError if the card gives a block less than `bytes` of shared memory.
void CheckRoom(const Call& call, int bytes) {
  const device::GpuContext& gpu = *call.stream.gpu;
  if (bytes <= gpu.shared_bytes) return;
  throw RunError("attention on a GPU: heads of " + std::to_string(call.shape.head_dim) + " take " +
                     std::to_string(bytes) + " bytes of shared memory, and " + gpu.name +
                     " gives a block " + std::to_string(gpu.shared_bytes),
                 "Choose more heads (model.heads) or a smaller model.head_dim, or another card.");
}

// Whether tensor cores serve the call. Short sequences stay with the kernels whose backward pass is
// one launch.
bool OnMatrices(const AttentionOperands<Bf16>& a) { return a.vector && !AttentionIsOneTile(a); }

void Forward(const Call& call) {
  gpu::CheckHeadDim(call.shape);
  if (call.tasks.Size() == 0) return;
  Dispatch(call.qkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    const AttentionOperands<T> a = OperandsOf<T>(call);
    const cudaStream_t queue = device::cuda::Queue(call.stream);
    if constexpr (std::is_same_v<T, Bf16>) {
      if (OnMatrices(a)) {
        CheckRoom(call, MatrixForwardBytes(a.head_dim));
        return LaunchMatrixForward(queue, a);
      }
    }
    CheckRoom(call, AttentionForwardBytes<T>(a.head_dim));
    LaunchAttentionForward(queue, a);
  });
}

void Backward(const Call& call) {
  gpu::CheckHeadDim(call.shape);
  if (call.tasks.Size() == 0) return;
  Dispatch(call.qkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    const AttentionOperands<T> a = OperandsOf<T>(call);
    const cudaStream_t queue = device::cuda::Queue(call.stream);
    if constexpr (std::is_same_v<T, Bf16>) {
      if (OnMatrices(a)) {
        CheckRoom(call, std::max(MatrixQueryGradientBytes(a.head_dim),
                                 MatrixKeyGradientBytes(a.head_dim)));
        LaunchAttentionInner(queue, a);
        LaunchMatrixQueryGradient(queue, a);
        return LaunchMatrixKeyGradient(queue, a);
      }
    }
    CheckRoom(call, AttentionBackwardBytes<T>(a.head_dim));
    LaunchAttentionBackward(queue, a);
  });
}

// Keys and values of whole sequences are columns of their qkv.
KeyValueBlock WholeBlock(const AttentionShape& shape, const Matrix& qkv) {
  const std::int64_t queries = shape.heads * shape.head_dim;
  return {{{0, shape.length}, {shape.length, shape.length}},
          qkv.Columns(queries, qkv.columns - queries)};
}

}  // namespace

void OwnAttentionForward(const device::Stream& stream, const AttentionShape& shape,
                         const Matrix& qkv, const Dropout& dropout, const Matrix& out,
                         const Matrix& lse, const Matrix& scratch) {
  const Part all = {0, AttentionPartTasks(shape)};
  Forward({stream,
           shape,
           qkv,
           WholeBlock(shape, qkv),
           all,
           dropout,
           out,
           lse,
           scratch,
           true,
           {},
           {},
           {}});
}

void OwnAttentionBackward(const device::Stream& stream, const AttentionShape& shape,
                          const Matrix& qkv, const Dropout& dropout, const Matrix& out,
                          const Matrix& dout, const Matrix& lse, const Matrix& dqkv,
                          const Matrix& scratch) {
  const Part all = {0, AttentionPartTasks(shape)};
  Backward({stream, shape, qkv, WholeBlock(shape, qkv), all, dropout, out, lse, scratch, true, dout,
            dqkv, WholeBlock(shape, dqkv).data});
}

void OwnAttentionForwardOfRest(const device::Stream& stream, const AttentionShape& shape,
                               const DocumentOperands& o, const std::int32_t* served) {
  const Part all = {0, AttentionPartTasks(shape)};
  const Dropout none = {};
  Forward({stream,
           shape,
           o.qkv,
           WholeBlock(shape, o.qkv),
           all,
           none,
           o.out,
           o.lse,
           o.scratch,
           true,
           {},
           {},
           {},
           served});
}

void OwnAttentionBackwardOfRest(const device::Stream& stream, const AttentionShape& shape,
                                const DocumentOperands& o, const std::int32_t* served) {
  const Part all = {0, AttentionPartTasks(shape)};
  const Dropout none = {};
  Backward({stream, shape, o.qkv, WholeBlock(shape, o.qkv), all, none, o.out, o.lse, o.scratch,
            true, o.dout, o.dqkv, WholeBlock(shape, o.dqkv).data, served});
}

void AttentionPartStart(const device::Stream& stream, const Matrix& out, const Matrix& lse) {
  Fill(stream, out, 0);
  Fill(stream, lse, -std::numeric_limits<double>::infinity());
}

void OwnAttentionPartForward(const device::Stream& stream, const AttentionShape& shape,
                             const Part& tasks, const Matrix& qkv, const KeyValueBlock& block,
                             const Dropout& dropout, const Matrix& out, const Matrix& lse,
                             const Matrix& scratch) {
  Forward({stream, shape, qkv, block, tasks, dropout, out, lse, scratch, false, {}, {}, {}});
}

void AttentionPartStartBackward(const device::Stream& stream, const AttentionShape& shape,
                                const Matrix& dqkv) {
  Fill(stream, dqkv.Columns(0, shape.heads * shape.head_dim), 0);
}

void OwnAttentionPartBackward(const device::Stream& stream, const AttentionShape& shape,
                              const Part& tasks, const Matrix& qkv, const KeyValueBlock& block,
                              const Dropout& dropout, const Matrix& out, const Matrix& dout,
                              const Matrix& lse, const Matrix& dqkv, const Matrix& dblock,
                              const Matrix& scratch) {
  Backward(
      {stream, shape, qkv, block, tasks, dropout, out, lse, scratch, false, dout, dqkv, dblock});
}

}  // namespace trireme::kernels::cuda
