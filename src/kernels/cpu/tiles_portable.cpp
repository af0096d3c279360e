// Attention's tiles for any instruction set: vectors of 16 bytes, which every processor has.
#include <algorithm>

#include "attention_tile.hpp"
#include "philox_lanes.hpp"
#include "thin_tile.hpp"

namespace trireme::kernels {

constinit const AttentionKernels kAttentionPortable{
    "portable", MakeAttentionKernels<Vector<float, 16>, 6, 2>(),
    MakeAttentionKernels<Vector<double, 16>, 6, 2>()};

// Products with few rows for any instruction set: vectors of 16 bytes, which every processor has.

constinit const ThinKernels kThinPortable{
    "portable",
    {&ThinTransposed<Vector<float, 16>, 4, 2, 4>, &ThinPlain<Vector<float, 16>, 4, 2, 8>,
     &ThinPanels<Vector<float, 16>, 4, 2>},
    {&ThinTransposed<Vector<double, 16>, 4, 2, 2>, &ThinPlain<Vector<double, 16>, 4, 2, 8>,
     &ThinPanels<Vector<double, 16>, 4, 2>}};

// Philox lanes for any CPU: a loop over counters that compilers vectorise.

namespace {

constexpr int kWide = 16;  // counters per pass

void Fill(const PhiloxRow& row, std::int64_t n, std::uint16_t* lanes) {
  const std::int64_t counters = (n + 7) / 8;
  for (std::int64_t first = 0; first < counters; first += kWide) {
    std::uint32_t words[4][kWide];
#pragma omp simd
    for (int j = 0; j < kWide; ++j) {
      // The rounds of base/philox.hpp, repeated here so that the loop over counters vectorises.
      std::uint32_t a = row.c0 + static_cast<std::uint32_t>(first) + static_cast<std::uint32_t>(j);
      std::uint32_t b = row.c1, c = row.c2, d = row.c3, k0 = row.k0, k1 = row.k1;
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

}  // namespace

constinit const PhiloxLanesKernel kPhiloxPortable{"portable", Fill};

}  // namespace trireme::kernels
