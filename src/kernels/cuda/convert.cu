// convert: Copy and Convert overwrite y, rounded to nearest if its type is the narrower one;
// Accumulate adds to it.
#include "backends.hpp"
#include "vector_pass.cuh"

namespace trireme::kernels::cuda {

namespace {

// to[0, kWidth) = from[0, kWidth): the same bits if the types agree, NaNs too.
template <int kWidth, typename X, typename Y>
__device__ __forceinline__ void ConvertPack(const X* from, Y* to) {
  if constexpr (std::is_same_v<X, Y>) {
    StoreGlobal(LoadPack<kWidth>(from), to);
  } else {
    SumOf<X> values[kWidth];
    Load<kWidth>(from, values);
    SumOf<Y> rounded[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) rounded[i] = static_cast<SumOf<Y>>(values[i]);
    Store<kWidth>(rounded, to);
  }
}

template <typename X, typename Y, int kElements>
struct CopyOperation {
  static constexpr int kWidth = kElements;
  View<const X> x;  // [rows, columns]
  View<Y> y;        // [rows, columns]

  __device__ __forceinline__ void operator()(std::int64_t row, std::int64_t column) const {
    ConvertPack<kWidth>(x.At(row, column), y.At(row, column));
  }
};

template <typename X, typename Y, int kElements>
struct ConvertOperation {
  static constexpr int kWidth = kElements;
  const X* from;  // [count]
  Y* to;          // [count]

  template <int kCount>
  __device__ __forceinline__ void Run(std::int64_t index) const {
    ConvertPack<kCount>(from + index, to + index);
  }
};

template <typename T, int kElements>
struct AccumulateOperation {
  static constexpr int kWidth = kElements;
  const T* from;  // [count]
  T* to;          // [count]

  template <int kCount>
  __device__ __forceinline__ void Run(std::int64_t index) const {
    SumOf<T> a[kCount], b[kCount];
    Load<kCount>(from + index, a);
    Load<kCount>(to + index, b);
#pragma unroll
    for (int i = 0; i < kCount; ++i) b[i] += a[i];
    Store<kCount>(b, to + index);
  }
};

// Widths are those of the written type: a thread then stores 16 bytes at once, and a warp's stores
// fill whole lines.
template <typename Body>
void DispatchTwo(Dtype x, Dtype y, Body body) {
  Dispatch(x, [&](auto from) { Dispatch(y, [&](auto to) { body(from, to); }); });
}

}  // namespace

void Copy(const device::Stream& stream, const Matrix& x, const Matrix& y) {
  DispatchTwo(x.dtype, y.dtype, [&](auto from, auto to) {
    using X = decltype(from);
    using Y = decltype(to);
    WithWidth<Y>(AllowVectors<Y>(x.columns, x, y), [&](auto width) {
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
      FlatPass(stream, count,
               ConvertOperation<X, Y, width()>{static_cast<const X*>(from), static_cast<Y*>(to)});
    });
  });
}

void Accumulate(const device::Stream& stream, Dtype dtype, std::int64_t count, const void* from,
                void* to) {
  Dispatch(dtype, [&](auto zero) {
    using T = decltype(zero);
    WithWidth<T>(OnVectorBoundary(from) && OnVectorBoundary(to), [&](auto width) {
      FlatPass(stream, count,
               AccumulateOperation<T, width()>{static_cast<const T*>(from), static_cast<T*>(to)});
    });
  });
}

}  // namespace trireme::kernels::cuda
