// HarbourGrammar: writing the corpus, and the exact predictor for it.
#include "trireme/data/harbour.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "chain.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/data/batch.hpp"
#include "words.hpp"

namespace trireme::data {

namespace {

constexpr std::uint32_t kTokens = 0, kFirstState = 1;  // the counter's last word

// Uniform in [0, 1), 53 bits: rare words keep their exact share.
// counter = (token low, token high, split, what for)
double Uniform(std::uint32_t seed, Split split, std::int64_t token, std::uint32_t purpose) {
  const auto index = static_cast<std::uint64_t>(token);
  const PhiloxCounter counter = {static_cast<std::uint32_t>(index),
                                 static_cast<std::uint32_t>(index >> 32),
                                 static_cast<std::uint32_t>(split), purpose};
  const PhiloxCounter bits = Philox(counter, MakeKey(seed, Purpose::kHarbour));
  const std::uint64_t joined = static_cast<std::uint64_t>(bits[0]) << 32 | bits[1];
  return static_cast<double>(joined >> 11) * 0x1p-53;
}

// Probabilities over the states, kept for those alone that are possible.
class Belief {
 public:
  explicit Belief(const HarbourChain& chain)
      : chain_(chain), weights_(chain.Stationary()), next_(weights_.size(), 0) {
    for (std::int32_t s = 0; s < chain.States(); ++s) possible_.push_back(s);
  }

  double Probability(std::int32_t word) const {
    double probability = 0;
    for (const std::int32_t s : possible_) {
      const Arc* arc = chain_.Find(s, word);
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
      const Arc* arc = chain_.Find(s, word);
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
  const HarbourChain& chain_;
  std::vector<double> weights_;  // [states]; zero for impossible states
  std::vector<double> next_;     // [states]; zero between calls
  std::vector<std::int32_t> possible_;
};

}  // namespace

struct HarbourGrammar::Tables {
  HarbourChain chain;
  Vocabulary vocabulary;
  double entropy_rate = 0;
};

HarbourGrammar::HarbourGrammar() {
  auto tables = std::make_unique<Tables>();
  tables->vocabulary.words = tables->chain.Words();
  const auto& words = tables->vocabulary.words;
  const auto eos = std::find(words.begin(), words.end(), kEndOfSentence);
  tables->vocabulary.eos = eos - words.begin();
  tables->entropy_rate = tables->chain.EntropyRate();
  tables_ = std::move(tables);
}

HarbourGrammar::~HarbourGrammar() = default;

std::int64_t HarbourGrammar::States() const { return tables_->chain.States(); }
const Vocabulary& HarbourGrammar::Words() const { return tables_->vocabulary; }
double HarbourGrammar::EntropyRate() const { return tables_->entropy_rate; }

std::vector<std::int32_t> HarbourGrammar::Generate(std::uint32_t seed, Split split,
                                                   std::int64_t count) const {
  const HarbourChain& chain = tables_->chain;
  double left = Uniform(seed, split, 0, kFirstState);
  std::int32_t state = 0;
  while (state + 1 < chain.States()) {
    left -= chain.Stationary()[static_cast<std::size_t>(state)];
    if (left < 0) break;
    ++state;
  }
  std::vector<std::int32_t> tokens;
  tokens.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::span<const Arc> arcs = chain.Arcs(state);
    const double u = Uniform(seed, split, i, kTokens);
    const auto arc = std::upper_bound(arcs.begin(), arcs.end(), u, [](double value, const Arc& a) {
      return value < a.cumulative;
    });
    tokens.push_back(arc->word);
    state = arc->next;
  }
  return tokens;
}

std::vector<double> HarbourGrammar::PredictiveLoss(std::span<const std::int32_t> inputs,
                                                   std::span<const std::int32_t> targets) const {
  Belief belief(tables_->chain);
  std::vector<double> losses;
  for (std::size_t t = 0; t < std::min(inputs.size(), targets.size()); ++t) {
    if (targets[t] == kMasked) {  // after a short window's end
      losses.push_back(0);
      continue;
    }
    if (!belief.Observe(inputs[t])) {
      throw InputError(fmt::format("token {} of a window (id {}) cannot follow in the harbour "
                                   "grammar",
                                   t, inputs[t]),
                       "Is the token file of tokenize.kind = harbour, by this version?");
    }
    losses.push_back(-std::log(belief.Probability(targets[t])));
  }
  return losses;
}

}  // namespace trireme::data
