// What the canonical product needs of an instruction set: packing and the product of one block of
// the inner dimension. Included by files compiled for other instruction sets than the rest: nothing
// here or below it may be an inline function that another file could share.
#ifndef TRIREME_KERNELS_CPU_CANONICAL_KERNELS_HPP_
#define TRIREME_KERNELS_CPU_CANONICAL_KERNELS_HPP_

#include <cstdint>

namespace trireme::kernels {

// Inner indices of one chain of fused multiply-adds; chains are added to c in order.
inline constexpr std::int64_t kInnerBlock = 256;

// An operand in memory: element (lane, k) lies at lane * lane_stride + k * inner_stride; one of the
// two strides is 1. A lane is a row of the left operand or a column of the right one.
template <typename T>
struct CanonicalSource {
  const T* data;
  std::int64_t lane_stride, inner_stride;
};

template <typename T>
struct CanonicalKernelsOf {
  std::int64_t rows, columns;  // of a tile: lanes of a panel of the left and of the right operand

  // Packs lanes [0, lanes) x [0, inner) into panels, one behind the other: panel p has, for each k,
  // `rows` (`columns`) lanes from p * rows on, zeros behind the last. Writes up to a vector beyond.
  void (*pack_left)(const CanonicalSource<T>& from, std::int64_t lanes, std::int64_t inner, T* to);
  void (*pack_right)(const CanonicalSource<T>& from, std::int64_t lanes, std::int64_t inner, T* to);

  // c = (add ? c : +0) + left right for one block, inner <= kInnerBlock. c: [rows, columns].
  void (*multiply)(const T* left, const T* right, std::int64_t inner, std::int64_t rows,
                   std::int64_t columns, T* c, std::int64_t stride, bool add);
};

struct CanonicalKernels {
  const char* name;
  CanonicalKernelsOf<float> fp32;
  CanonicalKernelsOf<double> fp64;
};

extern const CanonicalKernels kCanonicalPortable;
extern const CanonicalKernels kCanonicalAvx2;    // x86-64 with AVX2 and FMA only
extern const CanonicalKernels kCanonicalAvx512;  // x86-64-v4 only

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_CPU_CANONICAL_KERNELS_HPP_
