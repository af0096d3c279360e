// Updates of the weights over flat storage, sums of squares, and conversions.
#pragma once

#include <cstdint>
#include <span>

#include "trireme/base/dtype.hpp"
#include "trireme/base/exact_sum.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/kernels/kernel.hpp"

namespace trireme::kernels {

// Scalars of one update, read through a pointer, so that a recorded step can replay with new ones.
struct UpdateScalars {
  double learning_rate = 0;
  double beta1 = 0, beta2 = 0, epsilon = 0;  // Lion reads the two betas
  double correction1 = 1, correction2 = 1;   // 1 - beta^step
  double gradient_scale = 1;                 // 1 / valid targets, times the clip factor
};

// A range of flat storage whose elements are updated in the same way. GradientDescent needs no
// moments; only it reads `scale` and `squares`.
struct UpdateRange {
  std::int64_t count = 0;
  double decay = 0;
  void *gradients = nullptr, *values = nullptr, *first = nullptr, *second = nullptr;
  void* copies = nullptr;  // bf16 copies of the new values, rounded to nearest; may be null
  double scale = 1;        // factor of the gradients
  // From SquareSums, in the stream's memory: gradients are divided by sqrt(*squares) if that is >
  // 0. Null: no division.
  const double* squares = nullptr;
  double rate = 1;  // factor of the learning rate
};

// AdamW (Loshchilov and Hutter 2019, algorithm 2) on all ranges in one parallel pass, with
// decoupled decay learning_rate * decay * w. Updates values and both moments; sets gradients to
// zero if `clear`. scalars: in the stream's memory.
extern const Kernel<void(Dtype dtype, std::span<const UpdateRange> ranges,
                         const UpdateScalars* scalars, bool clear)>
    AdamW;

// Lion (Chen et al. 2023, algorithm 2) on all ranges, with decoupled decay: values -= learning_rate
// * (sign(beta1 first + (1 - beta1) g) + decay * value), then first = beta2 first + (1 - beta2) g,
// where g is gradient_scale * gradient and sign(0) = 0. `clear` as in AdamW.
extern const Kernel<void(Dtype dtype, std::span<const UpdateRange> ranges,
                         const UpdateScalars* scalars, bool clear)>
    Lion;

// values -= learning_rate * (gradient_scale * scale / sqrt(*squares) * gradient + decay * value);
// `clear` as in AdamW. With learning_rate = gradient_scale = 1 it combines any two flat storages:
// values = (1 - decay) * values - scale * gradients.
extern const Kernel<void(Dtype dtype, std::span<const UpdateRange> ranges,
                         const UpdateScalars* scalars, bool clear)>
    GradientDescent;

// A range of flat storage that is only read.
struct FlatRange {
  std::int64_t count = 0;
  const void* values = nullptr;
};

// Sum of the squares of all values: blocks of 1,024 elements are added up in the values' type;
// groups of 8 blocks, then ranges, then all ranges in fp64, in order. So the bits are the same for
// any number of threads. Not finite if a value is not (or exceeds 1e19 in fp32, which no sane
// gradient does). 0 on a planned device.
extern const Kernel<double(Dtype dtype, std::span<const FlatRange> ranges)> SquareSum;
inline double SquareSumOf(const device::Stream& stream, Dtype dtype, std::int64_t count,
                          const void* values) {
  const FlatRange range{count, values};
  return SquareSum(stream, dtype, {&range, 1});
}

// sums[i] = the SquareSum of range i, queued. sums: [ranges], fp64, in the stream's memory. A GPU
// adds in another fixed order, with blocks added up in fp64.
extern const Kernel<void(Dtype dtype, std::span<const FlatRange> ranges, double* sums)> SquareSums;

// sum += the squares of all values, each as a double (exact for fp32, rounded for fp64). Nothing
// else rounds: the sum does not depend on order, threads or the cut of the storage. CPU only.
extern const Kernel<void(Dtype dtype, std::span<const FlatRange> ranges, ExactSum& sum)>
    ExactSquareSum;

// to += from, element by element. from, to: [count], in the stream's memory.
extern const Kernel<void(Dtype dtype, std::int64_t count, const void* from, void* to)> Accumulate;

// to = from: fp32 to bf16 (rounded to nearest), or back. from, to: [count], on the GPU. GPU only.
extern const Kernel<void(std::int64_t count, Dtype from_type, const void* from, Dtype to_type,
                         void* to)>
    Convert;

}  // namespace trireme::kernels
