// Updates of the weights: values and moments are updated in place; gradients are read and, on
// request, cleared; copies are overwritten with the rounded new values.
#include <cmath>

#include "backends.hpp"
#include "vector.cuh"

namespace trireme::kernels::cuda {

namespace {

template <typename T>
struct Range {
  std::int64_t count;
  double rate, decay, scale;
  T *gradients, *values, *first, *second;
  Bf16* copies;           // or null
  const double* squares;  // or null
  bool vectors;           // all of them are aligned to 16 bytes
};

// Factors for the elements, computed once per block in fp64 from the step's scalars, by the
// formulas of kernels/cpu/update.cpp.
template <typename T>
struct AdamWRule {
  T beta1, beta2, rest1, rest2, scale, rate, root, epsilon, keep;

  __device__ void Set(const UpdateScalars& s, const Range<T>& range) {
    const double learning_rate = s.learning_rate * range.rate;
    beta1 = T(s.beta1);
    beta2 = T(s.beta2);
    rest1 = T(1 - s.beta1);
    rest2 = T(1 - s.beta2);
    scale = T(s.gradient_scale);
    rate = T(learning_rate / s.correction1);
    root = T(1 / std::sqrt(s.correction2));
    epsilon = T(s.epsilon);
    keep = T(1 - learning_rate * range.decay);
  }
  // Turns `values` into the new values of the range's elements [at, at + kWidth).
  template <int kWidth>
  __device__ __forceinline__ void Update(const Range<T>& range, std::int64_t at,
                                         const T (&gradients)[kWidth], T (&values)[kWidth]) const {
    T first[kWidth], second[kWidth];
    Load<kWidth>(range.first + at, first);
    Load<kWidth>(range.second + at, second);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const T g = gradients[i] * scale;
      first[i] = beta1 * first[i] + rest1 * g;
      second[i] = beta2 * second[i] + rest2 * g * g;
      values[i] = keep * values[i] - rate * first[i] / (std::sqrt(second[i]) * root + epsilon);
    }
    Store<kWidth>(first, range.first + at);
    Store<kWidth>(second, range.second + at);
  }
};

template <typename T>
struct LionRule {
  T beta1, beta2, rest1, rest2, scale, rate, keep;

  __device__ void Set(const UpdateScalars& s, const Range<T>& range) {
    const double learning_rate = s.learning_rate * range.rate;
    beta1 = T(s.beta1);
    beta2 = T(s.beta2);
    rest1 = T(1 - s.beta1);
    rest2 = T(1 - s.beta2);
    scale = T(s.gradient_scale);
    rate = T(learning_rate);
    keep = T(1 - learning_rate * range.decay);
  }
  template <int kWidth>
  __device__ __forceinline__ void Update(const Range<T>& range, std::int64_t at,
                                         const T (&gradients)[kWidth], T (&values)[kWidth]) const {
    T first[kWidth];
    Load<kWidth>(range.first + at, first);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const T g = gradients[i] * scale;
      const T ahead = beta1 * first[i] + rest1 * g;
      first[i] = beta2 * first[i] + rest2 * g;
      values[i] = keep * values[i] - rate * T((ahead > 0) - (ahead < 0));
    }
    Store<kWidth>(first, range.first + at);
  }
};

template <typename T>
struct DescentRule {
  T scale, keep;

  __device__ void Set(const UpdateScalars& s, const Range<T>& range) {
    const bool divided = range.squares != nullptr && *range.squares != 0;
    const double factor = divided ? range.scale / std::sqrt(*range.squares) : range.scale;
    scale = T(s.learning_rate * range.rate * s.gradient_scale * factor);
    keep = T(1 - s.learning_rate * range.rate * range.decay);
  }
  template <int kWidth>
  __device__ __forceinline__ void Update(const Range<T>&, std::int64_t,
                                         const T (&gradients)[kWidth], T (&values)[kWidth]) const {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] = keep * values[i] - scale * gradients[i];
  }
};

