// Products with few rows, at the speed of the memory that holds their right operand.
#pragma once

#include <cstdint>
#include <span>

#include "trireme/kernels/linear.hpp"

namespace trireme::kernels {

// Kernels for products whose left operand has few rows, for one instruction set. They read the
// right operand, a weight, once: memory limits the speed, and packing would double the traffic.
// Files compiled for different instruction sets include this header, so neither it nor a header
// that includes it may define inline functions that those files could share.

// Most rows of a thin product. With more, packing pays.
inline constexpr std::int64_t kThinRows = 32;
inline constexpr std::int64_t kThinColumns = 64;  // a thread's columns: a multiple of this

// Width of a panel of a weight's second copy (PackedWeights), in bytes.
inline constexpr std::int64_t kPanelBytes = 128;

// c = a w^T or a w. a: [rows, inner]; c: [rows, columns]. The order of each element's sum depends
// on `inner` and on whether there is a single row, not on the columns of a call.
template <typename T>
struct ThinProduct {
  std::int64_t rows, columns, inner;
  const T* a;
  std::int64_t a_stride;
  const T* w;
  std::int64_t w_stride;
  T* c;
  std::int64_t c_stride;
};

template <typename T>
struct ThinKernelsOf {
  void (*transposed)(const ThinProduct<T>&);  // w: [columns, inner]
  void (*plain)(const ThinProduct<T>&);       // w: [inner, columns]
  // For two rows or more; gives the bits of the other two. w: [panels, inner, kPanelBytes /
  // sizeof(T)], dense; w_stride is not read.
  void (*panels)(const ThinProduct<T>&);
};

struct ThinKernels {
  const char* name;
  ThinKernelsOf<float> fp32;
  ThinKernelsOf<double> fp64;
};

extern const ThinKernels kThinPortable;
extern const ThinKernels kThinAvx2;    // x86-64-v3 only
extern const ThinKernels kThinAvx512;  // x86-64-v4 only

// Kernels that this CPU can run, fastest first. They add in different orders.
std::span<const ThinKernels> UsableThinKernels();

// y = x form(weight), with these kernels and the stream's threads. x: [rows, in], rows <=
// kThinRows; y: [rows, out], overwritten. panels: the weight's second copy (PackedWeights::Of), or
// null. The bits of y do not depend on the number of threads or on panels.
void ThinMultiply(const ThinKernels& kernels, const device::Stream& stream, const Matrix& x,
                  Form form, const Matrix& weight, const Matrix& y, const void* panels = nullptr);

}  // namespace trireme::kernels
