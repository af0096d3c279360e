// Histograms: buckets, and their sums over the ranks that hold parts of a tensor.
#include "trireme/report/histogram.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <utility>

namespace trireme::report {

namespace {

constexpr double kSmallest = 1e-12, kLargest = 1e20, kGrowth = 1.1;

std::vector<double> MakeLimits() {
  std::vector<double> positive;
  for (double limit = kSmallest; limit < kLargest; limit *= kGrowth) positive.push_back(limit);
  positive.push_back(std::numeric_limits<double>::max());
  std::vector<double> limits(positive.rbegin(), positive.rend());
  for (double& limit : limits) limit = -limit;
  limits.push_back(0);
  limits.insert(limits.end(), positive.begin(), positive.end());
  return limits;
}

// Finds buckets without a search: the first limit that can be above a value, for each range of
// values with the same leading bits, which are narrower than a bucket.
class BucketFinder {
 public:
  BucketFinder() : limits_(Histogram::Limits()) {
    for (std::uint64_t key = 0; key < kFinite; ++key) {
      const double lowest = std::bit_cast<double>(key << kDropped);
      const auto above = std::upper_bound(limits_.begin(), limits_.end(), lowest);
      first_[key] = static_cast<std::uint16_t>(above - limits_.begin());
      const double most_negative = -std::bit_cast<double>(((key + 1) << kDropped) - 1);
      const auto below = std::upper_bound(limits_.begin(), limits_.end(), most_negative);
      first_negative_[key] = static_cast<std::uint16_t>(below - limits_.begin());
    }
  }

  // Bucket of a number; infinities are in the outermost ones.
  std::size_t operator()(double value) const {
    const std::uint64_t key = (std::bit_cast<std::uint64_t>(value) & kMagnitude) >> kDropped;
    if (key >= kFinite) return value < 0 ? 0 : limits_.size() - 1;
    std::size_t at = value < 0 ? first_negative_[key] : first_[key];
    while (at + 1 < limits_.size() && value >= limits_[at]) ++at;
    return at;
  }

 private:
  static constexpr int kDropped = 52 - 4;  // bits: ranges are at most 1/16 wide
  static constexpr std::uint64_t kMagnitude = ~(std::uint64_t{1} << 63);
  static constexpr std::size_t kFinite = std::size_t{0x7FF} << (52 - kDropped);  // of the exponent

  const std::vector<double>& limits_;
  std::array<std::uint16_t, kFinite> first_{}, first_negative_{};
};

}  // namespace

const std::vector<double>& Histogram::Limits() {
  static const std::vector<double> limits = MakeLimits();
  return limits;
}

Histogram::Histogram() : counts_(Limits().size(), 0) {}

void Histogram::Add(double value) {
  static const BucketFinder find;
  if (std::isnan(value)) return;
  ++counts_[find(value)];
  min_ = std::min(min_, value);
  max_ = std::max(max_, value);
  sum_.Add(value);
  squares_.Add(value * value);
}

double Histogram::Count() const {
  double count = 0;
  for (const double bucket : counts_) count += bucket;
  return count;
}

std::size_t Histogram::Addable() { return Limits().size() + 2 * ExactSum::kNumbers; }

void Histogram::Pack(std::span<double> addable, std::span<double, 2> maxima) const {
  auto next = std::ranges::copy(counts_, addable.begin()).out;
  next = std::ranges::copy(sum_.Digits(), next).out;
  std::ranges::copy(squares_.Digits(), next);
  maxima[0] = -min_;
  maxima[1] = max_;
}

Histogram Histogram::Unpack(std::span<const double> addable, std::span<const double, 2> maxima) {
  Histogram histogram;
  const std::size_t buckets = Limits().size();
  std::ranges::copy(addable.first(buckets), histogram.counts_.begin());
  histogram.sum_ = ExactSum::FromDigits(addable.subspan(buckets, ExactSum::kNumbers));
  histogram.squares_ = ExactSum::FromDigits(addable.subspan(buckets + ExactSum::kNumbers));
  histogram.min_ = -maxima[0];
  histogram.max_ = maxima[1];
  return histogram;
}

namespace {

constexpr std::int64_t kSegment = std::int64_t{1} << 16;  // elements that one copy counts in turn

// Part of this rank: copies of a tensor take turns at segments, which lie at the same places of it
// whatever the block.
Histogram PartOf(const kernels::StateBlock& block, const ReadBlock& read, double divisor,
                 std::vector<std::byte>& buffer) {
  Histogram histogram;
  for (std::int64_t first = block.begin; first < block.end;) {
    const std::int64_t segment = first / kSegment;
    const std::int64_t last = std::min((segment + 1) * kSegment, block.end);
    if (segment % block.replicas == block.replica) {
      DispatchDtype(block.dtype, [&](auto zero) {
        using T = decltype(zero);
        const T* values = static_cast<const T*>(block.data) + (first - block.begin);
        if (read) {
          buffer.resize(static_cast<std::size_t>(kSegment) * sizeof(T));
          read(block, first, last, buffer.data());
          values = reinterpret_cast<const T*>(buffer.data());
        }
        for (std::int64_t i = 0; i < last - first; ++i) {
          histogram.Add(static_cast<double>(values[i]) / divisor);
        }
      });
    }
    first = last;
  }
  return histogram;
}

}  // namespace

std::vector<NamedHistogram> HistogramsOf(const comm::Collectives& world,
                                         std::span<const kernels::StateBlock> blocks,
                                         const ReadBlock& read, const std::string& prefix,
                                         double divisor) {
  constexpr std::size_t kAtOnce = 32;  // tensors in a transfer: below a MiB
  const std::size_t addable = Histogram::Addable();
  std::vector<NamedHistogram> whole;
  std::vector<double> sums(kAtOnce * addable), maxima(kAtOnce * 2);
  std::vector<std::byte> buffer;
  const auto parts = [&](std::size_t i) {
    return std::pair(std::span(sums).subspan(i * addable, addable),
                     std::span<double, 2>(std::span(maxima).subspan(i * 2, 2)));
  };
  for (std::size_t first = 0; first < blocks.size(); first += kAtOnce) {
    const std::size_t count = std::min(kAtOnce, blocks.size() - first);
    for (std::size_t i = 0; i < count; ++i) {
      const auto [sum, extremes] = parts(i);
      PartOf(blocks[first + i], read, divisor, buffer).Pack(sum, extremes);
    }
    world.AllReduce(Dtype::kFloat64, sums.data(), static_cast<std::int64_t>(count * addable));
    world.AllReduce(Dtype::kFloat64, maxima.data(), static_cast<std::int64_t>(count * 2),
                    comm::Reduction::kMax);
    for (std::size_t i = 0; i < count && world.Rank() == 0; ++i) {
      const auto [sum, extremes] = parts(i);
      whole.push_back({prefix + blocks[first + i].name, Histogram::Unpack(sum, extremes)});
    }
  }
  return whole;
}

}  // namespace trireme::report
