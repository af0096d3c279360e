// The next token of a text. Candidates are put in order only as far as a draw reaches.
#include "sampling.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "trireme/base/philox.hpp"
#include "trireme/driver/tasks.hpp"

namespace trireme::driver {

namespace {

struct Candidate {
  double logit;
  std::int32_t id;
};

// The order of candidates: falling logits, then ids.
bool Likelier(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// Candidates whose first ones are in order, as far as it was asked for.
class Ranking {
 public:
  explicit Ranking(const std::vector<double>& logits) {
    all_.reserve(logits.size());
    for (const double logit : logits) {
      all_.push_back({logit, static_cast<std::int32_t>(all_.size())});
    }
  }
  // The i-th in order, i rising by one from 0.
  const Candidate& operator[](std::size_t i) {
    if (i >= ordered_) {
      constexpr std::size_t kFirst = 64, kGrowth = 8;
      const std::size_t next = std::min(all_.size(), ordered_ == 0 ? kFirst : kGrowth * ordered_);
      const auto at = [this](std::size_t k) {
        return all_.begin() + static_cast<std::ptrdiff_t>(k);
      };
      if (next < all_.size()) std::nth_element(at(ordered_), at(next), all_.end(), Likelier);
      std::sort(at(ordered_), at(next), Likelier);
      ordered_ = next;
    }
    return all_[i];
  }
  std::size_t Size() const { return all_.size(); }

 private:
  std::vector<Candidate> all_;
  std::size_t ordered_ = 0;
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
  Ranking ranking(logits);
  std::size_t most = ranking.Size();
  if (options.top_k > 0) most = std::min(most, static_cast<std::size_t>(options.top_k));
  const double top = ranking[0].logit;
  const auto weight = [&](double logit) { return std::exp((logit - top) / options.temperature); };
  double total = 0;  // of the candidates' weights
  if (most < ranking.Size()) {
    for (std::size_t i = 0; i < most; ++i) total += weight(ranking[i].logit);
  } else {
    for (const double logit : logits) total += weight(logit);
  }
  double kept = total;
  std::size_t count = most;
  if (options.top_p < 1) {
    kept = 0;
    count = 0;
    while (count < most && (count == 0 || kept < options.top_p * total)) {
      kept += weight(ranking[count++].logit);
    }
  }
  double remaining = uniform * kept;
  for (std::size_t i = 0; i < count; ++i) {
    remaining -= weight(ranking[i].logit);
    if (remaining <= 0) return ranking[i].id;
  }
  return ranking[count - 1].id;
}

}  // namespace trireme::driver
