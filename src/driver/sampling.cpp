// The next token of a text. Candidates are put in order only where a draw falls.
#include "sampling.hpp"

#include <algorithm>
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

// Place in order of the first candidate with which the sum of weights reaches `target`, the last
// one at most; sum: up to it. Candidates change places: those before it are likelier, those after
// it are not. Takes time in proportion to their number.
std::size_t Reach(std::span<Candidate> all, double target, double& sum) {
  constexpr std::size_t kFew = 64;
  std::size_t begin = 0, end = all.size();
  const auto at = [&](std::size_t i) { return all.begin() + static_cast<std::ptrdiff_t>(i); };
  sum = 0;
  while (end - begin > kFew) {
    // A draw mostly falls on one of the first.
    const std::size_t middle = begin == 0 && end == all.size() ? kFew : begin + (end - begin) / 2;
    std::nth_element(at(begin), at(middle), at(end), Likelier);
    const double part = WeightOf(all.subspan(begin, middle - begin));
    if (sum + part >= target) {
      end = middle;
    } else {
      sum += part;
      begin = middle;
    }
  }
  std::sort(at(begin), at(end), Likelier);
  for (std::size_t i = begin; i < end; ++i) {
    sum += all[i].weight;
    if (sum >= target) return i;
  }
  return end - 1;
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
  if (options.top_p < 1) kept = kept.first(Reach(kept, options.top_p * sum, sum) + 1);
  return kept[Reach(kept, uniform * sum, sum)].id;
}

}  // namespace trireme::driver
