// Element-wise passes. AddBias and Add accumulate; Scale, ResidualForward and Clear overwrite.
#include <cmath>

#include "backends.hpp"
#include "dropout.cuh"
#include "trireme/device/cuda/launch.cuh"
#include "vector.cuh"

namespace trireme::kernels::cuda {

namespace {

// y += x; stride 0 of x: one row that is added to all rows.
template <typename T, int kElements>
struct AddOperation {
  static constexpr int kWidth = kElements;
  View<const T> x;  // [rows or 1, columns]
  View<T> y;        // [rows, columns]

  template <int kCount>
  __device__ __forceinline__ void Run(std::int64_t row, std::int64_t column) const {
    SumOf<T> a[kCount], b[kCount];
    Load<kCount>(x.At(row, column), a);
    Load<kCount>(y.At(row, column), b);
    cuda::Add(b, a);
    Store<kCount>(b, y.At(row, column));
  }
  __device__ __forceinline__ void operator()(std::int64_t row, std::int64_t column) const {
    Run<kWidth>(row, column);
  }
};

// y = factor x.
template <typename T, int kElements>
struct ScaleOperation {
  static constexpr int kWidth = kElements;
  View<const T> x;  // [rows, columns]
  SumOf<T> factor;
  View<T> y;  // may be x

  __device__ __forceinline__ void operator()(std::int64_t row, std::int64_t column) const {
    SumOf<T> values[kWidth];
    Load<kWidth>(x.At(row, column), values);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] *= factor;
    Store<kWidth>(values, y.At(row, column));
  }
};

template <typename T, int kElements>
struct ResidualOperation {
  static constexpr int kWidth = kElements;
  View<const T> residual, branch;  // [rows, columns]
  const T* bias;                   // [columns] or null
  DropoutPlace place;
  View<T> out;  // may be residual or branch

  __device__ __forceinline__ void operator()(std::int64_t row, std::int64_t column) const {
    SumOf<T> sum[kWidth], b[kWidth];
    Load<kWidth>(residual.At(row, column), sum);
    Load<kWidth>(branch.At(row, column), b);
    if (bias != nullptr) AddConstant<kWidth>(bias + column, b);
    if (place.Active()) RowDropout(place, row).template ApplyAndNote<kWidth>(column, b);
    cuda::Add(sum, b);
    Store<kWidth>(sum, out.At(row, column));
  }
};

template <typename T, int kElements>
struct FillOperation {
  static constexpr int kWidth = kElements;
  View<T> x;  // [rows, columns]
  SumOf<T> value;

  __device__ __forceinline__ void operator()(std::int64_t row, std::int64_t column) const {
    SumOf<T> values[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] = value;
    Store<kWidth>(values, x.At(row, column));
  }
};

}  // namespace

void AddBias(const device::Stream& stream, const Matrix& x, const Matrix& bias) {
  WithVectors(x.dtype, x.columns, {x, bias}, [&](auto zero, auto width) {
    using T = decltype(zero);
    Pass(stream, x.rows, x.columns,
         AddOperation<T, width()>{{bias.As<const T>(), 0}, ViewOf<T>(x)});
  });
}

void Add(const device::Stream& stream, const Matrix& x, const Matrix& y) {
  WithVectors(x.dtype, x.columns, {x, y}, [&](auto zero, auto width) {
    using T = decltype(zero);
    Pass(stream, x.rows, x.columns, AddOperation<T, width()>{ViewOf<const T>(x), ViewOf<T>(y)});
  });
}

void Scale(const device::Stream& stream, const Matrix& x, double factor, const Matrix& y) {
  WithVectors(x.dtype, x.columns, {x, y}, [&](auto zero, auto width) {
    using T = decltype(zero);
    Pass(stream, x.rows, x.columns,
         ScaleOperation<T, width()>{ViewOf<const T>(x), static_cast<SumOf<T>>(factor),
                                    ViewOf<T>(y)});
  });
}

void ResidualForward(const device::Stream& stream, const Matrix& residual, const Matrix& branch,
                     const Matrix& bias, const Dropout& dropout, const Matrix& out) {
  WithVectors(dropout, out.dtype, out.columns, {residual, branch, bias, out},
              [&](auto zero, auto width) {
                using T = decltype(zero);
                Pass(stream, out.rows, out.columns,
                     ResidualOperation<T, width()>{ViewOf<const T>(residual),
                                                   ViewOf<const T>(branch), bias.As<const T>(),
                                                   DropoutPlace(dropout), ViewOf<T>(out)});
              });
}

void Fill(const device::Stream& stream, const Matrix& x, double value) {
  WithVectors(x.dtype, x.columns, {x}, [&](auto zero, auto width) {
    using T = decltype(zero);
    Pass(stream, x.rows, x.columns,
         FillOperation<T, width()>{ViewOf<T>(x), static_cast<SumOf<T>>(value)});
  });
}

