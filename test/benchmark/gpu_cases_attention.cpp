// Attention on a GPU: operands, calls and operations.
#include "gpu_cases.hpp"
#include "kernels/cuda/attention.hpp"

namespace trireme::benchmark {

namespace {

struct AttentionOperands {
  kernels::AttentionShape shape;
  tensor::Matrix qkv, out, dout, lse, dqkv, scratch;
};

// With the forward pass behind it, which the backward pass follows.
AttentionOperands MakeOperands(const device::Stream& stream, const Sizes& sizes, Dtype dtype,
                               bool own, Operands& o) {
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
  const auto forward = own ? &kernels::cuda::OwnAttentionForward : &kernels::AttentionForward;
  forward(stream, a.shape, a.qkv, {}, a.out, a.lse, a.scratch);
  return a;
}

}  // namespace

AttentionCase MakeAttentionCase(const device::Stream& stream, const Sizes& sizes, Dtype dtype,
                                bool own) {
  const kernels::AttentionShape shape = sizes.Attention();
  const auto length = static_cast<double>(shape.length);
  // Two products of the forward pass, five of the backward pass (the scores once more), each of
  // length (length + 1) / 2 scores a sequence and head.
  const double product =
      static_cast<double>(shape.sequences * shape.heads * shape.head_dim) * length * (length + 1);
  AttentionCase result;
  result.forward_flops = 2 * product;
  result.backward_flops = 5 * product;
  result.forward = [&stream, &sizes, dtype, own](Operands& o) -> Call {
    return [&stream, own, a = MakeOperands(stream, sizes, dtype, own, o)] {
      const auto forward = own ? &kernels::cuda::OwnAttentionForward : &kernels::AttentionForward;
      forward(stream, a.shape, a.qkv, {}, a.out, a.lse, a.scratch);
    };
  };
  result.backward = [&stream, &sizes, dtype, own](Operands& o) -> Call {
    return [&stream, own, a = MakeOperands(stream, sizes, dtype, own, o)] {
      const auto backward =
          own ? &kernels::cuda::OwnAttentionBackward : &kernels::AttentionBackward;
      backward(stream, a.shape, a.qkv, {}, a.out, a.dout, a.lse, a.dqkv, a.scratch);
    };
  };
  return result;
}

}  // namespace trireme::benchmark
