// Operations on one contiguous row: the vectorised inner loops of all CPU kernels except products.
// The float versions are compiled for several instruction sets; double versions serve verification.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "trireme/base/philox.hpp"
#include "trireme/kernels/elementwise.hpp"

namespace trireme::kernels::rows {

// A sum adds blocks of this many elements in the row's type, and the blocks' sums in fp64.
inline constexpr std::int64_t kSumBlock = 1024;

// max of x[0, n), n >= 1.
float Max(const float* x, std::int64_t n);
double Max(const double* x, std::int64_t n);

// x = exp(scale * x - shift) in place; returns the sum of the results, blocks added up in fp64.
double ExpSum(float* x, std::int64_t n, float scale, float shift);
double ExpSum(double* x, std::int64_t n, double scale, double shift);

// Sum of x[0, n).
double Sum(const float* x, std::int64_t n);
double Sum(const double* x, std::int64_t n);

// Sum of (x - mean)^2.
double SquaredDeviation(const float* x, std::int64_t n, float mean);
double SquaredDeviation(const double* x, std::int64_t n, double mean);

// Sum of the products x[i] y[i], i < n.
double Dot(const float* x, const float* y, std::int64_t n);
double Dot(const double* x, const double* y, std::int64_t n);

// Affine: y = a x + b. Axpy: y += a x.
void Affine(const float* x, float a, float b, float* y, std::int64_t n);
void Affine(const double* x, double a, double b, double* y, std::int64_t n);
void Axpy(float a, const float* x, float* y, std::int64_t n);
void Axpy(double a, const double* x, double* y, std::int64_t n);

// sum += `count` rows of x, in order for each column.
void AddRows(const float* x, std::int64_t stride, std::int64_t count, float* sum, std::int64_t n);
void AddRows(const double* x, std::int64_t stride, std::int64_t count, double* sum, std::int64_t n);

// pre += bias (may be null), then out = act(pre).
void BiasRelu(float* pre, const float* bias, float* out, std::int64_t n);
void BiasRelu(double* pre, const double* bias, double* out, std::int64_t n);
void BiasGelu(float* pre, const float* bias, float* out, std::int64_t n);
void BiasGelu(double* pre, const double* bias, double* out, std::int64_t n);
// d = dout * act'(pre).
void GeluGradient(const float* pre, const float* dout, float* d, std::int64_t n);
void GeluGradient(const double* pre, const double* dout, double* d, std::int64_t n);
// out = silu(gate) * up, and the gradients of gate and up.
void Swiglu(const float* gate, const float* up, float* out, std::int64_t n);
void Swiglu(const double* gate, const double* up, double* out, std::int64_t n);
void SwigluGradient(const float* gate, const float* up, const float* dout, float* dgate, float* dup,
                    std::int64_t n);
void SwigluGradient(const double* gate, const double* up, const double* dout, double* dgate,
                    double* dup, std::int64_t n);

// Fills lanes[0, 8 ceil(n / 8)) with the 16-bit lanes of the Philox counters {c0 + i / 8, c1, c2,
// c3}, i.e. of features 8 c0 to 8 c0 + n - 1. `lanes` needs room for n rounded up to 8.
void PhiloxLanes(PhiloxKey key, std::uint32_t c0, std::uint32_t c1, std::uint32_t c2,
                 std::uint32_t c3, std::int64_t n, std::uint16_t* lanes);
// y = lanes >= threshold ? scale * x : 0; y may be x.
void Mask(const float* x, const std::uint16_t* lanes, std::uint32_t threshold, float scale,
          float* y, std::int64_t n);
void Mask(const double* x, const std::uint16_t* lanes, std::uint32_t threshold, double scale,
          double* y, std::int64_t n);
// Dropout mask of a row's elements; inactive: all elements are kept unchanged.
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

// Norms on one contiguous row: forward, backward, and fused with the operations before the norm
// (bias, dropout, residual).

// y = (x - mean) * rstd * weight + bias; bias may be null.
void Normalize(const float* x, float mean, float rstd, const float* weight, const float* bias,
               float* y, std::int64_t n);
void Normalize(const double* x, double mean, double rstd, const double* weight, const double* bias,
               double* y, std::int64_t n);

// 1 / sqrt(mean of (x - mean)^2, plus epsilon).
template <typename T>
T ReciprocalDeviation(const T* x, std::int64_t n, T mean, double epsilon) {
  return static_cast<T>(1.0 /
                        std::sqrt(SquaredDeviation(x, n, mean) / static_cast<double>(n) + epsilon));
}

// dweight += dy * (x - mean) * rstd, dbias += dy.
void NormWeightTerm(const float* dy, const float* x, float mean, float rstd, float* dweight,
                    float* dbias, std::int64_t n);
void NormWeightTerm(const double* dy, const double* x, double mean, double rstd, double* dweight,
                    double* dbias, std::int64_t n);

// sum = residual + dropout(branch + bias); bias may be null; sum may be residual or branch.
void ResidualSum(const float* residual, const float* branch, const float* bias,
                 const RowLanes& lanes, float* sum, std::int64_t n);
void ResidualSum(const double* residual, const double* branch, const double* bias,
                 const RowLanes& lanes, double* sum, std::int64_t n);

// One row of kernels::NormBackwardPass: with g = dy + more, dx = residual + gradient of the input,
// dbranch = dropout(dx), dweight and dbias as in NormWeightTerm. May be null: more, residual,
// dbranch, and dweight with dbias (both or neither).
template <typename T>
struct NormBackwardRow {
  const T *dy, *more, *x, *weight;
  T mean, rstd;
  bool centred;
  const T* residual;
  RowLanes lanes;
  T *dx, *dbranch, *dweight, *dbias;
  std::int64_t n;
};
void NormBackward(const NormBackwardRow<float>& row);
void NormBackward(const NormBackwardRow<double>& row);

}  // namespace trireme::kernels::rows

