// elementwise: AddBias and Add accumulate; ResidualForward and Clear overwrite.
#include "backends.hpp"
#include "dropout.cuh"
#include "vector_pass.cuh"

namespace trireme::kernels::cuda {

namespace {

// y += x; x may be one row for all (stride 0).
template <typename T, int kElements>
struct AddOperation {
  static constexpr int kWidth = kElements;
  View<const T> x;  // [rows or 1, columns]
  View<T> y;        // [rows, columns]

  __device__ __forceinline__ void operator()(std::int64_t row, std::int64_t column) const {
    SumOf<T> a[kWidth], b[kWidth];
    Load<kWidth>(x.At(row, column), a);
    Load<kWidth>(y.At(row, column), b);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) b[i] += a[i];
    Store<kWidth>(b, y.At(row, column));
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
    if (bias != nullptr) {
      SumOf<T> add[kWidth];
      LoadConstant<kWidth>(bias + column, add);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) b[i] += add[i];
    }
    if (place.Active()) RowDropout(place, row).template Apply<kWidth>(column, b);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum[i] += b[i];
    Store<kWidth>(sum, out.At(row, column));
  }
};

template <typename T, int kElements>
struct ClearOperation {
  static constexpr int kWidth = kElements;
  View<T> x;  // [rows, columns]

  __device__ __forceinline__ void operator()(std::int64_t row, std::int64_t column) const {
    const SumOf<T> zeros[kWidth] = {};
    Store<kWidth>(zeros, x.At(row, column));
  }
};

}  // namespace

void AddBias(const device::Stream& stream, const Matrix& x, const Matrix& bias) {
  Dispatch(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    WithWidth<T>(AllowVectors<T>(x.columns, x, bias), [&](auto width) {
      Pass(stream, x.rows, x.columns,
           AddOperation<T, width()>{{bias.As<const T>(), 0}, ViewOf<T>(x)});
    });
  });
}

void Add(const device::Stream& stream, const Matrix& x, const Matrix& y) {
  Dispatch(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    WithWidth<T>(AllowVectors<T>(x.columns, x, y), [&](auto width) {
      Pass(stream, x.rows, x.columns, AddOperation<T, width()>{ViewOf<const T>(x), ViewOf<T>(y)});
    });
  });
}

void ResidualForward(const device::Stream& stream, const Matrix& residual,
                     const Matrix& branch, const Matrix& bias,
                     const Dropout& dropout, const Matrix& out) {
  Dispatch(out.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool vectors =
        AllowVectors<T>(out.columns, residual, branch, bias, out) && AllowVectors<T>(dropout);
    WithWidth<T>(vectors, [&](auto width) {
      Pass(
          stream, out.rows, out.columns,
          ResidualOperation<T, width()>{ViewOf<const T>(residual), ViewOf<const T>(branch),
                                        bias.As<const T>(), DropoutPlace(dropout), ViewOf<T>(out)});
    });
  });
}

void Clear(const device::Stream& stream, const Matrix& x) {
  Dispatch(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    WithWidth<T>(AllowVectors<T>(x.columns, x), [&](auto width) {
      Pass(stream, x.rows, x.columns, ClearOperation<T, width()>{ViewOf<T>(x)});
    });
  });
}

}  // namespace trireme::kernels::cuda
