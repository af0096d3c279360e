// Products of a linear layer with fp8 operands: LinearWeightGradient accumulates, everything else
// is overwritten.
#include "cuda/linear_fp8.hpp"

namespace trireme::kernels::cuda {

namespace {


// c = a b^T, both with the inner index contiguous.
Product ProductOf(const Operand& a, Operand b, const Matrix& c, std::int64_t inner) {
  Product product;
  product.a = a;
  product.b = b;
  product.b.form = Form::kTransposed;
  product.c = c.data;
  product.c_type = TypeOf(c.dtype);
  product.rows = c.rows;
  product.columns = c.columns;
  product.inner = inner;
  product.c_stride = c.stride;
  return product;
}

// On boundaries of 16 bytes, row by row.
bool IsAligned(const Matrix& m) {
  constexpr std::uintptr_t kBytes = 16;
  const auto stride = static_cast<std::uintptr_t>(m.stride) * SizeOf(m.dtype);
  return reinterpret_cast<std::uintptr_t>(m.data) % kBytes == 0 && stride % kBytes == 0;
}

// Whether a product of x with weights or gradients of so many columns is one for fp8, wherever its
// result goes.
bool IsForFp8(const device::Stream& stream, const Linear& linear, const Matrix& x,
              std::int64_t columns) {
  const auto whole = [](std::int64_t size) { return size > 0 && size % kFp8Unit == 0; };
  return stream.fp8 && linear.site >= 0 && x.dtype == Dtype::kBfloat16 && whole(x.rows) &&
         whole(x.columns) && whole(columns);
}

}  // namespace

bool Fp8Takes(const device::Stream& stream, const Linear& linear, const Matrix& x,
              const Matrix& y) {
  return IsForFp8(stream, linear, x, y.columns) && y.dtype == x.dtype && IsAligned(y);
}

bool Fp8Forward(const device::Stream& stream, const Linear& linear, const Matrix& x,
                const Matrix& bias, const Matrix& y) {
  if (!Fp8Takes(stream, linear, x, y)) return false;
  Fp8& fp8 = GpuLibrariesOf(stream).Quantiser();
  const bool transposed = linear.form == Form::kPlain;
  const Operand a = fp8.Quantise(stream, linear.site, Fp8Role::kValue, x, false, 0);
  const Operand b =
      fp8.Quantise(stream, linear.site, Fp8Role::kWeight, linear.weight, transposed, 1);
  Product product = ProductOf(a, b, y, x.columns);
  product.fast_sums = true;  // as is usual: gradients are what needs longer sums
  const bool with_bias = !bias.Empty() && bias.dtype == y.dtype;
  product.epilogue = with_bias ? Epilogue::kBias : Epilogue::kNone;
  product.bias = with_bias ? bias.data : nullptr;
  if (GpuLibrariesOf(stream).Run(stream, product)) {
    if (!bias.Empty() && !with_bias) cuda::AddBias(stream, y, bias);
    return true;
  }
  product.epilogue = Epilogue::kNone;
  product.bias = nullptr;
  Multiply(stream, product);
  if (!bias.Empty()) cuda::AddBias(stream, y, bias);
  return true;
}

bool Fp8InputGradient(const device::Stream& stream, const Linear& linear, const Matrix& dy,
                      const Matrix& dx) {
  if (!Fp8Takes(stream, linear, dy, dx)) return false;
  Fp8& fp8 = GpuLibrariesOf(stream).Quantiser();
  const bool transposed = linear.form == Form::kTransposed;
  const Operand a = fp8.Quantise(stream, linear.site, Fp8Role::kGradient, dy, false, 0);
  const Operand b =
      fp8.Quantise(stream, linear.site, Fp8Role::kWeight, linear.weight, transposed, 1);
  Multiply(stream, ProductOf(a, b, dx, dy.columns));
  return true;
}

bool Fp8WeightGradient(const device::Stream& stream, const Linear& linear, const Matrix& x,
                       const Matrix& dy, const Matrix& dweight) {
  if (!IsForFp8(stream, linear, x, dy.columns) || dy.dtype != x.dtype || !IsAligned(dweight)) {
    return false;
  }
  Fp8& fp8 = GpuLibrariesOf(stream).Quantiser();
  const Operand values = fp8.Quantise(stream, linear.site, Fp8Role::kValue, x, true, 0);
  const Operand gradients = fp8.Quantise(stream, linear.site, Fp8Role::kGradient, dy, true, 1);
  const bool transposed = linear.form == Form::kTransposed;
  Product product =
      ProductOf(transposed ? gradients : values, transposed ? values : gradients, dweight, x.rows);
  product.accumulate = true;
  Multiply(stream, product);
  return true;
}

}  // namespace trireme::kernels::cuda
