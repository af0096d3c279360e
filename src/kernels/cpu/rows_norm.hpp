// Norms on one contiguous row: forward, backward, and both in one pass with the operations before
// the norm (bias, dropout, residual).
#ifndef TRIREME_SRC_KERNELS_CPU_ROWS_NORM_HPP_
#define TRIREME_SRC_KERNELS_CPU_ROWS_NORM_HPP_

#include <cmath>
#include <cstdint>

#include "rows.hpp"

namespace trireme::kernels::rows {

// y = (x - mean) * rstd * weight + bias; bias may be null.
void Normalize(const float* x, float mean, float rstd, const float* weight, const float* bias,
               float* y, std::int64_t n);
void Normalize(const double* x, double mean, double rstd, const double* weight, const double* bias,
               double* y, std::int64_t n);

// 1 / sqrt(mean of (x - mean)^2 + epsilon).
template <typename T>
T ReciprocalDeviation(const T* x, std::int64_t n, T mean, double epsilon) {
  return static_cast<T>(1.0 /
                        std::sqrt(SquaredDeviation(x, n, mean) / static_cast<double>(n) + epsilon));
}

// dx = gradient of the input, or dx += it.
void NormGradient(const float* dy, const float* x, const float* weight, float mean, float rstd,
                  bool centred, bool accumulate, float* dx, std::int64_t n);
void NormGradient(const double* dy, const double* x, const double* weight, double mean, double rstd,
                  bool centred, bool accumulate, double* dx, std::int64_t n);

// dweight += dy * (x - mean) * rstd, dbias += dy.
void NormWeightTerm(const float* dy, const float* x, float mean, float rstd, float* dweight,
                    float* dbias, std::int64_t n);
void NormWeightTerm(const double* dy, const double* x, double mean, double rstd, double* dweight,
                    double* dbias, std::int64_t n);

// sum = residual + mask(branch + bias); bias may be null; sum may be residual or branch.
void ResidualSum(const float* residual, const float* branch, const float* bias,
                 const RowLanes& lanes, float* sum, std::int64_t n);
void ResidualSum(const double* residual, const double* branch, const double* bias,
                 const RowLanes& lanes, double* sum, std::int64_t n);

// One row of kernels::NormBackwardPass: with g = dy + more, dx = residual + gradient of the input,
// dbranch = mask(dx), dweight += and dbias += as NormWeightTerm. Null: more, residual, dbranch,
// dweight and dbias (both or none).
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

#endif  // TRIREME_SRC_KERNELS_CPU_ROWS_NORM_HPP_
