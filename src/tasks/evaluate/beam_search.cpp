// BeamSearch: a step, and when the search is over.
#include "trireme/tasks/beam_search.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/tasks/log_softmax.hpp"

namespace trireme::tasks {

BeamSearch::BeamSearch(const Options& options) : options_(options) {}

double BeamSearch::Penalty(std::int64_t tokens) const {
  return std::pow((5.0 + static_cast<double>(tokens)) / 6.0, options_.length_penalty);
}

// A text that has ended or was cut off; the first of equal scores stays.
void BeamSearch::Offer(const Beam& beam, bool ended) {
  const double score = beam.log_probability / Penalty(std::ssize(beam.tokens));
  if (best_ && (best_->ended && !ended)) return;
  const bool completes = best_ && ended && !best_->ended;
  if (best_ && !completes && best_->score >= score) return;
  best_ = Result{beam.tokens, beam.log_probability, score, ended};
}

void BeamSearch::Advance(std::span<const Candidate> candidates) {
  // A text one token longer: sum of log-probabilities, beam, token.
  struct Longer {
    double sum = 0;
    std::size_t beam = 0;
    std::int32_t token = 0;
  };
  std::vector<Longer> all;
  const auto width = static_cast<std::size_t>(options_.beams);
  for (std::size_t i = 0; i < beams_.size() * width; ++i) {
    const Candidate& candidate = candidates[i];
    if (candidate.token < 0) continue;
    const std::size_t beam = i / width;
    all.push_back(
        {beams_[beam].log_probability + candidate.log_probability, beam, candidate.token});
  }
  const auto kept = static_cast<std::ptrdiff_t>(std::min(width, all.size()));
  std::partial_sort(
      all.begin(), all.begin() + kept, all.end(), [](const Longer& a, const Longer& b) {
        return std::tuple(-a.sum, a.beam, a.token) < std::tuple(-b.sum, b.beam, b.token);
      });
  all.resize(static_cast<std::size_t>(kept));
  std::vector<Beam> next;
  for (const Longer& longer : all) {
    Beam beam{static_cast<std::int64_t>(longer.beam), beams_[longer.beam].tokens, longer.sum};
    beam.tokens.push_back(longer.token);
    if (longer.token == options_.eos) {
      Offer(beam, true);
    } else {
      next.push_back(std::move(beam));
    }
  }
  beams_ = std::move(next);
  if (beams_.empty()) return;
  if (std::ssize(beams_.front().tokens) == options_.longest) {
    for (const Beam& beam : beams_) Offer(beam, false);
    return beams_.clear();
  }
  // Sums only fall: no text can score more than the first beam's if it were as long as can be.
  const double most = beams_.front().log_probability / Penalty(options_.longest);
  if (best_ && best_->score >= most) beams_.clear();
}

void LikeliestTokens(std::span<const double> logits, std::int64_t count,
                     std::span<BeamSearch::Candidate> candidates) {
  const auto wanted = static_cast<std::size_t>(count);
  if (candidates.size() < wanted) throw RunError("no room for the likeliest tokens");
  std::size_t found = 0;
  for (std::size_t id = 0; id < logits.size() && wanted > 0; ++id) {
    const double logit = logits[id];
    if (found == wanted && !(logit > candidates[found - 1].log_probability)) continue;
    if (found < wanted) ++found;
    std::size_t place = found - 1;
    for (; place > 0 && candidates[place - 1].log_probability < logit; --place) {
      candidates[place] = candidates[place - 1];
    }
    candidates[place] = {static_cast<std::int32_t>(id), logit};
  }
  const double sum = LogSumOfExponentials(logits);
  for (std::size_t i = 0; i < found; ++i) candidates[i].log_probability -= sum;
  for (std::size_t i = found; i < wanted; ++i) candidates[i] = {};
}

}  // namespace trireme::tasks
