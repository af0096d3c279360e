// dropout: overwrites out; x is read once.
#include "backends.hpp"
#include "dropout.cuh"
#include "vector_pass.cuh"

namespace trireme::kernels::cuda {

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
    if (place.Active()) RowDropout(place, row).template Apply<kWidth>(column, values);
    Store<kWidth>(values, out.At(row, column));
  }
};

}  // namespace

void DropoutForward(const device::Stream& stream, const Matrix& x, const Dropout& dropout,
                    const Matrix& out) {
  Dispatch(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    WithWidth<T>(AllowVectors<T>(x.columns, x, out) && AllowVectors<T>(dropout), [&](auto width) {
      Pass(stream, x.rows, x.columns,
           DropoutOperation<T, width()>{ViewOf<const T>(x), DropoutPlace(dropout), ViewOf<T>(out)});
    });
  });
}

}  // namespace trireme::kernels::cuda
