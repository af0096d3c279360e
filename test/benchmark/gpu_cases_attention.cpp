// Attention on a GPU: operands, calls and operations.
#include <numeric>

#include "gpu_cases.hpp"
#include "kernels/cuda/attention.hpp"

namespace trireme::benchmark {

namespace {

struct AttentionOperands {
  kernels::AttentionShape shape;
  kernels::Matrix qkv, out, dout, lse, dqkv, scratch;
  kernels::Dropout dropout;
};

auto Forward(const AttentionWay& way) {
  return way.own ? &kernels::cuda::OwnAttentionForward : &kernels::AttentionForward;
}
auto Backward(const AttentionWay& way) {
  return way.own ? &kernels::cuda::OwnAttentionBackward : &kernels::AttentionBackward;
}

// With the forward pass behind it, which the backward pass follows.
AttentionOperands MakeOperands(const device::Stream& stream, const Sizes& sizes,
                               const AttentionWay& way, Operands& o) {
  const Dtype dtype = way.dtype;
  AttentionOperands a;
  a.shape = sizes.Attention();
  const std::int64_t rows = sizes.Rows(), width = a.shape.heads * a.shape.head_dim;
  const Dtype sums = SumTypeOf(dtype);
  a.qkv = o.Matrix(dtype, rows, a.shape.Width());
  a.out = o.Matrix(dtype, rows, width);
  a.dout = o.Matrix(dtype, rows, width);
  a.lse = o.Matrix(sums, rows, a.shape.heads);
  a.dqkv = o.Matrix(dtype, rows, a.shape.Width());
  a.scratch = o.Matrix(sums, 1, kernels::AttentionScratch(stream, a.shape, dtype, false));
  if (way.dropout > 0) {
    a.dropout.probability = way.dropout;
    a.dropout.length = sizes.length;
    std::vector<std::uint64_t> ordinals(static_cast<std::size_t>(sizes.sequences));
    std::iota(ordinals.begin(), ordinals.end(), std::uint64_t{0});
    a.dropout.ordinals = o.Copied(ordinals);
  }
  Forward(way)(stream, a.shape, a.qkv, a.dropout, a.out, a.lse, a.scratch);
  return a;
}

}  // namespace

AttentionCase MakeAttentionCase(const device::Stream& stream, const Sizes& sizes,
                                const AttentionWay& way) {
  const kernels::AttentionShape shape = sizes.Attention();
  const auto length = static_cast<double>(shape.length);
  // Two products of the forward pass, five of the backward pass (the scores once more), each of
  // length (length + 1) / 2 scores a sequence and head.
  const double product =
      static_cast<double>(shape.sequences * shape.heads * shape.head_dim) * length * (length + 1);
  AttentionCase result;
  result.forward_flops = 2 * product;
  result.backward_flops = 5 * product;
  result.forward = [&stream, &sizes, way](Operands& o) -> Call {
    return [&stream, way, a = MakeOperands(stream, sizes, way, o)] {
      Forward(way)(stream, a.shape, a.qkv, a.dropout, a.out, a.lse, a.scratch);
    };
  };
  result.backward = [&stream, &sizes, way](Operands& o) -> Call {
    return [&stream, way, a = MakeOperands(stream, sizes, way, o)] {
      Backward(way)(stream, a.shape, a.qkv, a.dropout, a.out, a.dout, a.lse, a.dqkv, a.scratch);
    };
  };
  return result;
}

}  // namespace trireme::benchmark
