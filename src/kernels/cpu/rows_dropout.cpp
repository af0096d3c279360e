// Philox lanes for one row, sixteen counters at a time, and the mask they make.
#include <algorithm>

#include "clones.hpp"
#include "rows.hpp"

namespace trireme::kernels::rows {

namespace {

constexpr int kWide = 16;  // counters a pass: one AVX-512 register of 32-bit words

template <typename T>
[[gnu::always_inline]] inline void MaskOf(const T* x, const RowLanes& lanes, T* y, std::int64_t n) {
  const T scale = static_cast<T>(lanes.scale);
  const std::uint32_t threshold = lanes.threshold;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] = lanes.lanes[i] >= threshold ? scale * x[i] : T(0);
}

}  // namespace

TRIREME_CLONES void PhiloxLanes(PhiloxKey key, std::uint32_t c0, std::uint32_t c1, std::uint32_t c2,
                                std::uint32_t c3, std::int64_t n, std::uint16_t* lanes) {
  const std::int64_t counters = (n + 7) / 8;
  for (std::int64_t first = 0; first < counters; first += kWide) {
    std::uint32_t words[4][kWide];
#pragma omp simd
    for (int j = 0; j < kWide; ++j) {
      // Rounds as in base/philox.hpp, here so that the loop over counters vectorises.
      std::uint32_t a = c0 + static_cast<std::uint32_t>(first) + static_cast<std::uint32_t>(j);
      std::uint32_t b = c1, c = c2, d = c3, k0 = key[0], k1 = key[1];
#pragma GCC unroll 10
      for (int round = 0; round < 10; ++round) {
        const std::uint64_t p0 = std::uint64_t{0xD2511F53} * a;
        const std::uint64_t p1 = std::uint64_t{0xCD9E8D57} * c;
        a = static_cast<std::uint32_t>(p1 >> 32) ^ b ^ k0;
        c = static_cast<std::uint32_t>(p0 >> 32) ^ d ^ k1;
        b = static_cast<std::uint32_t>(p1);
        d = static_cast<std::uint32_t>(p0);
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
      }
      words[0][j] = a;
      words[1][j] = b;
      words[2][j] = c;
      words[3][j] = d;
    }
    const int count = static_cast<int>(std::min<std::int64_t>(kWide, counters - first));
    for (int j = 0; j < count; ++j) {
      std::uint16_t* out = lanes + (first + j) * 8;
      for (int word = 0; word < 4; ++word) {
        out[2 * word] = static_cast<std::uint16_t>(words[word][j]);
        out[2 * word + 1] = static_cast<std::uint16_t>(words[word][j] >> 16);
      }
    }
  }
}

TRIREME_CLONES void Mask(const float* x, const RowLanes& lanes, float* y, std::int64_t n) {
  MaskOf(x, lanes, y, n);
}
void Mask(const double* x, const RowLanes& lanes, double* y, std::int64_t n) {
  MaskOf(x, lanes, y, n);
}

}  // namespace trireme::kernels::rows
