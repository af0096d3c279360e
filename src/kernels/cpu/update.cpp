// update: values and moments are updated in place, gradients only read.
#include "trireme/kernels/update.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "clones.hpp"
#include "rows.hpp"

namespace trireme::kernels {

namespace {

constexpr std::int64_t kChunk = 8192;  // elements a task: two pages of each of four fp32 arrays

template <typename T>
[[gnu::always_inline]] inline void AdamWOf(std::int64_t n, const UpdateScalars& s, double decay,
                                           const T* gradients, T* values, T* first, T* second) {
  const T beta1 = T(s.beta1), beta2 = T(s.beta2), rest1 = T(1 - s.beta1), rest2 = T(1 - s.beta2);
  const T scale = T(s.gradient_scale), rate = T(s.learning_rate / s.correction1);
  const T root = T(1 / std::sqrt(s.correction2)), epsilon = T(s.epsilon);
  const T keep = T(1 - s.learning_rate * decay);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const T g = gradients[i] * scale;
    const T m = beta1 * first[i] + rest1 * g;
    const T v = beta2 * second[i] + rest2 * g * g;
    first[i] = m;
    second[i] = v;
    values[i] = keep * values[i] - rate * m / (std::sqrt(v) * root + epsilon);
  }
}
TRIREME_CLONES void AdamWRow(std::int64_t n, const UpdateScalars& s, double decay,
                             const float* gradients, float* values, float* first, float* second) {
  AdamWOf(n, s, decay, gradients, values, first, second);
}
void AdamWRow(std::int64_t n, const UpdateScalars& s, double decay, const double* gradients,
              double* values, double* first, double* second) {
  AdamWOf(n, s, decay, gradients, values, first, second);
}

}  // namespace

void AdamW(const device::Stream& stream, Dtype dtype, std::int64_t count,
           const UpdateScalars* scalars, double decay, const void* gradients, void* values,
           void* first, void* second) {
  DispatchDtype(dtype, [&](auto zero) {
    using T = decltype(zero);
#pragma omp parallel for num_threads(stream.threads) schedule(static)
    for (std::int64_t begin = 0; begin < count; begin += kChunk) {
      AdamWRow(std::min(kChunk, count - begin), *scalars, decay,
               static_cast<const T*>(gradients) + begin, static_cast<T*>(values) + begin,
               static_cast<T*>(first) + begin, static_cast<T*>(second) + begin);
    }
  });
}

void GradientDescent(const device::Stream& stream, Dtype dtype, std::int64_t count,
                     const UpdateScalars* scalars, double decay, const void* gradients,
                     void* values) {
  DispatchDtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    const T scale = T(scalars->learning_rate * scalars->gradient_scale);
    const T keep = T(1 - scalars->learning_rate * decay);
    const T* g = static_cast<const T*>(gradients);
    T* w = static_cast<T*>(values);
#pragma omp parallel for simd num_threads(stream.threads) schedule(static)
    for (std::int64_t i = 0; i < count; ++i) w[i] = keep * w[i] - scale * g[i];
  });
}

double SquareSum(const device::Stream& stream, Dtype dtype, std::int64_t count,
                 const void* values) {
  return DispatchDtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t blocks = (count + kChunk - 1) / kChunk;
    std::vector<double> partial(static_cast<std::size_t>(blocks));
#pragma omp parallel for num_threads(stream.threads) schedule(static)
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t begin = block * kChunk;
      partial[static_cast<std::size_t>(block)] = rows::SquaredDeviation(
          static_cast<const T*>(values) + begin, std::min(kChunk, count - begin), T(0));
    }
    double sum = 0;
    for (double part : partial) sum += part;
    return sum;
  });
}

}  // namespace trireme::kernels