namespace trireme::kernels {

// A thread's scratch, which grows to the largest use and stays: the step loop allocates nothing.

inline constexpr std::int64_t kPage = 4096;  // alignment of a thread's scratch, bytes

// `count` uninitialised elements, page-aligned, valid until this thread calls it again with the
// same Use (a type that names the purpose).
template <typename Use, typename T>
T* ThreadScratch(std::int64_t count) {
  struct Free {
    void operator()(T* data) const { ::operator delete[](data, std::align_val_t{kPage}); }
  };
  thread_local std::unique_ptr<T[], Free> memory;
  thread_local std::int64_t room = 0;
  if (count > room) {
    room = 0;
    memory.reset(static_cast<T*>(
        ::operator new[](static_cast<std::size_t>(count) * sizeof(T), std::align_val_t{kPage})));
    room = count;
  }
  return memory.get();
}

// A thread's mask generator: the dropout lanes of one row at a time.

class RowMask {
 public:
  // For rows of up to `features` columns. Inactive dropout changes nothing.
  RowMask(const Dropout& dropout, std::int64_t features)
      : dropout_(dropout),
        key_(MakeKey(dropout.seed, dropout.purpose, dropout.layer, dropout.site)),
        threshold_(dropout.Threshold()),
        scale_(dropout.Scale()),
        room_(features + 2 * kLanes) {}

  // Lanes of row `row` of the matrix, valid until this thread's next call on any mask.
  rows::RowLanes Lanes(std::int64_t row, std::int64_t n) const {
    if (!Active()) return {};
    const std::int64_t global = dropout_.first_row + row;
    return Lanes(dropout_.ordinals[global / dropout_.length], dropout_.PositionOf(row), n);
  }
  // y = dropout of row `row`, x; y may be x. Only if Active().
  template <typename T>
  void Apply(std::int64_t row, const T* x, T* y, std::int64_t n) const {
    rows::Mask(x, Lanes(row, n), y, n);
  }
  // The same for the row at `position` in its sequence, of the sample `ordinal`.
  template <typename T>
  void Apply(std::uint64_t ordinal, std::int64_t position, const T* x, T* y, std::int64_t n) const {
    rows::Mask(x, Lanes(ordinal, position, n), y, n);
  }
  bool Active() const { return threshold_ > 0; }

 private:
  rows::RowLanes Lanes(std::uint64_t ordinal, std::int64_t position, std::int64_t n) const {
    // A slice may begin within a counter's lanes: draws from the counter's first lane on.
    const std::int64_t skipped = dropout_.first_feature % kLanes;
    auto* lanes = ThreadScratch<RowMask, std::uint16_t>(room_);
    rows::PhiloxLanes(key_, static_cast<std::uint32_t>(dropout_.first_feature / kLanes),
                      static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(ordinal),
                      static_cast<std::uint32_t>(ordinal >> 32), skipped + n, lanes);
    return {lanes + skipped, threshold_, scale_};
  }

  static constexpr std::int64_t kLanes = 8;  // features per Philox counter
  Dropout dropout_;
  PhiloxKey key_;
  std::uint32_t threshold_;
  double scale_;
  std::int64_t room_;  // elements that a row's lanes may take
};

// Row `row` of a matrix; null if it is Empty().
template <typename T>
T* RowOf(const Matrix& x, std::int64_t row) {
  return x.Empty() ? nullptr : x.As<T>() + row * x.stride;
}

// Calls body(T{}, row), T being the C++ type of `dtype`, for all rows, on the stream's threads.
template <typename Body>
void EachRow(const device::Stream& stream, Dtype dtype, std::int64_t rows, const Body& body) {
  DispatchDtype(dtype, [&](auto zero) {
#pragma omp parallel for num_threads(stream.threads) schedule(static)
    for (std::int64_t row = 0; row < rows; ++row) body(zero, row);
  });
}
// The same for the rows of x: calls body(T{}, row, mask) with a mask generator per thread.
template <typename Body>
void EachMaskedRow(const device::Stream& stream, const Matrix& x, const Dropout& dropout,
                   const Body& body) {
  DispatchDtype(x.dtype, [&](auto zero) {
#pragma omp parallel num_threads(stream.threads)
    {
      const RowMask mask(dropout, x.columns);
#pragma omp for schedule(static)
      for (std::int64_t row = 0; row < x.rows; ++row) body(zero, row, mask);
    }
  });
}

}  // namespace trireme::kernels
