// Activations on one row, forward and backward.
#include "clones.hpp"
#include "fast_math.hpp"
#include "rows.hpp"

namespace trireme::kernels::rows {

namespace {

// GELU, tanh form: 0.5 x (1 + tanh(u)), u = sqrt(2 / pi) (x + 0.044715 x^3). Written as
// x sigmoid(2u), which is the same and does not cancel in the negative tail.
constexpr double kGeluScale = 0.79788456080286535588;
constexpr double kGeluCubic = 0.044715;

template <typename T>
[[gnu::always_inline]] inline void BiasReluOf(T* pre, const T* bias, T* out, std::int64_t n) {
  if (bias != nullptr) {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) pre[i] += bias[i];
  }
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) out[i] = pre[i] < T(0) ? T(0) : pre[i];
}

template <typename T>
[[gnu::always_inline]] inline void BiasGeluOf(T* pre, const T* bias, T* out, std::int64_t n) {
  if (bias != nullptr) {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) pre[i] += bias[i];
  }
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const T x = pre[i];
    out[i] = x * Sigmoid(T(2 * kGeluScale) * (x + T(kGeluCubic) * x * x * x));
  }
}

template <typename T>
[[gnu::always_inline]] inline void GeluGradientOf(const T* pre, const T* dout, T* d,
                                                  std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const T x = pre[i];
    const T s = Sigmoid(T(2 * kGeluScale) * (x + T(kGeluCubic) * x * x * x));
    const T slope = T(2 * kGeluScale) * (T(1) + T(3 * kGeluCubic) * x * x);
    d[i] = dout[i] * (s + x * s * (T(1) - s) * slope);
  }
}

template <typename T>
[[gnu::always_inline]] inline void SwigluOf(const T* gate, const T* up, T* out, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) out[i] = gate[i] * Sigmoid(gate[i]) * up[i];
}

template <typename T>
[[gnu::always_inline]] inline void SwigluGradientOf(const T* gate, const T* up, const T* dout,
                                                    T* dgate, T* dup, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const T g = gate[i], u = up[i], d = dout[i];
    const T sigmoid = Sigmoid(g);
    dgate[i] = d * u * sigmoid * (T(1) + g * (T(1) - sigmoid));
    dup[i] = d * g * sigmoid;
  }
}

}  // namespace

TRIREME_CLONES void BiasRelu(float* pre, const float* bias, float* out, std::int64_t n) {
  BiasReluOf(pre, bias, out, n);
}
void BiasRelu(double* pre, const double* bias, double* out, std::int64_t n) {
  BiasReluOf(pre, bias, out, n);
}

TRIREME_CLONES void BiasGelu(float* pre, const float* bias, float* out, std::int64_t n) {
  BiasGeluOf(pre, bias, out, n);
}
void BiasGelu(double* pre, const double* bias, double* out, std::int64_t n) {
  BiasGeluOf(pre, bias, out, n);
}

TRIREME_CLONES void GeluGradient(const float* pre, const float* dout, float* d, std::int64_t n) {
  GeluGradientOf(pre, dout, d, n);
}
void GeluGradient(const double* pre, const double* dout, double* d, std::int64_t n) {
  GeluGradientOf(pre, dout, d, n);
}

TRIREME_CLONES void Swiglu(const float* gate, const float* up, float* out, std::int64_t n) {
  SwigluOf(gate, up, out, n);
}
void Swiglu(const double* gate, const double* up, double* out, std::int64_t n) {
  SwigluOf(gate, up, out, n);
}

TRIREME_CLONES void SwigluGradient(const float* gate, const float* up, const float* dout,
                                   float* dgate, float* dup, std::int64_t n) {
  SwigluGradientOf(gate, up, dout, dgate, dup, n);
}
void SwigluGradient(const double* gate, const double* up, const double* dout, double* dgate,
                    double* dup, std::int64_t n) {
  SwigluGradientOf(gate, up, dout, dgate, dup, n);
}

}  // namespace trireme::kernels::rows