void Clear(const device::Stream& stream, const Matrix& x) { Fill(stream, x, 0); }

// Activations: the forward pass adds the bias to pre and overwrites out; the backward pass
// overwrites dpre.

namespace {

// The tanh form as x sigmoid(2u), which does not cancel (as in kernels/cpu/rows.hpp).
constexpr double kGeluScale = 0.79788456080286535588;
constexpr double kGeluCubic = 0.044715;

// 1 / (1 + exp(-x)) for operands of type T; for bf16 exact to a few units in fp32's last place.
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

// values = held (what pre contains) + bias; writes the sum to pre too, if there is a bias.
template <int kWidth, typename T>
__device__ __forceinline__ void AddBias(const HeldPack<T, kWidth>& held, T* pre, const T* bias,
                                        SumOf<T> (&values)[kWidth]) {
  held.Widen(values);
  if (bias == nullptr) return;
  AddConstant<kWidth>(bias, values);
  const Pack<T, kWidth> rounded = NarrowPack<T>(values);
  StoreGlobal(rounded, pre);
  WidenPack(rounded, values);  // as rounded, since the backward pass will read these
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
  View<T> dpre;        // shape of pre

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
      // A value > 0 after dropout was kept and was > 0 before: no mask is needed.
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
  using enum ActivationKind;
  kind == kRelu   ? body(std::integral_constant<ActivationKind, kRelu>{})
  : kind == kGelu ? body(std::integral_constant<ActivationKind, kGelu>{})
                  : body(std::integral_constant<ActivationKind, kSwiglu>{});
}

}  // namespace

void ActivationForward(const device::Stream& stream, ActivationKind kind, const Matrix& pre,
                       const Matrix& bias, const Dropout& dropout, const Matrix& out) {
  WithVectors(dropout, out.dtype, out.columns, {pre, bias, out}, [&](auto zero, auto width) {
    using T = decltype(zero);
    DispatchKind(kind, [&](auto which) {
      Pass(stream, out.rows, out.columns,
           ActivationOperation<which(), T, width()>{ViewOf<T>(pre), bias.As<const T>(), out.columns,
                                                    DropoutPlace(dropout), ViewOf<T>(out)});
    });
  });
}

void ActivationBackward(const device::Stream& stream, ActivationKind kind, const Matrix& pre,
                        const Dropout& dropout, const Matrix& dout, const Matrix& dpre) {
  WithVectors(dropout, dout.dtype, dout.columns, {pre, dout, dpre}, [&](auto zero, auto width) {
    using T = decltype(zero);
    DispatchKind(kind, [&](auto which) {
      Pass(stream, dout.rows, dout.columns,
           ActivationGradient<which(), T, width()>{ViewOf<const T>(pre), dout.columns,
                                                   DropoutPlace(dropout), ViewOf<const T>(dout),
                                                   ViewOf<T>(dpre)});
    });
  });
}

// Copies and conversions: Copy and Convert overwrite, rounding to nearest if the target type is
// narrower; Accumulate adds.

namespace {

// y = x; if the types agree, the same bits, NaNs included.
template <typename X, typename Y, int kElements>
struct CopyOperation {
  static constexpr int kWidth = kElements;
  View<const X> x;  // [rows, columns]
  View<Y> y;        // [rows, columns]

  template <int kCount>
  __device__ __forceinline__ void Run(std::int64_t row, std::int64_t column) const {
    if constexpr (std::is_same_v<X, Y>) {
      StoreGlobal(LoadPack<kCount>(x.At(row, column)), y.At(row, column));
    } else {
      SumOf<X> values[kCount];
      Load<kCount>(x.At(row, column), values);
      SumOf<Y> rounded[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) rounded[i] = static_cast<SumOf<Y>>(values[i]);
      Store<kCount>(rounded, y.At(row, column));
    }
  }
  __device__ __forceinline__ void operator()(std::int64_t row, std::int64_t column) const {
    Run<kWidth>(row, column);
  }
};

// The width of accesses follows from the written type: a thread stores 16 bytes at once, so a
// warp's stores fill whole lines.
template <typename Body>
void DispatchTwo(Dtype x, Dtype y, Body body) {
  Dispatch(x, [&](auto from) { Dispatch(y, [&](auto to) { body(from, to); }); });
}

}  // namespace

void Copy(const device::Stream& stream, const Matrix& x, const Matrix& y) {
  DispatchTwo(x.dtype, y.dtype, [&](auto from, auto to) {
    using X = decltype(from);
    using Y = decltype(to);
    WithWidth<Y>(AllowVectors<Y>(x.columns, {x, y}), [&](auto width) {
      Pass(stream, x.rows, x.columns,
           CopyOperation<X, Y, width()>{ViewOf<const X>(x), ViewOf<Y>(y)});
    });
  });
}

