// Measurement of the matrix-multiply speed.
#include "trireme/kernels/linear.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <vector>

#include "trireme/base/dtype.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::kernels {

namespace {

constexpr double kSeconds = 0.1;  // for measuring one size
constexpr int kLeast = 5, kMost = 50;
// Ranks that share cores have slow products, and starting up should not wait for many of them.
constexpr double kPatience = 0.25;  // seconds
// Larger memory than a C library keeps for reuse, so that it goes back to the system at the end
// (glibc maps blocks from 32 MiB on separately).
constexpr std::int64_t kMapped = std::int64_t{40} << 20;

// Number of different values; a prime, so that rows of any size differ.
constexpr std::int64_t kPattern = 4093;

// Normally distributed (Box-Muller), as weights and activations nearly are: a GPU multiplies
// numbers with few bits at less power, so at a higher clock than it reaches in training.
std::vector<std::byte> Pattern(Dtype dtype) {
  std::vector<std::byte> bytes(kPattern * SizeOf(dtype));
  for (std::int64_t i = 0; i < kPattern; ++i) {
    const PhiloxCounter words =
        Philox({static_cast<std::uint32_t>(i)}, MakeKey(0, Purpose::kInitialise));
    const double value = std::sqrt(-2 * std::log(UniformFrom(words[0]))) *
                         std::cos(2 * std::numbers::pi * UniformFrom(words[1]));
    void* const at = ElementAt(bytes.data(), dtype, i);
    if (dtype == Dtype::kBfloat16) {
      *static_cast<std::uint16_t*>(at) = RoundToBfloat16(static_cast<float>(value));
    } else {
      DispatchDtype(dtype, [&](auto zero) {
        *static_cast<decltype(zero)*>(at) = static_cast<decltype(zero)>(value);
      });
    }
  }
  return bytes;
}

// The speed of the fastest of several products of this size, and the seconds it took.
struct Speed {
  double flops = 0, seconds = 0;
};
Speed Measure(const device::Stream& stream, Dtype dtype, std::int64_t size) {
  const std::int64_t bytes = size * size * static_cast<std::int64_t>(SizeOf(dtype));
  device::Arena arena(std::max(3 * bytes, kMapped), stream.Where());
  const Matrix a = Allocate(arena, dtype, size, size);
  const Matrix b = Allocate(arena, dtype, size, size);
  const Matrix c = Allocate(arena, dtype, size, size);
  const std::vector<std::byte> pattern = Pattern(dtype);
  for (const Matrix& operand : {a, b}) {
    device::Repeat(stream, pattern, operand.data,
                   operand.Size() * static_cast<std::int64_t>(SizeOf(dtype)));
  }
  using Clock = std::chrono::steady_clock;
  const double flops = 2.0 * static_cast<double>(size) * static_cast<double>(size * size);
  Speed best;
  double total = 0;
  const auto goes_on = [&](int done) {
    if (done < 2) return true;  // the first product loads code and touches memory
    return total < kSeconds ? done < kMost : done < kLeast && total < kPatience;
  };
  for (int i = 0; goes_on(i); ++i) {
    const auto start = Clock::now();
    kernels::MatrixMultiply(stream, kernels::Form::kPlain, a, kernels::Form::kPlain, b, c, false);
    device::Synchronise(stream);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    total += seconds;
    if (flops / seconds > best.flops) best = {flops / seconds, seconds};
  }
  return best;
}

}  // namespace

double MeasureRoof(const device::Stream& stream, Dtype dtype) {
  constexpr std::int64_t kSize = 1024, kLargest = 8192;
  constexpr double kLongEnough = 1e-3;  // seconds; beside this the launch does not matter
  Speed best = Measure(stream, dtype, kSize);
  // A GPU needs larger matrices to reach its speed.
  for (std::int64_t size = 2 * kSize; stream.OnGpu() && size <= kLargest; size *= 2) {
    if (best.seconds > kLongEnough) break;
    const Speed speed = Measure(stream, dtype, size);
    if (speed.flops > best.flops) best = speed;
  }
  return best.flops;
}

}  // namespace trireme::kernels
