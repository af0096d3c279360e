#include "trireme/driver/roof.hpp"

#include <algorithm>
#include <chrono>

#include "trireme/device/arena.hpp"
#include "trireme/kernels/matrix_multiply.hpp"

namespace trireme::driver {

namespace {

// Numbers of ordinary size: a processor may run zeros at a higher clock.
void Fill(const tensor::Matrix& m) {
  DispatchDtype(m.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (std::int64_t i = 0; i < m.Size(); ++i) m.As<T>()[i] = T(1) + static_cast<T>(i % 7);
  });
}

}  // namespace

double MeasureRoof(const device::Stream& stream, Dtype dtype) {
  constexpr std::int64_t kSize = 1024;
  constexpr double kSeconds = 0.1;
  constexpr int kLeast = 5, kMost = 50;
  constexpr double kFlops = 2.0 * kSize * kSize * kSize;
  const std::int64_t bytes = kSize * kSize * static_cast<std::int64_t>(SizeOf(dtype));
  device::Arena arena(3 * bytes);
  const tensor::Matrix a = tensor::Allocate(arena, dtype, kSize, kSize);
  const tensor::Matrix b = tensor::Allocate(arena, dtype, kSize, kSize);
  const tensor::Matrix c = tensor::Allocate(arena, dtype, kSize, kSize);
  for (const tensor::Matrix& operand : {a, b}) Fill(operand);
  using Clock = std::chrono::steady_clock;
  double best = 0, total = 0;
  for (int i = 0; i < kMost && (i < kLeast || total < kSeconds); ++i) {
    const auto start = Clock::now();
    kernels::MatrixMultiply(stream, kernels::Form::kPlain, a, kernels::Form::kPlain, b, c, false);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    total += seconds;
    best = std::max(best, kFlops / seconds);
  }
  return best;
}

}  // namespace trireme::driver
