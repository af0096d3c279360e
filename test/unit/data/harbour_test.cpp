// The harbour corpus: its form, its memory, and its exactly known entropy.
#include "trireme/data/tokenize.hpp"

#include <cmath>
#include <numeric>
#include <set>
#include <sstream>

#include "harbour/grammar.hpp"
#include "harbour_predictor.hpp"
#include "scratch.hpp"
#include "trireme/data/windows.hpp"
#include "words.hpp"

namespace trireme::data {
namespace {

using Ids = std::vector<std::int32_t>;

constexpr double kRounding = 1e-12;  // of sums of some thousand probabilities

const HarbourGrammar& Grammar() {
  static const HarbourGrammar grammar;
  return grammar;
}

std::int32_t IdOf(std::string_view word) {
  const auto& words = Grammar().Words().words;
  const auto found = std::find(words.begin(), words.end(), word);
  EXPECT_NE(found, words.end()) << word;
  return static_cast<std::int32_t>(found - words.begin());
}
Ids IdsOf(std::string_view text) {
  Ids ids;
  ForEachWord(text, [&](std::string_view word) { ids.push_back(IdOf(word)); });
  return ids;
}

// p(word | text), where the text begins anywhere.
double Probability(std::string_view text, std::string_view word) {
  const Ids inputs = IdsOf(text);
  Ids targets(inputs.begin() + 1, inputs.end());
  targets.push_back(IdOf(word));
  return std::exp(-PredictiveLoss(inputs, targets).back());
}

std::string Text(const Ids& ids) {
  std::string text;
  for (const std::int32_t id : ids) {
    text += " " + Grammar().Words().words[static_cast<std::size_t>(id)];
    if (id == Grammar().Words().eos) text += "\n";
  }
  return text;
}

TEST(HarbourGrammar, IsUnifilarWithProperRows) {
  for (std::int32_t s = 0; s < Grammar().States(); ++s) {
    double sum = 0;
    std::int32_t last = -1;
    for (const Arc& arc : Grammar().Arcs(s)) {
      ASSERT_GT(arc.word, last) << "state " << s << " has a word twice";
      last = arc.word;
      ASSERT_GT(arc.probability, 0);
      sum += arc.probability;
      ASSERT_NEAR(arc.cumulative, sum, kRounding);
    }
    ASSERT_NEAR(sum, 1, kRounding);
    ASSERT_EQ(Grammar().Arcs(s).back().cumulative, 1);
  }
  EXPECT_GT(Grammar().States(), 1000);
  EXPECT_LT(Grammar().States(), 6000);  // the predictor's cost
}

TEST(HarbourGrammar, IsIrreducible) {
  const auto states = static_cast<std::size_t>(Grammar().States());
  std::vector<std::vector<std::size_t>> sources(states);
  std::vector<bool> entered(states, false);
  for (std::size_t s = 0; s < states; ++s) {
    for (const Arc& arc : Grammar().Arcs(static_cast<std::int32_t>(s))) {
      sources[static_cast<std::size_t>(arc.next)].push_back(s);
      entered[static_cast<std::size_t>(arc.next)] = true;
    }
  }
  EXPECT_TRUE(std::all_of(entered.begin(), entered.end(), [](bool e) { return e; }));
  // States are unfolded from state 0, so all are reached from it; all must lead back.
  std::vector<bool> leads_back(states, false);
  std::vector<std::size_t> waiting = {0};
  while (!waiting.empty()) {
    const std::size_t s = waiting.back();
    waiting.pop_back();
    if (leads_back[s]) continue;
    leads_back[s] = true;
    waiting.insert(waiting.end(), sources[s].begin(), sources[s].end());
  }
  EXPECT_TRUE(std::all_of(leads_back.begin(), leads_back.end(), [](bool l) { return l; }));
}

TEST(HarbourGrammar, StationaryDistributionStaysAsItIs) {
  const std::vector<double>& pi = Grammar().Stationary();
  EXPECT_NEAR(std::accumulate(pi.begin(), pi.end(), 0.0), 1, kRounding);
  std::vector<double> after(pi.size(), 0);
  for (std::size_t s = 0; s < pi.size(); ++s) {
    for (const Arc& arc : Grammar().Arcs(static_cast<std::int32_t>(s))) {
      after[static_cast<std::size_t>(arc.next)] += pi[s] * arc.probability;
    }
  }
  for (std::size_t s = 0; s < pi.size(); ++s) ASSERT_NEAR(after[s] / pi[s], 1, kRounding);
}

TEST(Harbour, HasManyWordsThatAllOccur) {
  const Ids ids = Grammar().Generate(1, Split::kTrain, 500'000);
  const std::set<std::int32_t> types(ids.begin(), ids.end());
  EXPECT_GE(types.size(), 1000u);
  const auto& words = Grammar().Words().words;
  EXPECT_EQ(std::set<std::string>(words.begin(), words.end()).size(), words.size());
  EXPECT_EQ(words[static_cast<std::size_t>(Grammar().Words().eos)], "<eos>");
  EXPECT_EQ(Grammar().Words().unk, -1);
}

// Golden: a change of words or weights is a change of the corpus.
TEST(Harbour, EntropyRateStaysAsItWas) {
  EXPECT_NEAR(Grammar().EntropyRate(), 2.994096872472, 1e-8);
}

// The Shannon-McMillan-Breiman theorem: the predictor's mean loss tends to the entropy rate.
TEST(Harbour, EntropyRateIsTheMeanLossOfTheExactPredictor) {
  constexpr std::size_t kWindows = 40, kLength = 10'000;
  const Ids ids = Grammar().Generate(3, Split::kTrain, kWindows * kLength + 1);
  const std::span<const std::int32_t> all(ids);
  std::vector<double> means;
  for (std::size_t w = 0; w < kWindows; ++w) {
    const auto losses =
        PredictiveLoss(all.subspan(w * kLength, kLength), all.subspan(w * kLength + 1, kLength));
    // The beginning of a window, where the state is still uncertain, is left out.
    constexpr std::ptrdiff_t kUncertain = 1000;
    means.push_back(std::accumulate(losses.begin() + kUncertain, losses.end(), 0.0) /
                    static_cast<double>(kLength - kUncertain));
  }
  const double mean = std::accumulate(means.begin(), means.end(), 0.0) / kWindows;
  double variance = 0;
  for (const double m : means) variance += (m - mean) * (m - mean) / (kWindows - 1);
  const double standard_error = std::sqrt(variance / kWindows);
  EXPECT_LT(standard_error, 0.01);
  EXPECT_NEAR(mean, Grammar().EntropyRate(), 3 * standard_error);
}

TEST(Harbour, ShortWindowsLoseMoreThanTheEntropyRate) {
  const Ids ids = Grammar().Generate(4, Split::kTrain, 200'001);
  double sum = 0;
  constexpr std::size_t kLength = 16;
  for (std::size_t begin = 0; begin + kLength < ids.size(); begin += kLength) {
    const auto losses =
        PredictiveLoss(std::span<const std::int32_t>(ids).subspan(begin, kLength),
                       std::span<const std::int32_t>(ids).subspan(begin + 1, kLength));
    sum += std::accumulate(losses.begin(), losses.end(), 0.0);
  }
  EXPECT_GT(sum / static_cast<double>(ids.size() - 1), Grammar().EntropyRate() + 0.05);
}

TEST(Harbour, PredictionsSumToOne) {
  const Ids ids = Grammar().Generate(5, Split::kValid, 60);
  for (const std::size_t t : {0u, 1u, 7u, 30u, 58u}) {
    const std::span<const std::int32_t> inputs = std::span<const std::int32_t>(ids).first(t + 1);
    Ids targets(ids.begin() + 1, ids.begin() + static_cast<std::ptrdiff_t>(t) + 2);
    double sum = 0;
    for (std::size_t w = 0; w < Grammar().Words().words.size(); ++w) {
      targets.back() = static_cast<std::int32_t>(w);
      sum += std::exp(-PredictiveLoss(inputs, targets).back());
    }
    EXPECT_NEAR(sum, 1, kRounding) << "position " << t;
  }
}

// Behind "= The" the state is known: from there on the predictor is the chain itself.
TEST(Harbour, PredictorFollowsTheKnownState) {
  const Ids ids = Grammar().Generate(6, Split::kTrain, 20'000);
  const Ids title = IdsOf("= The");
  const auto begin = std::search(ids.begin(), ids.end(), title.begin(), title.end());
  ASSERT_LT(begin - ids.begin(), 19'000);
  const Ids inputs(begin, begin + 900), targets(begin + 1, begin + 901);
  const std::vector<double> losses = PredictiveLoss(inputs, targets);
  std::int32_t state = 0;
  for (std::size_t t = 1; t < inputs.size(); ++t) {
    const Arc* arc = Find(Grammar(), state, targets[t]);
    ASSERT_NE(arc, nullptr);
    ASSERT_NEAR(losses[t], -std::log(arc->probability), 1e-9);
    state = arc->next;
  }
}

TEST(Harbour, IsReproducibleAndPrefixesStay) {
  const Ids ids = Grammar().Generate(7, Split::kTrain, 2000);
  EXPECT_EQ(ids, HarbourGrammar().Generate(7, Split::kTrain, 2000));
  const Ids prefix = Grammar().Generate(7, Split::kTrain, 300);
  EXPECT_EQ(prefix, Ids(ids.begin(), ids.begin() + 300));
  EXPECT_NE(ids, Grammar().Generate(8, Split::kTrain, 2000));
  EXPECT_NE(ids, Grammar().Generate(7, Split::kValid, 2000));
  EXPECT_NE(Grammar().Generate(7, Split::kTest, 2000), Grammar().Generate(7, Split::kValid, 2000));
}

TEST(Harbour, LooksLikeWikiText) {
  std::istringstream text(Text(Grammar().Generate(9, Split::kTrain, 100'000)));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  lines.erase(lines.begin());  // may begin anywhere
  lines.pop_back();            // and may end anywhere
  int titles = 0, sections = 0, paragraphs = 0;
  for (std::size_t i = 1; i + 1 < lines.size(); ++i) {
    if (lines[i] == " <eos>") continue;
    if (lines[i].starts_with(" =")) {
      const bool section = lines[i].starts_with(" = = ");
      section ? ++sections : ++titles;
      EXPECT_TRUE(lines[i].ends_with(section ? " = = <eos>" : " = <eos>")) << lines[i];
      EXPECT_EQ(lines[i - 1], " <eos>");
      EXPECT_EQ(lines[i + 1], " <eos>");
      continue;
    }
    ++paragraphs;
    ASSERT_TRUE(lines[i].ends_with(" . <eos>")) << lines[i];
    ASSERT_TRUE(std::isupper(static_cast<unsigned char>(lines[i][1]))) << lines[i];
  }
  EXPECT_GT(titles, 100);
  EXPECT_GT(sections, 100);
  EXPECT_GT(paragraphs, titles + sections);
}

TEST(Harbour, VerbsAgreeAcrossPhrasesAndClauses) {
  for (const char* subject :
       {"The captains", "The captains of the old ship", "The captains who carried the rope",
        "Anna Hale and Thomas Reed", "The captains who the pilot watched"}) {
    EXPECT_GT(Probability(". " + std::string(subject), "were"), 0) << subject;
    EXPECT_EQ(Probability(". " + std::string(subject), "was"), 0) << subject;
    EXPECT_EQ(Probability(". " + std::string(subject), "waits"), 0) << subject;
  }
  for (const char* subject : {"The captain of the old ships", "The barge that the pilots carried",
                              "Anna Hale , the owner of the Heron ,", "A boat near the islands"}) {
    EXPECT_GT(Probability(". " + std::string(subject), "was"), 0) << subject;
    EXPECT_EQ(Probability(". " + std::string(subject), "were"), 0) << subject;
    EXPECT_EQ(Probability(". " + std::string(subject), "wait"), 0) << subject;
  }
  EXPECT_EQ(Probability(". A", "anchor"), 0);
  EXPECT_GT(Probability(". An", "anchor"), 0);
}

TEST(Harbour, PronounsRememberTheSubject) {
  const auto pronoun = [](const std::string& text) {
    std::string found;
    for (const char* word : {"he", "she", "it", "they"}) {
      if (Probability(". " + text, word) > 0) found += found.empty() ? word : " and others";
    }
    return found;
  };
  EXPECT_EQ(pronoun("The captain watched the ships , and"), "he");
  EXPECT_EQ(pronoun("The widow of the captain waited because"), "she");
  EXPECT_EQ(pronoun("The ship carried the sailors to the quay , but"), "she");
  EXPECT_EQ(pronoun("The rope near the captain was old , so"), "it");
  EXPECT_EQ(pronoun("Anna Hale and Thomas Reed helped the boy while"), "they");
  EXPECT_GT(Probability(". The captain waited .", "He"), 0);
  EXPECT_EQ(Probability(". The captain waited .", "They"), 0);
}

TEST(Harbour, TheShipOfTheTitleReturns) {
  const std::string article = "= The Kestrel = <eos> <eos> The captain waited . The";
  EXPECT_GT(Probability(article, "Kestrel"), 0.05);
  EXPECT_EQ(Probability(article, "Heron"), 0);
}

TEST(Harbour, ImpossibleAndMaskedTokens) {
  EXPECT_EQ(Probability("= = Cargo", "ship"), 0);  // an infinite loss
  EXPECT_THAT(MessageOf([] { Probability("Cargo ship", "="); }),
              testing::HasSubstr("not a text of the harbour grammar"));
  const auto losses = PredictiveLoss(Ids{IdOf("Cargo"), 0}, Ids{IdOf("="), kMasked});
  EXPECT_NEAR(losses[0], 0, kRounding);
  EXPECT_EQ(losses[1], 0);
}

}  // namespace
}  // namespace trireme::data
