// Linear layers on the GPU: LinearWeightGradient accumulates, everything else is overwritten.
//
// Types, shapes and addresses alone decide whether a product may include its bias or activation,
// and whether it takes fp8 operands; whether GELU is included is chosen and kept with the product's
// algorithm. So runs repeat. The library's GELU is the same tanh form as ours.
#include "cuda/linear_fp8.hpp"

namespace trireme::kernels {


namespace cuda {

namespace {

Form Opposite(Form form) { return form == Form::kPlain ? Form::kTransposed : Form::kPlain; }

// Whether the library may have an epilogue for the product: not in fp64, and not for an empty
// product.
bool HasEpilogues(const Matrix& x, const Matrix& out) {
  return out.dtype == x.dtype && x.dtype != Dtype::kFloat64 && x.columns > 0 && out.columns > 0;
}

// Room for the values before an activation, as the library wants it beside c.
bool IsAux(const Matrix& aux, const Matrix& out) {
  constexpr std::int64_t kMultiple = 8;  // of the stride
  constexpr std::uintptr_t kAligned = 16;
  return aux.dtype == Dtype::kBfloat16 && aux.dtype == out.dtype && aux.data != out.data &&
         aux.stride % kMultiple == 0 && reinterpret_cast<std::uintptr_t>(aux.data) % kAligned == 0;
}

// y = x form(weight) with an epilogue, in one kernel. False, with nothing done, if the library
// has none, or if `apart` is faster (Algorithms::Run).
bool Fused(const device::Stream& stream, const Matrix& x, Form form, const Matrix& weight,
           const Matrix& y, Epilogue epilogue, const Matrix& bias, const Matrix& aux,
           const FunctionRef<void()>* apart = nullptr) {
  Product product = MakeProduct(Form::kPlain, x, form, weight, y, false);
  product.epilogue = epilogue;
  product.bias = bias.data;
  product.aux = aux.data;
  product.aux_stride = aux.Empty() ? 0 : aux.stride;
  return GpuLibrariesOf(stream).Run(stream, product, apart);
}

// y = x form(weight) + bias. bias: Empty() or [1, out].
void BiasedProduct(const device::Stream& stream, const Linear& linear, const Matrix& x,
                   const Matrix& bias, const Matrix& y) {
  if (Fp8Forward(stream, linear, x, bias, y)) return;
  if (!bias.Empty() && bias.dtype == y.dtype && HasEpilogues(x, y) &&
      Fused(stream, x, linear.form, linear.weight, y, Epilogue::kBias, bias, {})) {
    return;
  }
  cuda::MatrixMultiply(stream, Form::kPlain, x, linear.form, linear.weight, y, false);
  if (!bias.Empty()) cuda::AddBias(stream, y, bias);
}

// The activation in the product's epilogue. False, with nothing done, if that is not possible.
bool FusedActivation(const device::Stream& stream, const Linear& linear, const Matrix& x,
                     const Matrix& bias, ActivationKind kind, const Matrix& pre, const Matrix& out,
                     FunctionRef<void()> apart) {
  if (!HasEpilogues(x, out) || (!bias.Empty() && bias.dtype != out.dtype)) return false;
  if (kind == ActivationKind::kRelu && pre.data == out.data) {
    const Epilogue epilogue = bias.Empty() ? Epilogue::kRelu : Epilogue::kReluBias;
    return Fused(stream, x, linear.form, linear.weight, out, epilogue, bias, {});
  }
  if (kind != ActivationKind::kGelu || !IsAux(pre, out)) return false;
  const Epilogue epilogue = bias.Empty() ? Epilogue::kGelu : Epilogue::kGeluBias;
  return Fused(stream, x, linear.form, linear.weight, out, epilogue, bias, pre, &apart);
}

}  // namespace

}  // namespace cuda

void cuda::LinearForward(const device::Stream& stream, const Linear& linear, const Matrix& x,
                         const Matrix& bias, const Matrix& y,
                         FunctionRef<void(const Part& rows)> then) {
  if (y.rows == 0) return;
  BiasedProduct(stream, linear, x, bias, y);
  then({0, y.rows});
}

void cuda::LinearActivation(const device::Stream& stream, const Linear& linear, const Matrix& x,
                            const Matrix& bias, ActivationKind kind, const Dropout& dropout,
                            const Matrix& pre, const Matrix& out) {
  if (pre.rows == 0) return;
  // The activation's pass adds the bias as well.
  const auto apart = [&] {
    cuda::MatrixMultiply(stream, Form::kPlain, x, linear.form, linear.weight, pre, false);
    cuda::ActivationForward(stream, kind, pre, bias, dropout, out);
  };
  if (Fp8Forward(stream, linear, x, {}, pre)) {
    return cuda::ActivationForward(stream, kind, pre, bias, dropout, out);
  }
  if (!dropout.Active() && FusedActivation(stream, linear, x, bias, kind, pre, out, apart)) return;
  apart();
}

void cuda::LinearInputGradient(const device::Stream& stream, const Linear& linear, const Matrix& dy,
                               const Matrix& dx) {
  if (dx.rows == 0 || Fp8InputGradient(stream, linear, dy, dx)) return;
  cuda::MatrixMultiply(stream, Form::kPlain, dy, Opposite(linear.form), linear.weight, dx, false);
}

void cuda::LinearActivationGradient(const device::Stream& stream, const Linear& linear,
                                    const Matrix& dy, ActivationKind kind, const Matrix& from,
                                    const Dropout& dropout, const Matrix& dhidden,
                                    const Matrix& dpre) {
  if (dhidden.rows == 0) return;
  // One kernel writes dpre alone: if dhidden is wanted too, it takes two.
  const bool fused = kind == ActivationKind::kGelu && !dropout.Active() &&
                     dpre.data == dhidden.data && dpre.stride == dhidden.stride &&
                     HasEpilogues(dy, dpre) && IsAux(from, dpre) &&
                     !Fp8Takes(stream, linear, dy, dhidden);
  const auto in_two = [&] {
    cuda::LinearInputGradient(stream, linear, dy, dhidden);
    cuda::ActivationBackward(stream, kind, from, dropout, dhidden, dpre);
  };
  const FunctionRef<void()> apart = in_two;
  if (fused && Fused(stream, dy, Opposite(linear.form), linear.weight, dpre,
                     Epilogue::kGeluGradient, {}, from, &apart)) {
    return;
  }
  in_two();
}

void cuda::LinearWeightGradient(const device::Stream& stream, const Linear& linear, const Matrix& x,
                                const Matrix& dy, const Matrix& dweight) {
  if (Fp8WeightGradient(stream, linear, x, dy, dweight)) return;
  const bool transposed = linear.form == Form::kTransposed;
  cuda::MatrixMultiply(stream, Form::kTransposed, transposed ? dy : x, Form::kPlain,
                       transposed ? x : dy, dweight, true);
}

}  // namespace trireme::kernels
