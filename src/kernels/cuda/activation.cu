// activation: the forward pass adds the bias to pre and overwrites out; the backward pass
// overwrites dpre.
#include <cmath>

#include "backends.hpp"
#include "dropout.cuh"
#include "trireme/device/cuda/launch.cuh"
#include "vector_pass.cuh"

namespace trireme::kernels::cuda {

namespace {

// As in kernels/cpu/rows_activation.cpp: the tanh form as x sigmoid(2u), which does not cancel.
constexpr double kGeluScale = 0.79788456080286535588;
constexpr double kGeluCubic = 0.044715;

// 1 / (1 + exp(-x)), for operands of type T: of bf16 to a few units of fp32's last place.
template <typename T>
__device__ __forceinline__ SumOf<T> Sigmoid(SumOf<T> x) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return device::cuda::FastReciprocal(1.0f + FastExp(-x));
  } else {
    return SumOf<T>(1) / (SumOf<T>(1) + std::exp(-x));
  }
}
template <typename T>
__device__ __forceinline__ SumOf<T> GeluSigmoid(SumOf<T> x) {
  using S = SumOf<T>;
  return Sigmoid<T>(x * (S(2 * kGeluScale) + S(2 * kGeluScale * kGeluCubic) * (x * x)));
}

// values = pre[at, at + kWidth) + bias, which stays in pre; `held` is what pre has.
template <int kWidth, typename T>
__device__ __forceinline__ void AddBias(const HeldPack<T, kWidth>& held, T* pre, const T* bias,
                                        SumOf<T> (&values)[kWidth]) {
  held.Widen(values);
  if (bias == nullptr) return;
  SumOf<T> add[kWidth];
  LoadConstant<kWidth>(bias, add);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) values[i] += add[i];
  const Pack<T, kWidth> rounded = NarrowPack<T>(values);
  StoreGlobal(rounded, pre);
  WidenPack(rounded, values);  // the backward pass will see these
}

template <ActivationKind kKind, typename T, int kElements>
struct ActivationOperation {
  static constexpr int kWidth = kElements;
  View<T> pre;    // [rows, columns], kSwiglu: [rows, 2 columns]
  const T* bias;  // [columns of pre] or null
  std::int64_t columns;
  DropoutPlace place;
  View<T> out;  // [rows, columns]

  __device__ __forceinline__ void operator()(std::int64_t row, std::int64_t column) const {
    SumOf<T> x[kWidth];
    // All loads are under way before the first is needed.
    HeldPack<T, kWidth> held, held_up{};
    held.Hold(pre.At(row, column));
    if constexpr (kKind == ActivationKind::kSwiglu) held_up.Hold(pre.At(row, columns + column));
    AddBias(held, pre.At(row, column), At(column), x);
    if constexpr (kKind == ActivationKind::kSwiglu) {
      SumOf<T> up[kWidth];
      AddBias(held_up, pre.At(row, columns + column), At(columns + column), up);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) x[i] = x[i] * Sigmoid<T>(x[i]) * up[i];
    } else {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        if constexpr (kKind == ActivationKind::kRelu) {
          x[i] = x[i] < SumOf<T>(0) ? SumOf<T>(0) : x[i];
        } else {
          x[i] *= GeluSigmoid<T>(x[i]);
        }
      }
    }
    if (place.Active()) RowDropout(place, row).template Apply<kWidth>(column, x);
    Store<kWidth>(x, out.At(row, column));
  }

 private:
  __device__ __forceinline__ const T* At(std::int64_t column) const {
    return bias == nullptr ? nullptr : bias + column;
  }
};

template <ActivationKind kKind, typename T, int kElements>
struct ActivationGradient {
  static constexpr int kWidth = kElements;
  View<const T> pre;  // [rows, columns], kSwiglu: [rows, 2 columns]; kRelu: the forward's out
  std::int64_t columns;
  DropoutPlace place;
  View<const T> dout;  // [rows, columns]
  View<T> dpre;        // as pre

  __device__ __forceinline__ void operator()(std::int64_t row, std::int64_t column) const {
    using S = SumOf<T>;
    S x[kWidth], d[kWidth];
    HeldPack<T, kWidth> held, held_d, held_up{};
    held.Hold(pre.At(row, column));
    held_d.Hold(dout.At(row, column));
    if constexpr (kKind == ActivationKind::kSwiglu) held_up.Hold(pre.At(row, columns + column));
    held.Widen(x);
    held_d.Widen(d);
    if constexpr (kKind == ActivationKind::kRelu) {
      // A value that is positive after dropout was kept and positive before: no mask is needed.
      const S scale = static_cast<S>(place.scale);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) d[i] = x[i] > S(0) ? scale * d[i] : S(0);
    } else {
      if (place.Active()) RowDropout(place, row).template Apply<kWidth>(column, d);
    }
    if constexpr (kKind == ActivationKind::kGelu) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const S s = GeluSigmoid<T>(x[i]);
        const S slope = S(2 * kGeluScale) + S(6 * kGeluScale * kGeluCubic) * (x[i] * x[i]);
        d[i] *= s + x[i] * s * (S(1) - s) * slope;
      }
    }
    if constexpr (kKind == ActivationKind::kSwiglu) {
      S up[kWidth];
      held_up.Widen(up);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const S s = Sigmoid<T>(x[i]), with_up = d[i] * up[i];
        up[i] = d[i] * x[i] * s;
        d[i] = with_up * s * (S(1) + x[i] * (S(1) - s));
      }
      Store<kWidth>(up, dpre.At(row, columns + column));
    }
    Store<kWidth>(d, dpre.At(row, column));
  }
};

// Calls body(std::integral_constant<ActivationKind, kind>{}).
template <typename Body>
void DispatchKind(ActivationKind kind, Body body) {
  if (kind == ActivationKind::kRelu) {
    body(std::integral_constant<ActivationKind, ActivationKind::kRelu>{});
  } else if (kind == ActivationKind::kGelu) {
    body(std::integral_constant<ActivationKind, ActivationKind::kGelu>{});
  } else {
    body(std::integral_constant<ActivationKind, ActivationKind::kSwiglu>{});
  }
}

}  // namespace

void ActivationForward(const device::Stream& stream, ActivationKind kind, const Matrix& pre,
                       const Matrix& bias, const Dropout& dropout,
                       const Matrix& out) {
  Dispatch(out.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool vectors = AllowVectors<T>(out.columns, pre, bias, out) && AllowVectors<T>(dropout);
    WithWidth<T>(vectors, [&](auto width) {
      DispatchKind(kind, [&](auto which) {
        Pass(stream, out.rows, out.columns,
             ActivationOperation<which(), T, width()>{ViewOf<T>(pre), bias.As<const T>(),
                                                      out.columns, DropoutPlace(dropout),
                                                      ViewOf<T>(out)});
      });
    });
  });
}

void ActivationBackward(const device::Stream& stream, ActivationKind kind,
                        const Matrix& pre, const Dropout& dropout,
                        const Matrix& dout, const Matrix& dpre) {
  Dispatch(dout.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool vectors = AllowVectors<T>(dout.columns, pre, dout, dpre) && AllowVectors<T>(dropout);
    WithWidth<T>(vectors, [&](auto width) {
      DispatchKind(kind, [&](auto which) {
        Pass(stream, dout.rows, dout.columns,
             ActivationGradient<which(), T, width()>{ViewOf<const T>(pre), dout.columns,
                                                     DropoutPlace(dropout), ViewOf<const T>(dout),
                                                     ViewOf<T>(dpre)});
      });
    });
  });
}

}  // namespace trireme::kernels::cuda
