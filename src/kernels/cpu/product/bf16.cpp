// Kernels of our own matrix product in bf16, compiled for x86-64-v4 with AVX512-BF16. Operands are
// rounded while they are packed; pairs of inner indices are multiplied and added up in fp32. Tiles
// have the shape of the fp32 ones for AVX-512.
#include <immintrin.h>

#include "tile.hpp"

namespace trireme::kernels {

namespace {

struct Bf16x32 : Vector<float, 64> {
  using Word = Bf16Pair;
  using Operand = Register;  // 16 pairs

  static __mmask16 Mask(std::int64_t count) {
    return static_cast<__mmask16>(count >= kLanes ? 0xFFFF : count <= 0 ? 0 : (1u << count) - 1);
  }
  static Register LoadPart(const float* x, std::int64_t count) {
    return _mm512_maskz_loadu_ps(Mask(count), x);
  }
  static void StorePart(float* x, Register y, std::int64_t count) {
    _mm512_mask_storeu_ps(x, Mask(count), y);
  }

  static Operand LoadWords(const Word* x) { return _mm512_loadu_ps(x); }
  static void StoreWords(Word* x, Operand y) { _mm512_storeu_ps(x, y); }
  static Operand Broadcast(Word x) {
    std::int32_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return reinterpret_cast<Operand>(_mm512_set1_epi32(bits));
  }
  static Register MultiplyAdd(Operand x, Operand y, Register z) {
    return _mm512_dpbf16_ps(z, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(y));
  }

  // Rounds both (to nearest, ties to even) and returns [low, high].
  static Operand Round(Register low, Register high) {
    return reinterpret_cast<Operand>(_mm512_cvtne2ps_pbh(high, low));
  }
  // Packed words of one lane: its first `present` inner indices, then zeros.
  static Operand LoadInner(const float* x, std::int64_t present) {
    if (present >= 2 * kLanes) return Round(Load(x), Load(x + kLanes));
    return Round(LoadPart(x, present), LoadPart(x + kLanes, present - kLanes));
  }
  // For each of kWidth neighbouring lanes, packs the word of the first inner index (two indices, if
  // inner > 1). Lanes from `present` on become zeros.
  template <int kWidth>
  static void CopyLanes(const float* from, std::int64_t inner_stride, std::int64_t present,
                        std::int64_t inner, Word* to) {
    const __m512i pairs =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
#pragma GCC unroll 2
    for (int i = 0; i < kWidth; i += kLanes) {
      const std::int64_t lanes = (present < kWidth ? present : kWidth) - i;
      const Register first = LoadPart(from + i, lanes);
      const Register second = inner > 1 ? LoadPart(from + inner_stride + i, lanes) : Register{};
      _mm512_mask_storeu_epi32(
          to + i, Mask(kWidth - i),
          _mm512_permutexvar_epi16(pairs, reinterpret_cast<__m512i>(Round(first, second))));
    }
  }
};

void RoundRow(const float* from, std::int64_t count, std::uint16_t* to) {
  constexpr std::int64_t kStep = 2 * Bf16x32::kLanes;
  for (std::int64_t i = 0; i < count; i += kStep) {
    const auto rounded = reinterpret_cast<__m512i>(Bf16x32::LoadInner(from + i, count - i));
    const __mmask32 present =
        count - i >= kStep ? ~__mmask32{0} : (__mmask32{1} << (count - i)) - 1;
    _mm512_mask_storeu_epi16(to + i, present, rounded);
  }
}

}  // namespace

constinit const Bf16Kernels kBf16Avx512{MakeKernels<Bf16x32, 14, 2, kBf16Block>(), &RoundRow};

}  // namespace trireme::kernels
