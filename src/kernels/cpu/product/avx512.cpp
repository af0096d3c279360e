// Kernels of our own matrix product for AVX-512, compiled for x86-64-v4: tiles of 14 rows and two
// vectors occupy 28 of the 32 registers.
#include <immintrin.h>

#include "tile.hpp"

namespace trireme::kernels {

namespace {

struct Float16 {
  using Scalar = float;
  using Register = __m512;
  static constexpr int kLanes = 16;
  static Register Zero() { return _mm512_setzero_ps(); }
  static Register Broadcast(float x) { return _mm512_set1_ps(x); }
  static Register Load(const float* x) { return _mm512_loadu_ps(x); }
  static Register LoadPart(const float* x, int count) {
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), x);
  }
  static void Store(float* x, Register y) { _mm512_storeu_ps(x, y); }
  static void StorePart(float* x, int count, Register y) {
    _mm512_mask_storeu_ps(x, static_cast<__mmask16>((1u << count) - 1), y);
  }
  static Register Add(Register x, Register y) { return _mm512_add_ps(x, y); }
  static Register MultiplyAdd(Register x, Register y, Register z) {
    return _mm512_fmadd_ps(x, y, z);
  }
  // Four rounds, each interleaving the first half of the block's rows with the second.
  static void Transpose(Register* block) {
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high =
        _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#pragma GCC unroll 4
    for (int round = 0; round < 4; ++round) {
      Register next[16];
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        next[2 * i] = _mm512_permutex2var_ps(block[i], low, block[i + 8]);
        next[2 * i + 1] = _mm512_permutex2var_ps(block[i], high, block[i + 8]);
      }
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) block[i] = next[i];
    }
  }
};

struct Double8 {
  using Scalar = double;
  using Register = __m512d;
  static constexpr int kLanes = 8;
  static Register Zero() { return _mm512_setzero_pd(); }
  static Register Broadcast(double x) { return _mm512_set1_pd(x); }
  static Register Load(const double* x) { return _mm512_loadu_pd(x); }
  static Register LoadPart(const double* x, int count) {
    return _mm512_maskz_loadu_pd(static_cast<__mmask8>((1u << count) - 1), x);
  }
  static void Store(double* x, Register y) { _mm512_storeu_pd(x, y); }
  static void StorePart(double* x, int count, Register y) {
    _mm512_mask_storeu_pd(x, static_cast<__mmask8>((1u << count) - 1), y);
  }
  static Register Add(Register x, Register y) { return _mm512_add_pd(x, y); }
  static Register MultiplyAdd(Register x, Register y, Register z) {
    return _mm512_fmadd_pd(x, y, z);
  }
  static void Transpose(Register* block) {
    const __m512i low = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
    const __m512i high = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
#pragma GCC unroll 3
    for (int round = 0; round < 3; ++round) {
      Register next[8];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        next[2 * i] = _mm512_permutex2var_pd(block[i], low, block[i + 4]);
        next[2 * i + 1] = _mm512_permutex2var_pd(block[i], high, block[i + 4]);
      }
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) block[i] = next[i];
    }
  }
};

}  // namespace

constinit const ProductSet kProductAvx512{"AVX-512",
                                          MakeKernels<Plain<Float16>, 14, 2, kInnerBlock>(),
                                          MakeKernels<Plain<Double8>, 14, 2, kInnerBlock>()};

}  // namespace trireme::kernels
