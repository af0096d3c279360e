// update: values and moments are updated in place, gradients only read; sums are added to.
#include "trireme/kernels/update.hpp"

#include <algorithm>
#include <array>
#include <bit>
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

// Squares by their exponents: what ExactSum does, with one place a term instead of three.
struct SquareBins {
  static constexpr std::int64_t kMostTerms = 1 << 20;  // sums of halves stay exact in a double
  static constexpr int kExponents = 2048;
  struct Bin {
    std::uint64_t low = 0, high = 0;  // sums of the lower 32 and the upper 21 bits of mantissas
  };
  std::array<Bin, kExponents> bins{};

  template <typename T>
  void Add(const T* values, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
      const double square = static_cast<double>(values[i]) * static_cast<double>(values[i]);
      const auto bits = std::bit_cast<std::uint64_t>(square);
      const std::uint64_t exponent = bits >> 52 & 0x7FF;
      Bin& bin = bins[exponent];
      bin.low += bits & 0xFFFFFFFF;
      bin.high += (bits >> 32 & 0xFFFFF) | std::uint64_t{exponent != 0} << 20;
    }
  }
  // All but what is not finite; true where there was such a term.
  bool MoveTo(ExactSum& sum) const {
    for (int exponent = 0; exponent < kExponents - 1; ++exponent) {
      const Bin& bin = bins[static_cast<std::size_t>(exponent)];
      if ((bin.low | bin.high) == 0) continue;
      const int unit = std::max(exponent, 1) - 1075;
      sum.Add(std::ldexp(static_cast<double>(bin.low), unit));
      sum.Add(std::ldexp(static_cast<double>(bin.high), unit + 32));
    }
    return (bins.back().low | bins.back().high) != 0;
  }
};

template <typename T>
void AddSquares(const T* values, std::int64_t n, ExactSum& sum) {
  constexpr std::int64_t kFew = 2048;  // emptying the bins costs more
  const auto add = [&](bool finite_too) {
    for (std::int64_t i = 0; i < n; ++i) {
      const double square = static_cast<double>(values[i]) * static_cast<double>(values[i]);
      if (finite_too || !std::isfinite(square)) sum.Add(square);
    }
  };
  if (n < kFew) return add(true);
  SquareBins bins;
  bins.Add(values, n);
  if (bins.MoveTo(sum)) add(false);
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

void ExactSquareSum(const device::Stream& stream, Dtype dtype, std::int64_t count,
                    const void* values, ExactSum& sum) {
  DispatchDtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    // As few blocks as the threads and the bins allow.
    const std::int64_t share = (count + stream.threads - 1) / stream.threads;
    const std::int64_t block = std::clamp<std::int64_t>(share, 1, SquareBins::kMostTerms);
#pragma omp parallel num_threads(stream.threads)
    {
      ExactSum own;
#pragma omp for schedule(static)
      for (std::int64_t begin = 0; begin < count; begin += block) {
        AddSquares(static_cast<const T*>(values) + begin, std::min(block, count - begin), own);
      }
#pragma omp critical(trireme_exact_square_sum)
      sum.Add(own);
    }
  });
}

void Accumulate(const device::Stream& stream, Dtype dtype, std::int64_t count, const void* from,
                void* to) {
  DispatchDtype(dtype, [&](auto zero) {
    using T = decltype(zero);
#pragma omp parallel for num_threads(stream.threads) schedule(static)
    for (std::int64_t begin = 0; begin < count; begin += kChunk) {
      rows::Axpy(T(1), static_cast<const T*>(from) + begin, static_cast<T*>(to) + begin,
                 std::min(kChunk, count - begin));
    }
  });
}

}  // namespace trireme::kernels
