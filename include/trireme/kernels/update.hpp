// Updates of the weights over flat storage, and the sums they need.
#ifndef TRIREME_KERNELS_UPDATE_HPP_
#define TRIREME_KERNELS_UPDATE_HPP_

#include <cstdint>
#include <span>

#include "trireme/base/dtype.hpp"
#include "trireme/base/exact_sum.hpp"
#include "trireme/device/stream.hpp"

namespace trireme::kernels {

// Scalars of one update, read by pointer so that a captured step replays with new values.
struct UpdateScalars {
  double learning_rate = 0;
  double beta1 = 0, beta2 = 0, epsilon = 0;
  double correction1 = 1, correction2 = 1;  // 1 - beta^step
  double gradient_scale = 1;                // 1 / valid targets, times the clip factor
};

// Flat storage whose elements are updated alike. GradientDescent needs no moments.
struct UpdateRange {
  std::int64_t count = 0;
  double decay = 0;
  void *gradients = nullptr, *values = nullptr, *first = nullptr, *second = nullptr;
  void* copies = nullptr;  // bf16: takes the new values, rounded to nearest; null: there are none
};

// AdamW (Loshchilov and Hutter 2019, algorithm 2) on all ranges in one parallel pass: decoupled
// decay learning_rate * decay * w. values, first and second moment are updated; gradients become
// zero with `clear`, else they are only read. scalars: in the stream's memory.
void AdamW(const device::Stream& stream, Dtype dtype, std::span<const UpdateRange> ranges,
           const UpdateScalars* scalars, bool clear);

// values -= learning_rate * (gradient_scale * gradient + decay * value); `clear` as above.
void GradientDescent(const device::Stream& stream, Dtype dtype, std::span<const UpdateRange> ranges,
                     const UpdateScalars* scalars, bool clear);

// Flat storage that is only read.
struct FlatRange {
  std::int64_t count = 0;
  const void* values = nullptr;
};

// Sum of squares: of blocks of 1,024 elements in their own type, of 8 such blocks, then of a range
// and then of all ranges in fp64, in order: the same bits for any number of threads. A value that
// is not finite makes the sum not finite (so do fp32 values beyond 1e19, which no gradient
// survives).
double SquareSum(const device::Stream& stream, Dtype dtype, std::span<const FlatRange> ranges);
inline double SquareSum(const device::Stream& stream, Dtype dtype, std::int64_t count,
                        const void* values) {
  const FlatRange range{count, values};
  return SquareSum(stream, dtype, {&range, 1});
}

// sums[i] = SquareSum of range i alone, queued: sums lies in the stream's memory. On a GPU the
// order of the sum is another one, as fixed, and blocks are added up in fp64.
void SquareSums(const device::Stream& stream, Dtype dtype, std::span<const FlatRange> ranges,
                double* sums);

// sum += the squares of all values, each as a double: exact of fp32, rounded of fp64. Nothing else
// rounds, so neither order nor threads nor the cut of the storage matter.
void ExactSquareSum(const device::Stream& stream, Dtype dtype, std::span<const FlatRange> ranges,
                    ExactSum& sum);
inline void ExactSquareSum(const device::Stream& stream, Dtype dtype, std::int64_t count,
                           const void* values, ExactSum& sum) {
  const FlatRange range{count, values};
  ExactSquareSum(stream, dtype, {&range, 1}, sum);
}

// to += from, element by element.
void Accumulate(const device::Stream& stream, Dtype dtype, std::int64_t count, const void* from,
                void* to);

// to = from, rounded to nearest where `to` is the narrower type. fp32 to bf16 and back.
void Convert(const device::Stream& stream, std::int64_t count, Dtype from_type, const void* from,
             Dtype to_type, void* to);

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_UPDATE_HPP_
