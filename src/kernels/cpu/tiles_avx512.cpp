// Attention's tiles for AVX-512, compiled for x86-64-v4: the sums take 8 rows of two vectors in 32
// registers, which measured faster than more.
#include <immintrin.h>

#include "attention_tile.hpp"
#include "philox_vector.hpp"
#include "thin_tile.hpp"

namespace trireme::kernels {

constinit const AttentionKernels kAttentionAvx512{"AVX-512",
                                                  MakeAttentionKernels<Vector<float, 64>, 8, 2>(),
                                                  MakeAttentionKernels<Vector<double, 64>, 8, 2>()};

// Products with few rows for AVX-512, compiled for x86-64-v4.

constinit const ThinKernels kThinAvx512{
    "AVX-512",
    {&ThinTransposed<Vector<float, 64>, 8, 2, 8>, &ThinPlain<Vector<float, 64>, 8, 2, 16>,
     &ThinPanels<Vector<float, 64>, 8, 2>},
    {&ThinTransposed<Vector<double, 64>, 8, 2, 8>, &ThinPlain<Vector<double, 64>, 8, 2, 16>,
     &ThinPanels<Vector<double, 64>, 8, 2>}};

// Philox lanes for AVX-512: eight counters per register.

namespace {

struct Words8 {
  using Register = __m512i;
  static constexpr int kCounters = 8;
  // All lanes. The forms without a mask do the same, but in them GCC 12 warns of undefined values
  // in its own header.
  static constexpr __mmask8 kAll = 0xFF;
  static Register Broadcast(std::uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
  // Counters in an order that Store's unpacking, which works on pairs of lanes, puts right.
  static Register Numbers(std::uint32_t first) {
    return Add(Broadcast(first), _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7));
  }
  static Register Add(Register x, Register y) { return _mm512_add_epi32(x, y); }
  static Register Multiply(Register x, Register y) { return _mm512_maskz_mul_epu32(kAll, x, y); }
  static Register High(Register x) { return _mm512_maskz_srli_epi64(kAll, x, 32); }
  static Register Xor(Register x, Register y, Register z) {
    return _mm512_ternarylogic_epi64(x, y, z, 0x96);
  }
  static Register Interleave(Register low, Register high) {
    return _mm512_mask_shuffle_epi32(low, 0xAAAA, high, _MM_PERM_CCAA);
  }
  static void Store(Register ab, Register cd, std::uint16_t* to) {
    StoreFirst(kCounters, ab, cd, to);
  }
  static void StoreFirst(int counters, Register ab, Register cd, std::uint16_t* to) {
    const auto mask = static_cast<unsigned>((1 << 2 * counters) - 1);
    _mm512_mask_storeu_epi64(to, static_cast<__mmask8>(mask),
                             _mm512_maskz_unpacklo_epi64(kAll, ab, cd));
    _mm512_mask_storeu_epi64(to + 32, static_cast<__mmask8>(mask >> 8),
                             _mm512_maskz_unpackhi_epi64(kAll, ab, cd));
  }
};

}  // namespace

constinit const PhiloxLanesKernel kPhiloxAvx512{"AVX-512", FillPhiloxLanes<Words8>};

}  // namespace trireme::kernels
