// Choosing the next token: logits are put into buckets; only the bucket drawn is sorted.
#include "generator.hpp"

#include <algorithm>
#include <array>
#include <numeric>

#include "trireme/base/philox.hpp"
#include "trireme/tasks/evaluate.hpp"
#include "trireme/tasks/tasks.hpp"

namespace trireme::tasks {

namespace {

// The logits that a draw may choose, with their weights summed in buckets of similar logits.
class Candidates {
 public:
  // logits must outlive this. top_k: number of likeliest logits to keep; 0: all.
  Candidates(std::span<const double> logits, std::int64_t top_k, double temperature)
      : logits_(logits) {
    if (top_k > 0 && top_k < std::ssize(logits)) Keep(static_cast<std::size_t>(top_k));
    const Extremes extremes = ExtremesOf(logits_);
    const double least = extremes.least;
    top_ = extremes.most;
    scale_ = top_ - least > kTiny ? kBuckets / (top_ - least) : 0;
    last_ = BucketOf(least);
    Weigh(logits_, top_, temperature, weights_);
    for (std::size_t i = 0; i < logits_.size(); ++i) sums_[BucketOf(logits_[i])] += weights_[i];
    for (const double sum : sums_) total_ += sum;
  }
  double Total() const { return total_; }

  struct Place {
    std::int32_t id = 0;
    double sum = 0;  // of weights up to this candidate, itself included
  };
  // Goes through candidates by falling logits, then ascending ids, and returns the first at which
  // the sum of weights reaches `target`, or the last one. Sorts only the bucket where that happens.
  Place Reach(double target) const {
    Place place;
    std::size_t bucket = 0;
    while (bucket < last_ && place.sum + sums_[bucket] < target) place.sum += sums_[bucket++];
    std::vector<std::size_t> some;
    for (std::size_t i = 0; i < logits_.size(); ++i) {
      if (BucketOf(logits_[i]) == bucket) some.push_back(i);
    }
    std::ranges::sort(some, [this](std::size_t a, std::size_t b) {
      return logits_[a] != logits_[b] ? logits_[a] > logits_[b] : a < b;
    });
    for (const std::size_t i : some) {
      place.id = ids_.empty() ? static_cast<std::int32_t>(i) : ids_[i];
      place.sum += weights_[i];
      if (place.sum >= target) break;
    }
    return place;
  }

 private:
  static constexpr std::size_t kBuckets = 1024;
  static constexpr double kTiny = 1e-300;  // has a finite inverse

  // Keeps the `count` likeliest logits, in the order of their ids.
  void Keep(std::size_t count) {
    ids_.resize(logits_.size());
    std::iota(ids_.begin(), ids_.end(), 0);
    const auto logit = [this](std::int32_t id) { return logits_[static_cast<std::size_t>(id)]; };
    std::nth_element(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(count), ids_.end(),
                     [&](std::int32_t a, std::int32_t b) {
                       return logit(a) != logit(b) ? logit(a) > logit(b) : a < b;
                     });
    ids_.resize(count);
    std::ranges::sort(ids_);
    for (const std::int32_t id : ids_) kept_.push_back(logit(id));
    logits_ = kept_;
  }
  std::size_t BucketOf(double logit) const {
    const auto bucket = static_cast<std::int32_t>((top_ - logit) * scale_);  // at most kBuckets
    return std::min(kBuckets - 1, static_cast<std::size_t>(bucket));
  }

  std::span<const double> logits_;
  std::vector<double> kept_, weights_;
  std::vector<std::int32_t> ids_;  // empty: all logits are candidates
  double top_ = 0, scale_ = 0, total_ = 0;
  std::size_t last_ = 0;  // bucket of the smallest logit
  std::array<double, kBuckets> sums_{};
};

}  // namespace

double DrawOf(std::uint32_t seed, std::int64_t prompt, std::int64_t position) {
  const auto number = static_cast<std::uint64_t>(prompt);
  const PhiloxCounter words =
      Philox({static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(number),
              static_cast<std::uint32_t>(number >> 32), 0},
             MakeKey(seed, Purpose::kGenerate));
  return UniformFrom(words[0]);
}

void Penalise(std::span<const std::int32_t> seen, double penalty, std::vector<double>& logits) {
  if (penalty == 1) return;
  std::vector<std::int32_t> once(seen.begin(), seen.end());
  std::ranges::sort(once);
  once.erase(std::unique(once.begin(), once.end()), once.end());
  for (const std::int32_t token : once) {
    double& logit = logits[static_cast<std::size_t>(token)];
    logit = logit > 0 ? logit / penalty : logit * penalty;
  }
}

std::int32_t Choose(std::span<const double> logits, const GenerateOptions& options,
                    double uniform) {
  if (options.temperature == 0) {
    // Take the first of equal ones.
    return static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
  }
  const Candidates candidates(logits, options.top_k, options.temperature);
  double sum = candidates.Total();
  if (options.top_p < 1) sum = candidates.Reach(options.top_p * sum).sum;
  return candidates.Reach(uniform * sum).id;
}

}  // namespace trireme::tasks
