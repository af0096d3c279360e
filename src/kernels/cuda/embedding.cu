// embedding: EmbeddingForward overwrites out, PositionForward changes x.
#include "backends.hpp"
#include "dropout.cuh"
#include "vector_pass.cuh"

namespace trireme::kernels::cuda {

namespace {

template <typename T, int kElements>
struct EmbeddingOperation {
  static constexpr int kWidth = kElements;
  const std::int32_t* tokens;  // [rows]
  std::int64_t first, count;   // the slice of the vocabulary
  View<const T> weight;        // [count, dim]
  SumOf<T> scale;
  View<T> out;  // [rows, dim]

  __device__ __forceinline__ void operator()(std::int64_t row, std::int64_t column) const {
    const std::int64_t at = tokens[row] - first;
    SumOf<T> values[kWidth] = {};
    if (at >= 0 && at < count) {
      LoadConstant<kWidth>(weight.At(at, column), values);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) values[i] *= scale;
    }
    Store<kWidth>(values, out.At(row, column));
  }
};

template <typename T, int kElements>
struct PositionOperation {
  static constexpr int kWidth = kElements;
  View<const T> positions;  // [> last position, dim], or null
  DropoutPlace place;
  const std::int32_t* begins;  // [rows of the matrix], or null
  View<T> x;                   // [rows, dim]

  __device__ __forceinline__ void operator()(std::int64_t row, std::int64_t column) const {
    SumOf<T> values[kWidth];
    Load<kWidth>(x.At(row, column), values);
    if (positions.data != nullptr) {
      SumOf<T> add[kWidth];
      const std::uint32_t begin = begins == nullptr ? 0 : static_cast<std::uint32_t>(begins[row]);
      LoadConstant<kWidth>(positions.At(place.PositionOf(row) - begin, column), add);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) values[i] += add[i];
    }
    if (place.Active()) RowDropout(place, row).template Apply<kWidth>(column, values);
    Store<kWidth>(values, x.At(row, column));
  }
};

}  // namespace

void EmbeddingForward(const device::Stream& stream, const std::int32_t* tokens, std::int32_t first,
                      const Matrix& weight, double scale, const Matrix& out) {
  Dispatch(out.dtype, [&](auto zero) {
    using T = decltype(zero);
    WithWidth<T>(AllowVectors<T>(out.columns, weight, out), [&](auto width) {
      Pass(stream, out.rows, out.columns,
           EmbeddingOperation<T, width()>{tokens, first, weight.rows, ViewOf<const T>(weight),
                                          static_cast<SumOf<T>>(scale), ViewOf<T>(out)});
    });
  });
}

void PositionForward(const device::Stream& stream, const Matrix& positions,
                     const std::int32_t* begins, const Dropout& dropout, const Matrix& x) {
  if (positions.Empty() && !dropout.Active()) return;
  Dispatch(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    WithWidth<T>(
        AllowVectors<T>(x.columns, positions, x) && AllowVectors<T>(dropout), [&](auto width) {
          Pass(stream, x.rows, x.columns,
               PositionOperation<T, width()>{
                   ViewOf<const T>(positions), DropoutPlace(dropout),
                   begins == nullptr ? nullptr : begins + dropout.first_row, ViewOf<T>(x)});
        });
  });
}

}  // namespace trireme::kernels::cuda
