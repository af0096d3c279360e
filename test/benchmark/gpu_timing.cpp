// Times of what is queued on a GPU.
#include "gpu_timing.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "gpu_job.hpp"
#include "trireme/base/dtype.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::benchmark {

namespace {

// Twice what any card's caches hold (H200: 50 MiB; B200: 126 MiB).
constexpr double kCold = 256.0 * 1024 * 1024;  // bytes
constexpr int kMostSets = 32;

constexpr std::int64_t kPattern = 1 << 18;  // elements

// Random numbers from -1 to 1, of the type.
std::vector<std::byte> MakePattern(Dtype dtype) {
  const std::int64_t count = kPattern;
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * SizeOf(dtype));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto words = Philox({static_cast<std::uint32_t>(i), 0, 0, 0}, {7, 0});
    const double value = static_cast<double>(words[0]) / 2147483648.0 - 1;
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

// Made once a type: operands are many.
const std::vector<std::byte>& Pattern(Dtype dtype) {
  static std::map<Dtype, std::vector<std::byte>> patterns;
  std::vector<std::byte>& pattern = patterns[dtype];
  if (pattern.empty()) pattern = MakePattern(dtype);
  return pattern;
}

}  // namespace

void* Operands::Zeros(std::int64_t bytes) {
  return memory_.emplace_back(device::AllocateZeroed(bytes, stream_->Where())).get();
}

void* Operands::Copied(const void* host, std::int64_t bytes) {
  void* const data = Zeros(bytes);
  device::CopyIn(*stream_, host, data, bytes);
  return data;
}

kernels::Matrix Operands::Matrix(Dtype dtype, std::int64_t rows, std::int64_t columns) {
  const std::int64_t count = rows * columns, size = static_cast<std::int64_t>(SizeOf(dtype));
  void* const data = Zeros(count * size);
  device::Repeat(*stream_, Pattern(dtype), data, count * size);
  return {data, dtype, rows, columns, columns};
}

double SecondsOf(const device::Stream& stream, const std::vector<Call>& calls, bool quick) {
  constexpr double kRound = 0.03;  // seconds
  constexpr int kRounds = 5, kMost = 1000;
  device::Event begin(stream, true), end(stream, true);
  const auto round = [&](int count) {
    begin.Record(stream.gpu->queue);
    for (int i = 0; i < count; ++i) calls[static_cast<std::size_t>(i) % calls.size()]();
    end.Record(stream.gpu->queue);
    end.Await();
    return end.SecondsSince(begin) / count;
  };
  const int all = static_cast<int>(calls.size());
  const double first = round(all);  // code is loaded
  if (quick) return round(all);
  const double estimate = std::min(first, round(all));
  const int count = std::clamp(static_cast<int>(std::ceil(kRound / estimate)), all, kMost);
  std::vector<double> seconds;
  for (int i = 0; i < kRounds; ++i) seconds.push_back(round(count));
  return MedianOf(seconds);
}

double SecondsCold(const device::Stream& stream, double bytes,
                   const std::function<Call(Operands&)>& make, bool quick) {
  const int wanted = static_cast<int>(std::min(std::ceil(kCold / bytes), 1.0 * kMostSets));
  const int sets = quick ? 1 : std::max(wanted, 1);
  std::vector<std::unique_ptr<Operands>> operands;
  std::vector<Call> calls;
  for (int i = 0; i < sets; ++i) {
    calls.push_back(make(*operands.emplace_back(std::make_unique<Operands>(stream))));
  }
  const double seconds = SecondsOf(stream, calls, quick);
  device::Synchronise(stream);  // before the operands go
  return seconds;
}

double CopySpeed(const device::Stream& stream, bool quick) {
  const std::int64_t bytes = std::int64_t{1} << (quick ? 20 : 30);
  const double moved = 2.0 * static_cast<double>(bytes);
  const double seconds = SecondsCold(
      stream, moved,
      [&](Operands& operands) {
        void *const from = operands.Zeros(bytes), *const to = operands.Zeros(bytes);
        return [&stream, from, to, bytes] { device::CopyWithin(stream, from, to, bytes); };
      },
      quick);
  return moved / seconds;
}

}  // namespace trireme::benchmark
