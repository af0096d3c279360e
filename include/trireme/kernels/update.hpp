// Updates of the weights over flat storage, sums of squares, and conversions.
#pragma once

#include <cstdint>
#include <span>

#include "trireme/base/dtype.hpp"
#include "trireme/base/exact_sum.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/kernels/kernel.hpp"

namespace trireme::kernels {

// Scalars of one update, read by pointer so that a recorded step replays with new values.
struct UpdateScalars {
  double learning_rate = 0;
  double beta1 = 0, beta2 = 0, epsilon = 0;
  double correction1 = 1, correction2 = 1;  // 1 - beta^step
  double gradient_scale = 1;                // 1 / valid targets, times the clip factor
};

// Flat storage whose elements are updated alike. GradientDescent needs no moments; `scale` and
// `squares` are its own.
struct UpdateRange {
  std::int64_t count = 0;
  double decay = 0;
  void *gradients = nullptr, *values = nullptr, *first = nullptr, *second = nullptr;
  void* copies = nullptr;  // bf16, overwritten with the new values, rounded to nearest; may be null
  double scale = 1;        // of the gradients
  // In the stream's memory: the gradients are divided by the root of *squares, a sum of SquareSums
  // (unless it is 0). Null: they are not.
  const double* squares = nullptr;
};

// AdamW (Loshchilov and Hutter 2019, algorithm 2) on all ranges in one parallel pass, with
// decoupled decay learning_rate * decay * w. Updates values and both moments; with `clear`
// gradients become zero, else they are only read. scalars: in the stream's memory.
extern const Kernel<void(Dtype dtype, std::span<const UpdateRange> ranges,
                         const UpdateScalars* scalars, bool clear)>
    AdamW;

// values -= learning_rate * (gradient_scale * scale / sqrt(*squares) * gradient + decay * value);
// `clear` as above. With learning_rate = 1 and gradient_scale = 1 a sum of any two flat storages:
// values = (1 - decay) * values - scale * gradients.
extern const Kernel<void(Dtype dtype, std::span<const UpdateRange> ranges,
                         const UpdateScalars* scalars, bool clear)>
    GradientDescent;

// Flat storage, only read.
struct FlatRange {
  std::int64_t count = 0;
  const void* values = nullptr;
};

// Sum of the squares of all values: blocks of 1,024 elements are added up in their own type, then 8
// such blocks, a range and all ranges in fp64, in order: the same bits for any number of threads.
// Not finite if a value is not (or is above 1e19 in fp32, which no gradient survives). 0 on a
// planned device.
extern const Kernel<double(Dtype dtype, std::span<const FlatRange> ranges)> SquareSum;
inline double SquareSumOf(const device::Stream& stream, Dtype dtype, std::int64_t count,
                          const void* values) {
  const FlatRange range{count, values};
  return SquareSum(stream, dtype, {&range, 1});
}

// sums[i] = SquareSum of range i alone, queued. sums: [ranges], fp64, in the stream's memory. On a
// GPU the order of the sum is another fixed one, and blocks are added up in fp64.
extern const Kernel<void(Dtype dtype, std::span<const FlatRange> ranges, double* sums)> SquareSums;

// sum += the squares of all values, each a double (exact of fp32, rounded of fp64). Nothing else
// rounds: the sum depends on neither order, threads nor the cut of the storage. CPU only.
extern const Kernel<void(Dtype dtype, std::span<const FlatRange> ranges, ExactSum& sum)>
    ExactSquareSum;

// to += from, element by element. from, to: [count], in the stream's memory.
extern const Kernel<void(Dtype dtype, std::int64_t count, const void* from, void* to)> Accumulate;

// to = from, between fp32 and bf16, rounded to nearest if `to` is the narrower type. from, to:
// [count], in the stream's memory. GPU only.
extern const Kernel<void(std::int64_t count, Dtype from_type, const void* from, Dtype to_type,
                         void* to)>
    Convert;

}  // namespace trireme::kernels
