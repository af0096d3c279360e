// The exact predictor of the harbour corpus: the floor below every honest model's loss.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "../../src/data/harbour/grammar.hpp"
#include "trireme/base/error.hpp"
#include "trireme/data/windows.hpp"

namespace trireme::data {

// The arc of a word; nullptr: the word is impossible.
inline const Arc* Find(const HarbourGrammar& chain, std::int32_t state, std::int32_t word) {
  const std::span<const Arc> arcs = chain.Arcs(state);
  const auto arc = std::ranges::lower_bound(arcs, word, {}, &Arc::word);
  return arc != arcs.end() && arc->word == word ? &*arc : nullptr;
}

// Probabilities over the states, kept for those alone that are possible.
class Belief {
 public:
  explicit Belief(const HarbourGrammar& chain)
      : chain_(chain), weights_(chain.Stationary()), next_(weights_.size(), 0) {
    for (std::int32_t s = 0; s < chain.States(); ++s) possible_.push_back(s);
  }

  double Probability(std::int32_t word) const {
    double probability = 0;
    for (const std::int32_t s : possible_) {
      const Arc* arc = Find(chain_, s, word);
      if (arc != nullptr) probability += weights_[static_cast<std::size_t>(s)] * arc->probability;
    }
    return probability;
  }

  // Bayes' rule with the next word; false if the word is impossible.
  bool Observe(std::int32_t word) {
    std::vector<std::int32_t> reached;
    double sum = 0;
    for (const std::int32_t s : possible_) {
      double& weight = weights_[static_cast<std::size_t>(s)];
      const Arc* arc = Find(chain_, s, word);
      const double share = arc == nullptr ? 0 : weight * arc->probability;
      weight = 0;
      if (share == 0) continue;
      double& target = next_[static_cast<std::size_t>(arc->next)];
      if (target == 0) reached.push_back(arc->next);
      target += share;
      sum += share;
    }
    possible_ = std::move(reached);
    for (const std::int32_t s : possible_) {
      weights_[static_cast<std::size_t>(s)] = next_[static_cast<std::size_t>(s)] / sum;
      next_[static_cast<std::size_t>(s)] = 0;
    }
    return sum > 0;
  }

 private:
  const HarbourGrammar& chain_;
  std::vector<double> weights_;  // [states]; zero for impossible states
  std::vector<double> next_;     // [states]; zero between calls
  std::vector<std::int32_t> possible_;
};

// Loss of the exact predictor, which starts from the stationary distribution over states and
// filters forward: [length], -ln p(target_t | inputs_0..t) in nats. inputs, targets: [length].
// Throws InputError for an input that cannot follow in the grammar.
inline std::vector<double> PredictiveLoss(std::span<const std::int32_t> inputs,
                                          std::span<const std::int32_t> targets) {
  static const HarbourGrammar chain;
  Belief belief(chain);
  std::vector<double> losses;
  for (std::size_t t = 0; t < std::min(inputs.size(), targets.size()); ++t) {
    if (targets[t] == kMasked) {  // after a short window's end
      losses.push_back(0);
      continue;
    }
    if (!belief.Observe(inputs[t])) throw InputError("not a text of the harbour grammar");
    losses.push_back(-std::log(belief.Probability(targets[t])));
  }
  return losses;
}

}  // namespace trireme::data
