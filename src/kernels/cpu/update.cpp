// Updates of the weights: values and moments are updated in place; gradients are read and, on
// request, cleared; sums are added up.
#include "trireme/kernels/update.hpp"
#include "backends.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "rows.hpp"

namespace trireme::kernels {

namespace {

constexpr std::int64_t kChunk = 8192;  // elements per task: two pages of each of four fp32 arrays

template <typename T>
[[gnu::always_inline]] inline void AdamWRow(std::int64_t n, const UpdateScalars& s,
                                            const UpdateRange& range, bool clear, T* gradients,
                                            T* values, T* first, T* second) {
  const double learning_rate = s.learning_rate * range.rate;
  const T beta1 = T(s.beta1), beta2 = T(s.beta2), rest1 = T(1 - s.beta1), rest2 = T(1 - s.beta2);
  const T scale = T(s.gradient_scale), rate = T(learning_rate / s.correction1);
  const T root = T(1 / std::sqrt(s.correction2)), epsilon = T(s.epsilon);
  const T keep = T(1 - learning_rate * range.decay);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const T g = gradients[i] * scale;
    const T m = beta1 * first[i] + rest1 * g;
    const T v = beta2 * second[i] + rest2 * g * g;
    first[i] = m;
    second[i] = v;
    values[i] = keep * values[i] - rate * m / (std::sqrt(v) * root + epsilon);
  }
  if (clear) std::fill_n(gradients, n, T(0));  // the chunk is still in the cache
}
TRIREME_CLONES void AdamWRow(std::int64_t n, const UpdateScalars& s, const UpdateRange& range,
                             bool clear, float* gradients, float* values, float* first,
                             float* second) {
  AdamWRow<float>(n, s, range, clear, gradients, values, first, second);
}

template <typename T>
[[gnu::always_inline]] inline void LionRow(std::int64_t n, const UpdateScalars& s,
                                           const UpdateRange& range, bool clear, T* gradients,
                                           T* values, T* first) {
  const double learning_rate = s.learning_rate * range.rate;
  const T beta1 = T(s.beta1), beta2 = T(s.beta2), rest1 = T(1 - s.beta1), rest2 = T(1 - s.beta2);
  const T scale = T(s.gradient_scale), rate = T(learning_rate);
  const T keep = T(1 - learning_rate * range.decay);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const T g = gradients[i] * scale;
    const T ahead = beta1 * first[i] + rest1 * g;
    first[i] = beta2 * first[i] + rest2 * g;
    values[i] = keep * values[i] - rate * T((ahead > 0) - (ahead < 0));
  }
  if (clear) std::fill_n(gradients, n, T(0));
}
TRIREME_CLONES void LionRow(std::int64_t n, const UpdateScalars& s, const UpdateRange& range,
                            bool clear, float* gradients, float* values, float* first) {
  LionRow<float>(n, s, range, clear, gradients, values, first);
}

// The factor of a range's gradients.
double ScaleOf(const UpdateRange& range) {
  const bool divided = range.squares != nullptr && *range.squares != 0;
  return divided ? range.scale / std::sqrt(*range.squares) : range.scale;
}

template <typename T>
[[gnu::always_inline]] inline void DescentRow(std::int64_t n, const UpdateScalars& s,
                                              const UpdateRange& range, bool clear, T* gradients,
                                              T* values) {
  const T scale = T(s.learning_rate * range.rate * s.gradient_scale * ScaleOf(range));
  const T keep = T(1 - s.learning_rate * range.rate * range.decay);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) values[i] = keep * values[i] - scale * gradients[i];
  if (clear) std::fill_n(gradients, n, T(0));
}
TRIREME_CLONES void DescentRow(std::int64_t n, const UpdateScalars& s, const UpdateRange& range,
                               bool clear, float* gradients, float* values) {
  DescentRow<float>(n, s, range, clear, gradients, values);
}

// Calls visit(range, begin, size) for the chunks of all ranges, in one parallel region.
template <typename Range, typename Visit>
void EachChunk(const device::Stream& stream, std::span<const Range> ranges, Visit visit) {
#pragma omp parallel num_threads(stream.threads)
  for (const Range& range : ranges) {
#pragma omp for schedule(static) nowait
    for (std::int64_t begin = 0; begin < range.count; begin += kChunk) {
      visit(range, begin, std::min(kChunk, range.count - begin));
    }
  }
}

