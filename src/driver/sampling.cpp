// The next token of a text. Candidates are put in order only where a draw falls.
#include "sampling.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "trireme/base/philox.hpp"
#include "trireme/driver/tasks.hpp"

namespace trireme::driver {

namespace {

struct Candidate {
  double logit, weight;
  std::int32_t id;
};

// The order of candidates: falling logits, then ids.
bool Likelier(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

double WeightOf(std::span<const Candidate> some) {
  double sum = 0;
  for (const Candidate& each : some) sum += each.weight;
  return sum;
}

struct Place {
  std::int32_t id = 0;
  double sum = 0;  // of the weights up to it, in order
};

// The first candidate in order with which the sum of weights reaches `target`, or the last one.
// Candidates are put in order in the bucket of logits alone in which that happens. Not empty.
Place Reach(std::span<const Candidate> all, double target) {
  constexpr int kBuckets = 1024;
  const auto [least, most] =
      std::ranges::minmax_element(all, {}, [](const Candidate& each) { return each.logit; });
  const double top = most->logit, range = top - least->logit;
  const double scale = range > 0 ? kBuckets / range : 0;
  const auto bucket_of = [&](const Candidate& each) {
    return std::min(kBuckets - 1, static_cast<int>((top - each.logit) * scale));
  };
  std::array<double, kBuckets> sums{};
  for (const Candidate& each : all) sums[static_cast<std::size_t>(bucket_of(each))] += each.weight;
  Place place;
  const int last = bucket_of(*least);
  int bucket = 0;
  while (bucket < last && place.sum + sums[static_cast<std::size_t>(bucket)] < target) {
    place.sum += sums[static_cast<std::size_t>(bucket++)];
  }
  std::vector<Candidate> some;
  for (const Candidate& each : all) {
    if (bucket_of(each) == bucket) some.push_back(each);
  }
  std::ranges::sort(some, Likelier);
  for (const Candidate& each : some) {
    place.id = each.id;
    place.sum += each.weight;
    if (place.sum >= target) break;
  }
  return place;
}

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

double LogProbability(std::span<const double> logits, std::int32_t token) {
  const double top = std::ranges::max(logits);
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - top);
  return logits[static_cast<std::size_t>(token)] - top - std::log(sum);
}

std::int32_t Choose(const std::vector<double>& logits, const GenerateOptions& options,
                    double uniform) {
  if (options.temperature == 0) {
    // The first of equals.
    return static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
  }
  const double top = std::ranges::max(logits);
  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (const double logit : logits) {
    candidates.push_back({logit, std::exp((logit - top) / options.temperature),
                          static_cast<std::int32_t>(candidates.size())});
  }
  std::span<Candidate> kept(candidates);
  if (options.top_k > 0 && options.top_k < std::ssize(candidates)) {
    std::nth_element(candidates.begin(), candidates.begin() + options.top_k, candidates.end(),
                     Likelier);
    kept = kept.first(static_cast<std::size_t>(options.top_k));
  }
  double sum = WeightOf(kept);
  if (options.top_p < 1) sum = Reach(kept, options.top_p * sum).sum;
  return Reach(kept, uniform * sum).id;
}

}  // namespace trireme::driver
