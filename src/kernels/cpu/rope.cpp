// rope: rotates the query and key heads of qkv in place.
#include <cmath>
#include <vector>

#include "backends.hpp"
#include "trireme/kernels/attention.hpp"

namespace trireme::kernels {

void RopeTable(std::span<const double> frequencies, double magnitude, const Matrix& table) {
  DispatchDtype(table.dtype, [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t half = table.columns / 2;
    for (std::int64_t t = 0; t < table.rows; ++t) {
      T* row = table.As<T>() + t * table.stride;
      for (std::int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(t) * frequencies[static_cast<std::size_t>(i)];
        row[i] = static_cast<T>(magnitude * std::cos(angle));
        row[half + i] = static_cast<T>(magnitude * std::sin(angle));
      }
    }
  });
}

void RopeTable(double theta, const Matrix& table) {
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < table.columns / 2; ++i) {
    frequencies.push_back(
        std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(table.columns)));
  }
  RopeTable(frequencies, 1, table);
}

void cpu::Rope(const device::Stream& stream, const AttentionShape& shape,
               const Matrix& table, bool inverse, const Matrix& qkv) {
  DispatchDtype(qkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t half = shape.head_dim / 2;
    const T direction = inverse ? T(-1) : T(1);
#pragma omp parallel for num_threads(stream.threads) schedule(static)
    for (std::int64_t row = 0; row < qkv.rows; ++row) {
      const std::int64_t begin = shape.begins == nullptr ? 0 : shape.begins[row];
      const T* cosine =
          table.As<T>() + (shape.positions.At(row % shape.length) - begin) * table.stride;
      const T* sine = cosine + half;
      for (std::int64_t head = 0; head < shape.heads + shape.kv_heads; ++head) {
        T* low = qkv.As<T>() + row * qkv.stride + head * shape.head_dim;
        T* high = low + half;
#pragma omp simd
        for (std::int64_t i = 0; i < half; ++i) {
          const T a = low[i], b = high[i], s = direction * sine[i];
          low[i] = a * cosine[i] - b * s;
          high[i] = a * s + b * cosine[i];
        }
      }
    }
  });
}

}  // namespace trireme::kernels
