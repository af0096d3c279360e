// rope: rotates the query and key heads of qkv in place.
#include "backends.hpp"
#include "dropout.cuh"
#include "vector_pass.cuh"

namespace trireme::kernels::cuda {

namespace {

// Column c of the pass is pair c % half of head c / half.
template <typename T, int kElements>
struct RopeOperation {
  static constexpr int kWidth = kElements;
  View<const SumOf<T>> table;  // [> last position, 2 half]: cosines, then sines
  DropoutPlace rows;           // for the positions of rows only
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
  Dispatch(qkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t half = shape.head_dim / 2;
    Dropout rows;
    rows.length = shape.length;
    rows.positions = shape.positions;
    WithWidth<T>(AllowVectors<T>(half, table, qkv), [&](auto width) {
      Pass(stream, qkv.rows, (shape.heads + shape.kv_heads) * half,
           RopeOperation<T, width()>{ViewOf<const SumOf<T>>(table), DropoutPlace(rows),
                                     shape.begins, static_cast<unsigned>(half),
                                     inverse ? SumOf<T>(-1) : SumOf<T>(1), ViewOf<T>(qkv)});
    });
  });
}

}  // namespace trireme::kernels::cuda
