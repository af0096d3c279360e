// Philox lanes for one row, and the mask made of them.
#include "clones.hpp"
#include "philox_lanes.hpp"
#include "rows.hpp"

namespace trireme::kernels::rows {

namespace {

template <typename T>
[[gnu::always_inline]] inline void MaskOf(const T* x, const std::uint16_t* lanes,
                                          std::uint32_t threshold, T scale, T* y, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] = lanes[i] >= threshold ? scale * x[i] : T(0);
}

}  // namespace

void PhiloxLanes(PhiloxKey key, std::uint32_t c0, std::uint32_t c1, std::uint32_t c2,
                 std::uint32_t c3, std::int64_t n, std::uint16_t* lanes) {
  static const PhiloxLanesFunction fill = UsablePhiloxLanes().all[0]->fill;
  fill({key[0], key[1], c0, c1, c2, c3}, n, lanes);
}

TRIREME_CLONES void Mask(const float* x, const std::uint16_t* lanes, std::uint32_t threshold,
                         float scale, float* y, std::int64_t n) {
  MaskOf(x, lanes, threshold, scale, y, n);
}
void Mask(const double* x, const std::uint16_t* lanes, std::uint32_t threshold, double scale,
          double* y, std::int64_t n) {
  MaskOf(x, lanes, threshold, scale, y, n);
}

}  // namespace trireme::kernels::rows