void Convert(const device::Stream& stream, std::int64_t count, Dtype from_type, const void* from,
             Dtype to_type, void* to) {
  DispatchTwo(from_type, to_type, [&](auto source, auto target) {
    using X = decltype(source);
    using Y = decltype(target);
    WithWidth<Y>(OnVectorBoundary(from) && OnVectorBoundary(to), [&](auto width) {
      FlatPass(
          stream, count,
          CopyOperation<X, Y, width()>{{static_cast<const X*>(from), 0}, {static_cast<Y*>(to), 0}});
    });
  });
}

void Accumulate(const device::Stream& stream, Dtype dtype, std::int64_t count, const void* from,
                void* to) {
  Dispatch(dtype, [&](auto zero) {
    using T = decltype(zero);
    WithWidth<T>(OnVectorBoundary(from) && OnVectorBoundary(to), [&](auto width) {
      FlatPass(
          stream, count,
          AddOperation<T, width()>{{static_cast<const T*>(from), 0}, {static_cast<T*>(to), 0}});
    });
  });
}

// Dropout: overwrites out; reads x once.

namespace {

template <typename T, int kElements>
struct DropoutOperation {
  static constexpr int kWidth = kElements;
  View<const T> x;  // [rows, columns]
  DropoutPlace place;
  View<T> out;  // may be x

  __device__ void operator()(std::int64_t row, std::int64_t column) const {
    SumOf<T> values[kWidth];
    Load<kWidth>(x.At(row, column), values);
    if (place.Active()) {
      place.kept != nullptr ? place.Apply(place.KeptFrom(row, column), values)
                            : RowDropout(place, row).template Apply<kWidth>(column, values);
    }
    Store<kWidth>(values, out.At(row, column));
  }
};

}  // namespace

void DropoutForward(const device::Stream& stream, const Matrix& x, const Dropout& dropout,
                    const Matrix& out) {
  WithVectors(dropout, x.dtype, x.columns, {x, out}, [&](auto zero, auto width) {
    using T = decltype(zero);
    Pass(stream, x.rows, x.columns,
         DropoutOperation<T, width()>{ViewOf<const T>(x), DropoutPlace(dropout), ViewOf<T>(out)});
  });
}

// Rope: rotates the query and key heads of qkv in place.

namespace {

// Column c of the pass is pair c % half of head c / half.
template <typename T, int kElements>
struct RopeOperation {
  static constexpr int kWidth = kElements;
  View<const SumOf<T>> table;  // [all positions that occur, 2 half]: cosines, then sines
  DropoutPlace rows;           // used for positions only
  const std::int32_t* begins;  // [rows], or null
  unsigned half;
  SumOf<T> direction;  // 1, or -1 to rotate back
  View<T> qkv;         // [rows, >= 2 half (heads + kv_heads)]

  __device__ __forceinline__ void operator()(std::int64_t row, std::int64_t column) const {
    const auto pair = static_cast<unsigned>(column);
    const unsigned head = pair / half, i = pair - head * half;
    const std::uint32_t begin = begins == nullptr ? 0 : static_cast<std::uint32_t>(begins[row]);
    const SumOf<T>* angle = table.At(rows.PositionOf(row) - begin, i);
    SumOf<T> cosine[kWidth], sine[kWidth], a[kWidth], b[kWidth];
    LoadConstant<kWidth>(angle, cosine);
    LoadConstant<kWidth>(angle + half, sine);
    T* low = qkv.At(row, std::int64_t{2} * half * head + i);
    Load<kWidth>(low, a);
    Load<kWidth>(low + half, b);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const SumOf<T> s = direction * sine[k], x = a[k], y = b[k];
      a[k] = x * cosine[k] - y * s;
      b[k] = x * s + y * cosine[k];
    }
    Store<kWidth>(a, low);
    Store<kWidth>(b, low + half);
  }
};

}  // namespace

void Rope(const device::Stream& stream, const AttentionShape& shape, const Matrix& table,
          bool inverse, const Matrix& qkv) {
  const std::int64_t half = shape.head_dim / 2;
  Dropout rows;
  rows.length = shape.length;
  rows.positions = shape.positions;
  WithVectors(qkv.dtype, half, {table, qkv}, [&](auto zero, auto width) {
    using T = decltype(zero);
    Pass(stream, qkv.rows, (shape.heads + shape.kv_heads) * half,
         RopeOperation<T, width()>{ViewOf<const SumOf<T>>(table), DropoutPlace(rows), shape.begins,
                                   static_cast<unsigned>(half),
                                   inverse ? SumOf<T>(-1) : SumOf<T>(1), ViewOf<T>(qkv)});
  });
}

}  // namespace trireme::kernels::cuda
