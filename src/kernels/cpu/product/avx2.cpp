// Kernels of our own matrix product for AVX2 with FMA, compiled for x86-64-v3: tiles of 6 rows and
// two vectors occupy 12 of the 16 registers.
#include <immintrin.h>

#include "tile.hpp"

namespace trireme::kernels {

namespace {

struct Float8 : Vector<float, 32> {
  static __m256i Mask(int count) { return reinterpret_cast<__m256i>(First(count)); }
  static Register LoadPart(const float* x, int count) { return _mm256_maskload_ps(x, Mask(count)); }
  static void StorePart(float* x, Register y, int count) { _mm256_maskstore_ps(x, Mask(count), y); }
  static Register MultiplyAdd(Register x, Register y, Register z) {
    return _mm256_fmadd_ps(x, y, z);
  }
  // Interleaves pairs of rows, then fours within each half of the registers, then swaps halves.
  static void Transpose(Register* block) {
    Register pairs[8], fours[8];
    for (int i = 0; i < 8; i += 2) {
      pairs[i] = _mm256_unpacklo_ps(block[i], block[i + 1]);
      pairs[i + 1] = _mm256_unpackhi_ps(block[i], block[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
      fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
      fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xEE);
      fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
      fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xEE);
    }
    for (int i = 0; i < 4; ++i) {
      block[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
      block[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
    }
  }
};

struct Double4 : Vector<double, 32> {
  static __m256i Mask(int count) { return reinterpret_cast<__m256i>(First(count)); }
  static Register LoadPart(const double* x, int count) {
    return _mm256_maskload_pd(x, Mask(count));
  }
  static void StorePart(double* x, Register y, int count) {
    _mm256_maskstore_pd(x, Mask(count), y);
  }
  static Register MultiplyAdd(Register x, Register y, Register z) {
    return _mm256_fmadd_pd(x, y, z);
  }
  static void Transpose(Register* block) {
    Register pairs[4];
    for (int i = 0; i < 4; i += 2) {
      pairs[i] = _mm256_unpacklo_pd(block[i], block[i + 1]);
      pairs[i + 1] = _mm256_unpackhi_pd(block[i], block[i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
      block[i] = _mm256_permute2f128_pd(pairs[i], pairs[i + 2], 0x20);
      block[i + 2] = _mm256_permute2f128_pd(pairs[i], pairs[i + 2], 0x31);
    }
  }
};

}  // namespace

constinit const ProductSet kProductAvx2{
    "AVX2", MakeKernels<Plain<Float8>, 6, 2, kInnerBlock>(),
    MakeKernels<Plain<Double4>, 6, 2, kInnerBlock>(),
    MakeKernels<Plain<Float8, RoundedFloat>, 6, 2, kInnerBlock>()};

}  // namespace trireme::kernels
