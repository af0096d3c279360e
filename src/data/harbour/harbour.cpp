// HarbourGrammar: generates the corpus.
#include <algorithm>
#include <utility>

#include "grammar.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/data/tokenize.hpp"
#include "words.hpp"

namespace trireme::data {

namespace {

constexpr std::uint32_t kTokens = 0, kFirstState = 1;  // purposes: the counter's last word

// Uniform in [0, 1) with 53 bits, so that rare words keep their exact probability.
// counter = (token low, token high, split, purpose)
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
