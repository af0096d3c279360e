// Kernels of our own matrix product for AVX-512, compiled for x86-64-v4: tiles of 14 rows and two
// vectors occupy 28 of the 32 registers.
#include <immintrin.h>

#include "tile.hpp"

namespace trireme::kernels {

namespace {

struct Float16 : Vector<float, 64> {
  static __mmask16 Mask(int count) { return static_cast<__mmask16>((1u << count) - 1); }
  static Register LoadPart(const float* x, int count) {
    return _mm512_maskz_loadu_ps(Mask(count), x);
  }
  static void StorePart(float* x, Register y, int count) {
    _mm512_mask_storeu_ps(x, Mask(count), y);
  }
  static Register MultiplyAdd(Register x, Register y, Register z) {
    return _mm512_fmadd_ps(x, y, z);
  }
};

struct Double8 : Vector<double, 64> {
  static __mmask8 Mask(int count) { return static_cast<__mmask8>((1u << count) - 1); }
  static Register LoadPart(const double* x, int count) {
    return _mm512_maskz_loadu_pd(Mask(count), x);
  }
  static void StorePart(double* x, Register y, int count) {
    _mm512_mask_storeu_pd(x, Mask(count), y);
  }
  static Register MultiplyAdd(Register x, Register y, Register z) {
    return _mm512_fmadd_pd(x, y, z);
  }
};

}  // namespace

constinit const ProductSet kProductAvx512{
    "AVX-512", MakeKernels<Plain<Float16>, 14, 2, kInnerBlock>(),
    MakeKernels<Plain<Double8>, 14, 2, kInnerBlock>(),
    MakeKernels<Plain<Float16, RoundedFloat>, 14, 2, kInnerBlock>()};

}  // namespace trireme::kernels
