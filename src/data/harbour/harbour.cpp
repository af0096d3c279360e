// HarbourGrammar: writing the corpus.
#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "grammar.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/data/tokenize.hpp"
#include "words.hpp"

namespace trireme::data {

// HarbourChain: unfolding the rules, and the chain's stationary distribution.

namespace {

// Sweeps end when no state's share moves by more than this, relatively.
constexpr double kConverged = 4 * std::numeric_limits<double>::epsilon();
constexpr int kMaximumSweeps = 100'000;

// Numbers things in the order of their first appearance.
template <typename Map, typename Key>
std::pair<std::int32_t, bool> Number(Map& numbers, const Key& key) {
  const auto [place, added] = numbers.emplace(key, static_cast<std::int32_t>(numbers.size()));
  return {place->second, added};
}

// Sorts a state's arcs by word and makes their probabilities sum to one.
void Finish(std::span<Arc> arcs, const std::vector<std::string>& words) {
  std::sort(arcs.begin(), arcs.end(), [](const Arc& a, const Arc& b) { return a.word < b.word; });
  const auto same = [](const Arc& a, const Arc& b) { return a.word == b.word; };
  const auto twice = std::adjacent_find(arcs.begin(), arcs.end(), same);
  if (twice != arcs.end()) {
    throw std::logic_error(fmt::format("the harbour grammar has two ways on with the word '{}'",
                                       words.at(static_cast<std::size_t>(twice->word))));
  }
  double sum = 0;
  for (const Arc& arc : arcs) sum += arc.probability;
  double cumulative = 0;
  for (Arc& arc : arcs) {
    arc.probability /= sum;
    cumulative += arc.probability;
    arc.cumulative = cumulative;
  }
  arcs.back().cumulative = 1;
}

}  // namespace

HarbourChain::HarbourChain() {
  Unfold();
  Solve();
}

void HarbourChain::Unfold() {
  const HarbourRules rules;
  std::unordered_map<std::string, std::int32_t> word_ids;
  std::map<State, std::int32_t> state_ids;
  std::vector<State> states = {HarbourRules::Renewal()};
  state_ids.emplace(states.front(), 0);
  for (std::size_t s = 0; s < states.size(); ++s) {
    first_arc_.push_back(arcs_.size());
    for (const Choice& choice : rules.After(State(states[s]))) {
      const auto [next, new_state] = Number(state_ids, choice.next);
      if (new_state) states.push_back(choice.next);
      for (std::size_t i = 0; i < choice.words.words.size(); ++i) {
        const auto [word, new_word] = Number(word_ids, choice.words.words[i]);
        if (new_word) words_.push_back(choice.words.words[i]);
        arcs_.push_back({word, next, choice.weight * choice.words.probabilities[i], 0});
      }
    }
    Finish(std::span(arcs_).subspan(first_arc_.back()), words_);
  }
  first_arc_.push_back(arcs_.size());
}

// Between two visits of the renewal state 0 (which every article makes once), state s is visited
// v(s) = sum over arcs s' -> s of v(s') p times on average, with v(0) = 1. Gauss-Seidel sweeps in
// the order of discovery carry a whole sentence at once; all terms are positive, so nothing
// cancels.
void HarbourChain::Solve() {
  const auto states = static_cast<std::size_t>(States());
  std::vector<std::vector<std::pair<std::size_t, double>>> sources(states);
  for (std::size_t s = 0; s < states; ++s) {
    std::map<std::size_t, double> steps;
    for (const Arc& arc : Arcs(static_cast<std::int32_t>(s))) {
      steps[static_cast<std::size_t>(arc.next)] += arc.probability;
    }
    for (const auto& [next, probability] : steps) sources[next].emplace_back(s, probability);
  }
  std::vector<double> visits(states, 0);
  visits[0] = 1;
  double change = 1;
  for (int sweep = 0; change > kConverged; ++sweep) {
    if (sweep == kMaximumSweeps) throw std::logic_error("the harbour chain does not converge");
    change = 0;
    for (std::size_t s = 1; s < states; ++s) {
      double value = 0;
      for (const auto& [source, probability] : sources[s]) value += visits[source] * probability;
      change = std::max(change, std::abs(value - visits[s]) / std::max(value, 1e-300));
      visits[s] = value;
    }
  }
  double sum = 0;
  for (const double value : visits) sum += value;
  stationary_ = std::move(visits);
  for (double& value : stationary_) value /= sum;
}

std::span<const Arc> HarbourChain::Arcs(std::int32_t state) const {
  const auto s = static_cast<std::size_t>(state);
  return std::span(arcs_).subspan(first_arc_[s], first_arc_[s + 1] - first_arc_[s]);
}

const Arc* HarbourChain::Find(std::int32_t state, std::int32_t word) const {
  const std::span<const Arc> arcs = Arcs(state);
  const auto arc = std::lower_bound(arcs.begin(), arcs.end(), word,
                                    [](const Arc& a, std::int32_t w) { return a.word < w; });
  return arc != arcs.end() && arc->word == word ? &*arc : nullptr;
}

double HarbourChain::EntropyRate() const {
  double rate = 0;
  for (std::int32_t s = 0; s < States(); ++s) {
    double entropy = 0;
    for (const Arc& arc : Arcs(s)) entropy -= arc.probability * std::log(arc.probability);
    rate += stationary_[static_cast<std::size_t>(s)] * entropy;
  }
  return rate;
}

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

}  // namespace trireme::data
