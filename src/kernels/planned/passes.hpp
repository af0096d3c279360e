// Kernels without products on a planned device: nothing is done, and a log is told of the bytes
// that they would read and write.
#ifndef TRIREME_SRC_KERNELS_PLANNED_PASSES_HPP_
#define TRIREME_SRC_KERNELS_PLANNED_PASSES_HPP_

#include <type_traits>

#include "backends.hpp"
#include "trireme/device/work_log.hpp"

namespace trireme::kernels::planned {

using device::LogPass;

inline double BytesOf(const Matrix& matrix) {
  if (matrix.Empty()) return 0;
  return static_cast<double>(matrix.Size()) * static_cast<double>(SizeOf(matrix.dtype));
}

// Stands for a kernel without products whose matrices are each read or written once; returns 0 or
// nothing.
struct PassOver {
  template <typename Result, typename... Arguments>
  using Function = Result(const device::Stream&, Arguments...);
  template <typename Argument>
  static double Bytes(const Argument& argument) {
    if constexpr (std::is_same_v<Argument, Matrix>) return BytesOf(argument);
    return 0;
  }
  template <typename Result, typename... Arguments>
  constexpr operator Function<Result, Arguments...>*()
      const {  // NOLINT(google-explicit-constructor)
    return [](const device::Stream& stream, Arguments... arguments) {
      LogPass(stream, (0.0 + ... + Bytes(arguments)));
      return Result();
    };
  }
};
inline constexpr PassOver kPass;

// Tables are read where tokens and positions point to: rows of the other matrix count.
inline void PassEmbedding(const device::Stream& stream, const std::int32_t*, std::int32_t,
                          const Matrix&, double, const Matrix& out) {
  LogPass(stream, 2 * BytesOf(out));
}

inline void PassEmbeddingGradient(const device::Stream& stream, const std::int32_t*, std::int32_t,
                                  double, const Matrix& dout, const Matrix&) {
  LogPass(stream, 3 * BytesOf(dout));
}

inline void PassPositions(const device::Stream& stream, const Matrix& positions,
                          const std::int32_t*, const Dropout&, const Matrix& x) {
  LogPass(stream, (positions.Empty() ? 2 : 3) * BytesOf(x));
}

inline void PassPositionGradient(const device::Stream& stream, const std::int32_t*, const Dropout&,
                                 const Matrix& dout, const Matrix& dpositions) {
  LogPass(stream, dpositions.Empty() ? 0 : 3 * BytesOf(dout));
}

inline void PassNormGradient(const device::Stream& stream, const NormBackwardPass& pass) {
  double bytes = 0;
  for (const Matrix* each :
       {&pass.dy, &pass.more, &pass.x, &pass.residual, &pass.dx, &pass.dbranch}) {
    bytes += BytesOf(*each);
  }
  LogPass(stream, bytes);
}

inline double BytesOf(std::int64_t count, Dtype dtype) {
  return static_cast<double>(count) * static_cast<double>(SizeOf(dtype));
}

// moments: of the optimizer. Gradients, values and moments are read and written.
inline void PassUpdate(const device::Stream& stream, Dtype dtype,
                       std::span<const UpdateRange> ranges, int moments) {
  double bytes = 0;
  for (const UpdateRange& range : ranges) {
    bytes += 2 * (2 + moments) * BytesOf(range.count, dtype);
    if (range.copies != nullptr) bytes += BytesOf(range.count, Dtype::kBfloat16);
  }
  LogPass(stream, bytes);
}

inline void PassAdamW(const device::Stream& stream, Dtype dtype,
                      std::span<const UpdateRange> ranges, const UpdateScalars*, bool) {
  PassUpdate(stream, dtype, ranges, 2);
}

inline void PassDescent(const device::Stream& stream, Dtype dtype,
                        std::span<const UpdateRange> ranges, const UpdateScalars*, bool) {
  PassUpdate(stream, dtype, ranges, 0);
}

inline void PassRanges(const device::Stream& stream, Dtype dtype,
                       std::span<const FlatRange> ranges) {
  double bytes = 0;
  for (const FlatRange& range : ranges) bytes += BytesOf(range.count, dtype);
  LogPass(stream, bytes);
}

inline double PassSquareSum(const device::Stream& stream, Dtype dtype,
                            std::span<const FlatRange> ranges) {
  PassRanges(stream, dtype, ranges);
  return 0;
}

inline void PassSquareSums(const device::Stream& stream, Dtype dtype,
                           std::span<const FlatRange> ranges, double*) {
  PassRanges(stream, dtype, ranges);
}

inline void PassExactSum(const device::Stream& stream, Dtype dtype,
                         std::span<const FlatRange> ranges, ExactSum&) {
  PassRanges(stream, dtype, ranges);
}

inline void PassAccumulate(const device::Stream& stream, Dtype dtype, std::int64_t count,
                           const void*, void*) {
  LogPass(stream, 3 * BytesOf(count, dtype));
}

inline void PassConvert(const device::Stream& stream, std::int64_t count, Dtype from_type,
                        const void*, Dtype to_type, void*) {
  LogPass(stream, BytesOf(count, from_type) + BytesOf(count, to_type));
}

}  // namespace trireme::kernels::planned

#endif  // TRIREME_SRC_KERNELS_PLANNED_PASSES_HPP_
