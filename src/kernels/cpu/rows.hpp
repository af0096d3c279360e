// Primitives on one contiguous row: the vectorised inner loops of all CPU kernels except products.
// float versions are compiled for several instruction sets; double versions serve verification.
#ifndef TRIREME_SRC_KERNELS_CPU_ROWS_HPP_
#define TRIREME_SRC_KERNELS_CPU_ROWS_HPP_

#include <cstdint>

#include "trireme/base/philox.hpp"

namespace trireme::kernels::rows {

// Sums are taken in blocks of this many elements in the row's own type and added up in fp64.
inline constexpr std::int64_t kSumBlock = 1024;

// max of x[0, n), n >= 1.
float Max(const float* x, std::int64_t n);
double Max(const double* x, std::int64_t n);

// x = exp(scale * x - shift) in place; returns the sum, added up in fp64 over blocks.
double ExpSum(float* x, std::int64_t n, float scale, float shift);
double ExpSum(double* x, std::int64_t n, double scale, double shift);

// Sum of x[0, n).
double Sum(const float* x, std::int64_t n);
double Sum(const double* x, std::int64_t n);

// sum of (x - mean)^2.
double SquaredDeviation(const float* x, std::int64_t n, float mean);
double SquaredDeviation(const double* x, std::int64_t n, double mean);

// Sum of the products x[i] y[i], i < n.
double Dot(const float* x, const float* y, std::int64_t n);
double Dot(const double* x, const double* y, std::int64_t n);

// y = a x + b, y += a x.
void Affine(const float* x, float a, float b, float* y, std::int64_t n);
void Affine(const double* x, double a, double b, double* y, std::int64_t n);
void Axpy(float a, const float* x, float* y, std::int64_t n);
void Axpy(double a, const double* x, double* y, std::int64_t n);

// sum += `count` rows of x, one after the other for each column.
void AddRows(const float* x, std::int64_t stride, std::int64_t count, float* sum, std::int64_t n);
void AddRows(const double* x, std::int64_t stride, std::int64_t count, double* sum, std::int64_t n);

// out = act(pre + bias) with pre += bias kept; bias may be null.
void BiasRelu(float* pre, const float* bias, float* out, std::int64_t n);
void BiasRelu(double* pre, const double* bias, double* out, std::int64_t n);
void BiasGelu(float* pre, const float* bias, float* out, std::int64_t n);
void BiasGelu(double* pre, const double* bias, double* out, std::int64_t n);
// d = dout * act'(pre).
void GeluGradient(const float* pre, const float* dout, float* d, std::int64_t n);
void GeluGradient(const double* pre, const double* dout, double* d, std::int64_t n);
// out = silu(gate) * up, and its two gradients.
void Swiglu(const float* gate, const float* up, float* out, std::int64_t n);
void Swiglu(const double* gate, const double* up, double* out, std::int64_t n);
void SwigluGradient(const float* gate, const float* up, const float* dout, float* dgate, float* dup,
                    std::int64_t n);
void SwigluGradient(const double* gate, const double* up, const double* dout, double* dgate,
                    double* dup, std::int64_t n);

// Fills lanes[0, 8 ceil(n / 8)) with the 16-bit lanes of Philox counters {c0 + i / 8, c1, c2, c3}:
// those of features 8 c0 .. 8 c0 + n - 1. `lanes` needs room for n rounded up to 8.
void PhiloxLanes(PhiloxKey key, std::uint32_t c0, std::uint32_t c1, std::uint32_t c2,
                 std::uint32_t c3, std::int64_t n, std::uint16_t* lanes);
// y = lanes >= threshold ? scale * x : 0; y may be x.
void Mask(const float* x, const std::uint16_t* lanes, std::uint32_t threshold, float scale,
          float* y, std::int64_t n);
void Mask(const double* x, const std::uint16_t* lanes, std::uint32_t threshold, double scale,
          double* y, std::int64_t n);
// Mask of the elements of a row; inactive: all are kept as they are.
struct RowLanes {
  const std::uint16_t* lanes = nullptr;
  std::uint32_t threshold = 0;
  double scale = 1;
  bool Active() const { return lanes != nullptr; }
};
template <typename T>
void Mask(const T* x, const RowLanes& by, T* y, std::int64_t n) {
  Mask(x, by.lanes, by.threshold, static_cast<T>(by.scale), y, n);
}

}  // namespace trireme::kernels::rows

#endif  // TRIREME_SRC_KERNELS_CPU_ROWS_HPP_