template <int kWidth, typename T, typename Rule>
__device__ __forceinline__ void UpdateElements(const Range<T>& range, std::int64_t at,
                                               const Rule& rule, bool clear) {
  T gradients[kWidth], values[kWidth];
  Load<kWidth>(range.gradients + at, gradients);
  Load<kWidth>(range.values + at, values);
  rule.template Update<kWidth>(range, at, gradients, values);
  Store<kWidth>(values, range.values + at);
  if (range.copies != nullptr) {
    Pack<Bf16, kWidth> rounded;
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      rounded.values[i] = Narrow<Bf16>(static_cast<float>(values[i]));
    StoreGlobal(rounded, range.copies + at);
  }
  if (clear) {
    const T zeros[kWidth] = {};
    Store<kWidth>(zeros, range.gradients + at);
  }
}

template <typename T>
inline constexpr std::int64_t kElementsPerBlock = std::int64_t{kRangeThreads} * kVectorWidth<T>;

template <typename T, typename Rule>
__global__ void __launch_bounds__(kRangeThreads)
    UpdateKernel(const RangeTable<Range<T>> table, const UpdateScalars* scalars, bool clear) {
  constexpr int kWidth = kVectorWidth<T>;
  __shared__ Rule rule;
  const int which = table.Find(blockIdx.x);
  const Range<T>& range = table.ranges[which];
  if (threadIdx.x == 0) rule.Set(*scalars, range);
  __syncthreads();
  const std::int64_t begin =
      (blockIdx.x - table.first_block[which]) * kElementsPerBlock<T> + threadIdx.x * kWidth;
  if (range.vectors && begin + kWidth <= range.count) {
    UpdateElements<kWidth>(range, begin, rule, clear);
  } else {
    const std::int64_t end = begin + kWidth < range.count ? begin + kWidth : range.count;
    for (std::int64_t at = begin; at < end; ++at) UpdateElements<1>(range, at, rule, clear);
  }
}

template <typename T>
Range<T> MakeRange(const UpdateRange& range) {
  const bool vectors = OnVectorBoundary(range.gradients) && OnVectorBoundary(range.values) &&
                       OnVectorBoundary(range.first) && OnVectorBoundary(range.second) &&
                       OnVectorBoundary(range.copies);
  return {range.count,
          range.rate,
          range.decay,
          range.scale,
          static_cast<T*>(range.gradients),
          static_cast<T*>(range.values),
          static_cast<T*>(range.first),
          static_cast<T*>(range.second),
          static_cast<Bf16*>(range.copies),
          range.squares,
          vectors};
}

template <typename T, typename Rule>
void UpdateAll(const device::Stream& stream, std::span<const UpdateRange> ranges,
               const UpdateScalars* scalars, bool clear) {
  const auto blocks_of = [](const UpdateRange& range) {
    return (range.count + kElementsPerBlock<T> - 1) / kElementsPerBlock<T>;
  };
  EachTable<Range<T>>(ranges, MakeRange<T>, blocks_of, [&](const auto& table, std::size_t) {
    if (table.Blocks() == 0) return;
    device::cuda::Launch(device::cuda::Queue(stream), UpdateKernel<T, Rule>, dim3(table.Blocks()),
                         dim3(kRangeThreads), 0, table, scalars, clear);
  });
}

}  // namespace

void AdamW(const device::Stream& stream, Dtype dtype, std::span<const UpdateRange> ranges,
           const UpdateScalars* scalars, bool clear) {
  DispatchDtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    UpdateAll<T, AdamWRule<T>>(stream, ranges, scalars, clear);
  });
}

void Lion(const device::Stream& stream, Dtype dtype, std::span<const UpdateRange> ranges,
          const UpdateScalars* scalars, bool clear) {
  DispatchDtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    UpdateAll<T, LionRule<T>>(stream, ranges, scalars, clear);
  });
}

void GradientDescent(const device::Stream& stream, Dtype dtype, std::span<const UpdateRange> ranges,
                     const UpdateScalars* scalars, bool clear) {
  DispatchDtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    UpdateAll<T, DescentRule<T>>(stream, ranges, scalars, clear);
  });
}

}  // namespace trireme::kernels::cuda