// Sums squares by exponent, like ExactSum, but with one memory access per term instead of three.
struct SquareBins {
  static constexpr std::int64_t kMostTerms = 1 << 20;  // per bin, so that its sums stay exact
  static constexpr int kExponents = 2048;
  struct Bin {
    std::uint64_t low = 0, high = 0;  // sums of the mantissas' lower 32 and upper 21 bits
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
  // Adds the finite terms to `sum`. Returns true if a term was not finite.
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
  constexpr std::int64_t kFew = 2048;  // for fewer values, emptying the bins would cost more
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

void cpu::AdamW(const device::Stream& stream, Dtype dtype, std::span<const UpdateRange> ranges,
                const UpdateScalars* scalars, bool clear) {
  DispatchDtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    EachChunk(stream, ranges, [&](const UpdateRange& r, std::int64_t begin, std::int64_t size) {
      AdamWRow(size, *scalars, r, clear, static_cast<T*>(r.gradients) + begin,
               static_cast<T*>(r.values) + begin, static_cast<T*>(r.first) + begin,
               static_cast<T*>(r.second) + begin);
    });
  });
}

void cpu::Lion(const device::Stream& stream, Dtype dtype, std::span<const UpdateRange> ranges,
               const UpdateScalars* scalars, bool clear) {
  DispatchDtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    EachChunk(stream, ranges, [&](const UpdateRange& r, std::int64_t begin, std::int64_t size) {
      LionRow(size, *scalars, r, clear, static_cast<T*>(r.gradients) + begin,
              static_cast<T*>(r.values) + begin, static_cast<T*>(r.first) + begin);
    });
  });
}

void cpu::GradientDescent(const device::Stream& stream, Dtype dtype,
                          std::span<const UpdateRange> ranges, const UpdateScalars* scalars,
                          bool clear) {
  DispatchDtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    EachChunk(stream, ranges, [&](const UpdateRange& r, std::int64_t begin, std::int64_t size) {
      DescentRow(size, *scalars, r, clear, static_cast<T*>(r.gradients) + begin,
                 static_cast<T*>(r.values) + begin);
    });
  });
}

double cpu::SquareSum(const device::Stream& stream, Dtype dtype,
                      std::span<const FlatRange> ranges) {
  const auto chunks = [](const FlatRange& range) { return (range.count + kChunk - 1) / kChunk; };
  std::int64_t all = 0;
  for (const FlatRange& range : ranges) all += chunks(range);
  double* const partial = ThreadScratch<FlatRange, double>(all);  // of all chunks, in order
  DispatchDtype(dtype, [&](auto zero) {
    using T = decltype(zero);
#pragma omp parallel num_threads(stream.threads)
    {
      double* of_range = partial;
      for (const FlatRange& range : ranges) {
        const std::int64_t count = chunks(range);
#pragma omp for schedule(static) nowait
        for (std::int64_t chunk = 0; chunk < count; ++chunk) {
          const std::int64_t begin = chunk * kChunk;
          of_range[chunk] = rows::SquaredDeviation(static_cast<const T*>(range.values) + begin,
                                                   std::min(kChunk, range.count - begin), T(0));
        }
        of_range += count;
      }
    }
  });
  double total = 0;
  const double* next = partial;
  for (const FlatRange& range : ranges) {
    double sum = 0;
    for (std::int64_t chunk = chunks(range); chunk > 0; --chunk) sum += *next++;
    total += sum;
  }
  return total;
}

void cpu::ExactSquareSum(const device::Stream& stream, Dtype dtype,
                         std::span<const FlatRange> ranges, ExactSum& sum) {
  DispatchDtype(dtype, [&](auto zero) {
    using T = decltype(zero);
#pragma omp parallel num_threads(stream.threads)
    {
      ExactSum own;
      for (const FlatRange& range : ranges) {
        // As few blocks as the numbers of threads and of terms per bin allow.
        const std::int64_t share = (range.count + stream.threads - 1) / stream.threads;
        const std::int64_t block = std::clamp<std::int64_t>(share, 1, SquareBins::kMostTerms);
#pragma omp for schedule(static) nowait
        for (std::int64_t begin = 0; begin < range.count; begin += block) {
          AddSquares(static_cast<const T*>(range.values) + begin,
                     std::min(block, range.count - begin), own);
        }
      }
#pragma omp critical(trireme_exact_square_sum)
      sum.Add(own);
    }
  });
}

void cpu::SquareSums(const device::Stream& stream, Dtype dtype, std::span<const FlatRange> ranges,
                     double* sums) {
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    sums[i] = cpu::SquareSum(stream, dtype, ranges.subspan(i, 1));
  }
}

void cpu::Accumulate(const device::Stream& stream, Dtype dtype, std::int64_t count,
                     const void* from, void* to) {
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
