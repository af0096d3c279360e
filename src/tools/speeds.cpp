// Single measurements: products and memory on a rank's own device, messages between ranks.
#include "speeds.hpp"

#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <vector>

#include "trireme/base/clock.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/matrix_multiply.hpp"
#include "trireme/kernels/roof.hpp"
#include "trireme/tools/measure.hpp"

namespace trireme::tools {

namespace {

using kernels::Matrix;

constexpr int kSpeedTag = 72;

// A product of numbers near 1: its bytes, and whether all are finite.
std::vector<std::byte> MultiplyOnce(const device::Stream& stream, Dtype dtype, bool& finite) {
  constexpr std::int64_t kSize = 512;
  const auto element = static_cast<std::int64_t>(SizeOf(dtype));
  const std::int64_t bytes = kSize * kSize * element;
  device::Arena arena(3 * bytes, stream.Where());
  const Matrix a = kernels::Allocate(arena, dtype, kSize, kSize);
  const Matrix b = kernels::Allocate(arena, dtype, kSize, kSize);
  const Matrix c = kernels::Allocate(arena, dtype, kSize, kSize);
  constexpr std::int64_t kPattern = 1021;  // a prime, so that rows differ
  std::vector<std::byte> pattern(static_cast<std::size_t>(kPattern * element));
  for (std::int64_t i = 0; i < kPattern; ++i) {
    const double value = 0.5 + static_cast<double>(i) / kPattern;
    std::byte* const at = pattern.data() + i * element;
    if (dtype == Dtype::kFloat64) {
      std::memcpy(at, &value, sizeof value);
    } else {
      // bf16 is the upper half of fp32.
      const auto single = static_cast<float>(value);
      const auto* const from = reinterpret_cast<const std::byte*>(&single);
      std::memcpy(at, from + sizeof single - element, static_cast<std::size_t>(element));
    }
  }
  for (const Matrix& operand : {a, b}) device::Repeat(stream, pattern, operand.data, bytes);
  kernels::MatrixMultiply(stream, kernels::Form::kPlain, a, kernels::Form::kPlain, b, c, false);
  std::vector<std::byte> result(static_cast<std::size_t>(bytes));
  device::CopyOut(stream, c.data, result.data(), bytes);
  device::Synchronise(stream);
  // Widened to fp64, which keeps infinities and NaNs.
  for (std::int64_t i = 0; i < kSize * kSize; ++i) {
    double value = 0;
    const std::byte* const at = result.data() + i * element;
    if (dtype == Dtype::kFloat64) {
      std::memcpy(&value, at, sizeof value);
    } else {
      float single = 0;
      std::memcpy(reinterpret_cast<std::byte*>(&single) + sizeof single - element, at,
                  static_cast<std::size_t>(element));
      value = single;
    }
    finite = finite && std::isfinite(value);
  }
  return result;
}

// Seconds of the fastest of several calls of `once`, over at most `seconds` in all.
double Fastest(double seconds, int least, const std::function<void()>& once) {
  double best = 0, total = 0;
  for (int i = 0; i < least || total < seconds; ++i) {
    const double start = Seconds();
    once();
    const double took = Seconds() - start;
    best = i == 0 ? took : std::min(best, took);
    total += took;
  }
  return best;
}

void Exchange(const comm::Communicator& group, int partner, std::vector<char>& sent,
              std::vector<char>& taken, std::int64_t bytes) {
  MPI_Sendrecv(sent.data(), static_cast<int>(bytes), MPI_CHAR, partner, kSpeedTag, taken.data(),
               static_cast<int>(bytes), MPI_CHAR, partner, kSpeedTag, group.Handle(),
               MPI_STATUS_IGNORE);
}

// Messages whose exchange takes about kWanted seconds with the slowest partner, so that all agree
// on their size. partner: -1: none.
constexpr std::int64_t kLeastBytes = std::int64_t{1} << 18, kMostBytes = std::int64_t{1} << 25;
struct Messages {
  explicit Messages(std::int64_t size)
      : bytes(size), sent(static_cast<std::size_t>(size), 1), taken(sent) {}
  std::int64_t bytes;
  std::vector<char> sent, taken;
};
std::int64_t ChooseBytes(const comm::Communicator& group, int partner) {
  constexpr double kWanted = 0.02;
  Messages probe(kLeastBytes);
  double seconds = 0;
  if (partner >= 0) {
    seconds =
        Fastest(0, 2, [&] { Exchange(group, partner, probe.sent, probe.taken, probe.bytes); });
  }
  seconds = group.Max(seconds);
  std::int64_t bytes = kLeastBytes;
  while (seconds < kWanted / 2 && bytes < kMostBytes) {
    bytes *= 2;
    seconds *= 2;
  }
  return bytes;
}

constexpr int kExchanges = 3;  // the fastest counts
double BothWays(std::int64_t bytes, double seconds) {
  return seconds > 0 ? 2 * static_cast<double>(bytes) / seconds : 0;
}

}  // namespace

Product MeasureProduct(const device::Stream& stream, Dtype dtype) {
  Product product;
  bool finite = true;
  const std::vector<std::byte> first = MultiplyOnce(stream, dtype, finite);
  product.flops = kernels::MeasureRoof(stream, dtype);
  const std::vector<std::byte> second = MultiplyOnce(stream, dtype, finite);
  product.right = finite && first == second;
  return product;
}

double MeasureMemory(const device::Stream& stream) {
  constexpr std::int64_t kHostBytes = std::int64_t{32} << 20, kCardBytes = std::int64_t{512} << 20;
  constexpr std::int64_t kPiece = 4096;
  constexpr double kSeconds = 0.15;
  const std::int64_t bytes = stream.OnGpu() ? kCardBytes : kHostBytes;
  device::Arena arena(2 * bytes, stream.Where());
  auto* const from = static_cast<std::byte*>(arena.Allocate(bytes));
  auto* const to = static_cast<std::byte*>(arena.Allocate(bytes));
  const auto on_host = [&] {
  // Each thread copies a part that stays the same, so that its pages are near.
#pragma omp parallel for num_threads(stream.threads) schedule(static)
    for (std::int64_t i = 0; i < bytes / kPiece; ++i) {
      std::memcpy(to + i * kPiece, from + i * kPiece, kPiece);
    }
  };
  const auto on_card = [&] {
    device::CopyWithin(stream, from, to, bytes);
    device::Synchronise(stream);
  };
  const double seconds = Fastest(kSeconds, 3, [&] { stream.OnGpu() ? on_card() : on_host(); });
  return 2 * static_cast<double>(bytes) / seconds;
}

Pairs MeasurePairs(const comm::Communicator& units) {
  Pairs pairs;
  if (units.Size() < 2) return pairs;
  const std::vector<int> rounds = ChosenRounds(units.Size());
  const auto partner_in = [&](int round) { return Partner(units.Rank(), round, units.Size()); };
  Messages messages(ChooseBytes(units, partner_in(rounds.front())));
  std::vector<double> speeds;
  for (const int round : rounds) {
    const int partner = partner_in(round);
    units.Barrier();
    if (partner < 0) continue;
    const double seconds = Fastest(0, kExchanges, [&] {
      Exchange(units, partner, messages.sent, messages.taken, messages.bytes);
    });
    speeds.push_back(BothWays(messages.bytes, seconds));
    if (pairs.worst > 0 && speeds.back() >= pairs.worst) continue;
    pairs.worst = speeds.back();
    pairs.worst_partner = partner;
  }
  if (speeds.empty()) return pairs;
  const auto middle = speeds.begin() + std::ssize(speeds) / 2;
  std::ranges::nth_element(speeds, middle);
  pairs.median = *middle;
  return pairs;
}

double MeasureTogether(const comm::Communicator& world) {
  const int half = world.Size() / 2;
  if (half == 0) return 0;
  const int rank = world.Rank();
  const int partner = rank < half ? rank + half : rank < 2 * half ? rank - half : -1;
  Messages messages(ChooseBytes(world, partner));
  double seconds = 0;
  world.Barrier();
  if (partner >= 0) {
    seconds = Fastest(0, kExchanges, [&] {
      Exchange(world, partner, messages.sent, messages.taken, messages.bytes);
    });
  }
  return BothWays(messages.bytes, seconds);
}

double MeasureAllReduce(const comm::Communicator& world) {
  if (world.Size() == 1) return 0;
  constexpr int kElements = 1 << 20;  // 4 MiB
  std::vector<float> values(kElements, 0), sums(kElements);
  world.Barrier();
  const double seconds = Fastest(0, kExchanges, [&] {
    MPI_Allreduce(values.data(), sums.data(), kElements, MPI_FLOAT, MPI_SUM, world.Handle());
  });
  return static_cast<double>(kElements) * sizeof(float) / world.Max(seconds);
}

}  // namespace trireme::tools
