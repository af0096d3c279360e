// Curve: buckets of equally many steps; twice as many steps once there are too many buckets.
#include "curve.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

namespace trireme::tools {

namespace {

constexpr std::array<const char*, 8> kBlocks = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr std::string_view kAscii = "_.-=+*%#";

}  // namespace

void Curve::Add(std::int64_t step, double value) {
  if (!buckets_.empty() && step <= last_) {
    while (!buckets_.empty() && buckets_.back().number >= step / width_) buckets_.pop_back();
  }
  last_ = step;
  if (buckets_.empty() || buckets_.back().number != step / width_) {
    buckets_.push_back({.number = step / width_});
    if (buckets_.size() > kMostBuckets) Halve();
  }
  Bucket& bucket = buckets_.back();
  if (!std::isfinite(value)) {
    bucket.bad = true;
    return;
  }
  bucket.sum += value;
  ++bucket.count;
}

void Curve::Halve() {
  width_ *= 2;
  std::vector<Bucket> half;
  half.reserve(kMostBuckets + 1);
  for (Bucket bucket : buckets_) {
    bucket.number /= 2;
    if (half.empty() || half.back().number != bucket.number) {
      half.push_back(bucket);
      continue;
    }
    half.back() += bucket;
  }
  buckets_ = std::move(half);
}

std::string Curve::Bars(int columns, bool blocks) const {
  if (buckets_.empty() || columns <= 0) return {};
  const std::size_t used = std::min(static_cast<std::size_t>(columns), buckets_.size());
  std::vector<Bucket> bars(used);
  for (std::size_t i = 0; i < buckets_.size(); ++i) bars[i * used / buckets_.size()] += buckets_[i];
  double least = std::numeric_limits<double>::infinity(), most = -least;
  for (const Bucket& bar : bars) {
    if (bar.count == 0) continue;
    least = std::min(least, bar.Mean());
    most = std::max(most, bar.Mean());
  }
  std::string text;
  for (const Bucket& bar : bars) {
    if (bar.bad) {
      text += '!';
      continue;
    }
    const double height = most > least ? (bar.Mean() - least) / (most - least) : 0;
    const auto level = static_cast<std::size_t>(std::clamp(height * 8, 0.0, 7.0));
    if (blocks) {
      text += kBlocks[level];
    } else {
      text += kAscii[level];
    }
  }
  return text;
}

}  // namespace trireme::tools
