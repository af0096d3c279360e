// Attention's tiles for AVX2, compiled for x86-64-v3: the sums take 6 rows of two vectors in 16
// registers.
#include <immintrin.h>

#include "attention_tile.hpp"
#include "philox_vector.hpp"
#include "thin_tile.hpp"

namespace trireme::kernels {

constinit const AttentionKernels kAttentionAvx2{"AVX2",
                                                MakeAttentionKernels<Vector<float, 32>, 6, 2>(),
                                                MakeAttentionKernels<Vector<double, 32>, 6, 2>()};

// Products with few rows for AVX2, compiled for x86-64-v3.

constinit const ThinKernels kThinAvx2{
    "AVX2",
    {&ThinTransposed<Vector<float, 32>, 4, 2, 8>, &ThinPlain<Vector<float, 32>, 4, 2, 8>,
     &ThinPanels<Vector<float, 32>, 4, 2>},
    {&ThinTransposed<Vector<double, 32>, 4, 2, 4>, &ThinPlain<Vector<double, 32>, 4, 2, 8>,
     &ThinPanels<Vector<double, 32>, 4, 2>}};

// Philox lanes for AVX2: four counters per register.

namespace {

struct Words4 {
  using Register = __m256i;
  static constexpr int kCounters = 4;
  static Register Broadcast(std::uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
  // Counters in an order that Store's unpacking, which works on pairs of lanes, puts right.
  static Register Numbers(std::uint32_t first) {
    return Add(Broadcast(first), _mm256_setr_epi64x(0, 2, 1, 3));
  }
  static Register Add(Register x, Register y) { return _mm256_add_epi32(x, y); }
  static Register Multiply(Register x, Register y) { return _mm256_mul_epu32(x, y); }
  static Register High(Register x) { return _mm256_srli_epi64(x, 32); }
  static Register Xor(Register x, Register y, Register z) {
    return _mm256_xor_si256(_mm256_xor_si256(x, y), z);
  }
  static Register Interleave(Register low, Register high) {
    return _mm256_blend_epi32(low, _mm256_slli_epi64(high, 32), 0xAA);
  }
  static void Store(Register ab, Register cd, std::uint16_t* to) {
    _mm256_storeu_si256(reinterpret_cast<Register*>(to), _mm256_unpacklo_epi64(ab, cd));
    _mm256_storeu_si256(reinterpret_cast<Register*>(to + 16), _mm256_unpackhi_epi64(ab, cd));
  }
  static void StoreFirst(int counters, Register ab, Register cd, std::uint16_t* to) {
    const Register count = _mm256_set1_epi64x(counters);
    auto* words = reinterpret_cast<long long*>(to);
    _mm256_maskstore_epi64(words, _mm256_cmpgt_epi64(count, _mm256_setr_epi64x(0, 0, 1, 1)),
                           _mm256_unpacklo_epi64(ab, cd));
    _mm256_maskstore_epi64(words + 4, _mm256_cmpgt_epi64(count, _mm256_setr_epi64x(2, 2, 3, 3)),
                           _mm256_unpackhi_epi64(ab, cd));
  }
};

}  // namespace

constinit const PhiloxLanesKernel kPhiloxAvx2{"AVX2", FillPhiloxLanes<Words4>};

}  // namespace trireme::kernels
