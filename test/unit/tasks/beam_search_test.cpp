// Translations: beam search, detokenisation, scores.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trireme/data/text_units.hpp"
#include "trireme/tasks/evaluate.hpp"

namespace trireme::test {
namespace {

using tasks::BeamSearch;

// Beam search against all texts of a tiny vocabulary, against greedy choice, and its ties.

using Text = std::vector<std::int32_t>;

constexpr std::int32_t kEos = 0;

// Log-probabilities of the tokens after a text: a function of a seed and the text.
struct Chain {
  std::int32_t vocabulary = 4;
  unsigned seed = 1;

  std::vector<double> LogitsAfter(const Text& text) const {
    std::uint32_t hash = seed;
    for (const std::int32_t token : text) {
      hash = hash * 2654435761u + static_cast<std::uint32_t>(token) + 1;
    }
    std::mt19937 engine(hash);
    std::vector<double> logits;
    for (std::int32_t i = 0; i < vocabulary; ++i) {
      logits.push_back(static_cast<double>(engine() % 4000) / 1000);
    }
    return logits;
  }
  double Of(const Text& text) const {
    double sum = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      sum += tasks::LogProbability(
          LogitsAfter({text.begin(), text.begin() + static_cast<std::ptrdiff_t>(i)}), text[i]);
    }
    return sum;
  }
};

// One step of a search in a chain.
void Step(const Chain& chain, const BeamSearch::Options& options, BeamSearch& search) {
  const auto width = static_cast<std::size_t>(options.beams);
  std::vector<BeamSearch::Candidate> candidates(search.Beams().size() * width);
  for (std::size_t i = 0; i < search.Beams().size(); ++i) {
    tasks::LikeliestTokens(chain.LogitsAfter(search.Beams()[i].tokens), options.beams,
                           std::span(candidates).subspan(i * width, width));
  }
  search.Advance(candidates);
}

BeamSearch::Result Search(const Chain& chain, const BeamSearch::Options& options) {
  BeamSearch search(options);
  while (!search.Done()) Step(chain, options, search);
  return search.Best();
}

double ScoreOf(double log_probability, std::size_t tokens, double penalty) {
  return log_probability / std::pow((5.0 + static_cast<double>(tokens)) / 6.0, penalty);
}

// The best of all texts that end within `longest` tokens.
BeamSearch::Result Exhaustive(const Chain& chain, const BeamSearch::Options& options) {
  BeamSearch::Result best;
  best.score = -1e300;
  Text text;
  const std::function<void(double)> visit = [&](double sum) {
    for (std::int32_t token = 0; token < chain.vocabulary; ++token) {
      const double longer = sum + tasks::LogProbability(chain.LogitsAfter(text), token);
      text.push_back(token);
      if (token == options.eos) {
        const double score = ScoreOf(longer, text.size(), options.length_penalty);
        if (score > best.score) best = {text, longer, score, true};
      } else if (std::ssize(text) < options.longest) {
        visit(longer);
      }
      text.pop_back();
    }
  };
  visit(0);
  return best;
}

TEST(BeamSearch, AsWideAsAllPrefixesFindsTheBest) {
  std::size_t long_ones = 0;
  for (unsigned seed = 1; seed <= 60; ++seed) {
    for (const double penalty : {0.0, 0.6, 1.0, 2.5}) {
      const Chain chain{.vocabulary = 4, .seed = seed};
      const BeamSearch::Options options{
          .beams = 4 * 4 * 4 * 4, .length_penalty = penalty, .longest = 5, .eos = kEos};
      const BeamSearch::Result got = Search(chain, options), want = Exhaustive(chain, options);
      EXPECT_EQ(got.tokens, want.tokens) << "seed " << seed << ", penalty " << penalty;
      EXPECT_NEAR(got.score, want.score, 1e-13);
      EXPECT_TRUE(got.ended);
      long_ones += got.tokens.size() > 2 ? 1 : 0;
    }
  }
  EXPECT_GT(long_ones, 40u);
}

// Of any width: the sums and scores are those of the tokens, and no better than the best.
TEST(BeamSearch, ScoresAreThoseOfItsTexts) {
  double gained = 0;
  for (unsigned seed = 1; seed <= 60; ++seed) {
    const Chain chain{.vocabulary = 5, .seed = seed};
    BeamSearch::Options options{.length_penalty = 0.6, .longest = 6, .eos = kEos};
    const BeamSearch::Result want = Exhaustive(chain, options);
    double narrow = 0;
    for (const std::int64_t beams : {1, 2, 3, 7}) {
      options.beams = beams;
      const BeamSearch::Result got = Search(chain, options);
      EXPECT_NEAR(got.log_probability, chain.Of(got.tokens), 1e-13);
      EXPECT_NEAR(got.score, ScoreOf(got.log_probability, got.tokens.size(), 0.6), 1e-13);
      EXPECT_TRUE(!got.ended || got.score <= want.score + 1e-13);
      if (beams == 1) narrow = got.score;
      if (beams == 7) gained += got.score - narrow;
    }
  }
  EXPECT_GT(gained, 1);
}

TEST(BeamSearch, WithOneBeamIsGreedy) {
  for (unsigned seed = 1; seed <= 50; ++seed) {
    const Chain chain{.vocabulary = 6, .seed = seed};
    const BeamSearch::Options options{.beams = 1, .length_penalty = 0.6, .longest = 8, .eos = kEos};
    Text greedy;
    while (std::ssize(greedy) < options.longest && (greedy.empty() || greedy.back() != kEos)) {
      const std::vector<double> logits = chain.LogitsAfter(greedy);
      greedy.push_back(
          static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin()));
    }
    const BeamSearch::Result got = Search(chain, options);
    EXPECT_EQ(got.tokens, greedy);
    EXPECT_EQ(got.ended, greedy.back() == kEos);
  }
}

// All tokens alike: the smallest ones of the first beam, at every step.
TEST(BeamSearch, TiesFollowBeamAndToken) {
  BeamSearch search({.beams = 3, .longest = 4, .eos = 9});
  const BeamSearch::Candidate two = {2, -1.0}, five = {5, -1.0}, seven = {7, -1.0};
  search.Advance(std::vector{seven, five, two});
  ASSERT_EQ(search.Beams().size(), 3u);
  EXPECT_EQ(search.Beams()[0].tokens, Text{2});
  EXPECT_EQ(search.Beams()[2].tokens, Text{7});
  search.Advance(std::vector{five, two, seven, seven, two, five, two, seven, five});
  ASSERT_EQ(search.Beams().size(), 3u);
  EXPECT_EQ(search.Beams()[0].tokens, (Text{2, 2}));
  EXPECT_EQ(search.Beams()[1].tokens, (Text{2, 5}));
  EXPECT_EQ(search.Beams()[2].tokens, (Text{2, 7}));
  for (const BeamSearch::Beam& beam : search.Beams()) EXPECT_EQ(beam.parent, 0);
}

// Equal scores: the text that ended first.
TEST(BeamSearch, TheFirstOfEqualTextsStays) {
  BeamSearch search({.beams = 2, .longest = 9, .eos = 9});
  search.Advance(std::vector<BeamSearch::Candidate>{{9, -1.0}, {4, -0.5}});
  search.Advance(std::vector<BeamSearch::Candidate>{{9, -0.5}, {5, -0.75}});
  EXPECT_TRUE(search.Done());  // -1.25 cannot become -1
  EXPECT_EQ(search.Best().tokens, Text{9});
}

TEST(BeamSearch, EndsWhenNoTextCanBecomeTheBest) {
  BeamSearch search({.beams = 2, .length_penalty = 1, .longest = 7, .eos = 9});
  search.Advance(std::vector<BeamSearch::Candidate>{{9, -1.0}, {4, -1.5}});
  EXPECT_FALSE(search.Done());  // -1.5 / 2 > -1
  search.Advance(std::vector<BeamSearch::Candidate>{{3, -0.25}, {4, -0.75}});
  EXPECT_FALSE(search.Done());  // -1.75 / 2
  EXPECT_EQ(search.Beams()[1].parent, 0);
  search.Advance(std::vector<BeamSearch::Candidate>{{3, -0.25}, {4, -2}, {3, -1}, {4, -2}});
  EXPECT_TRUE(search.Done());  // -2 / 2
  EXPECT_EQ(search.Best().tokens, Text{9});
}

// A text that ends is the result, whatever the texts that are cut off score.
TEST(BeamSearch, CutsTextsOff) {
  BeamSearch ends({.beams = 2, .longest = 2, .eos = 9});
  ends.Advance(std::vector<BeamSearch::Candidate>{{4, -0.1}, {5, -0.2}});
  ends.Advance(std::vector<BeamSearch::Candidate>{{4, -0.1}, {5, -9}, {9, -0.3}, {5, -9}});
  EXPECT_TRUE(ends.Done());
  EXPECT_EQ(ends.Best().tokens, (Text{5, 9}));
  EXPECT_TRUE(ends.Best().ended);

  BeamSearch none({.beams = 2, .longest = 2, .eos = 9});
  none.Advance(std::vector<BeamSearch::Candidate>{{4, -0.1}, {5, -0.2}});
  none.Advance(std::vector<BeamSearch::Candidate>{{4, -0.4}, {5, -9}, {3, -0.1}, {5, -9}});
  EXPECT_TRUE(none.Done());
  EXPECT_EQ(none.Best().tokens, (Text{5, 3}));
  EXPECT_NEAR(none.Best().log_probability, -0.3, 1e-15);
  EXPECT_FALSE(none.Best().ended);
}

// Texts do not know of each other: searches that take turns find what each finds alone.
TEST(BeamSearch, SeveralTextsTakeTurns) {
  const BeamSearch::Options options{.beams = 3, .length_penalty = 0.6, .longest = 9, .eos = kEos};
  std::vector<BeamSearch> searches(7, BeamSearch(options));
  for (int turn = 0; turn < 9; ++turn) {
    for (unsigned i = 0; i < searches.size(); ++i) {
      if (!searches[i].Done()) Step({.vocabulary = 5, .seed = i}, options, searches[i]);
    }
  }
  for (unsigned i = 0; i < searches.size(); ++i) {
    ASSERT_TRUE(searches[i].Done());
    EXPECT_EQ(searches[i].Best().tokens, Search({.vocabulary = 5, .seed = i}, options).tokens);
  }
}

TEST(LikeliestTokens, AreInOrderAndOfEqualOnesTheSmallest) {
  const std::vector<double> logits = {1, 3, 2, 3, 1, 2};
  std::vector<BeamSearch::Candidate> likeliest(8);
  const auto tokens = [&](std::size_t count) {
    Text ids;
    for (std::size_t i = 0; i < count; ++i) ids.push_back(likeliest[i].token);
    return ids;
  };
  tasks::LikeliestTokens(logits, 3, likeliest);
  EXPECT_EQ(tokens(3), (Text{1, 3, 2}));
  tasks::LikeliestTokens(logits, 8, likeliest);
  EXPECT_EQ(tokens(8), (Text{1, 3, 2, 5, 0, 4, -1, -1}));
  double sum = 0;
  for (std::size_t i = 0; i < 6; ++i) {
    sum += std::exp(likeliest[i].log_probability);
    EXPECT_NEAR(likeliest[i].log_probability, tasks::LogProbability(logits, likeliest[i].token),
                1e-15);
  }
  EXPECT_NEAR(sum, 1, 1e-15);
}

}  // namespace
}  // namespace trireme::test

namespace trireme::tasks {
namespace {

// Scores of translations: numbers of sacrebleu 2.6.0, and sums in any order.

constexpr double kTolerance = 1e-9;  // relative

struct Golden {
  const char* name;
  std::vector<std::string> hypotheses, references;
  double bleu, chrf;  // of sacrebleu
};

const std::vector<Golden>& Goldens() {
  static const std::vector<Golden> goldens = {
      {"like real output",
       {"The ship sails to the old harbour, at 7.30 in the morning.",
        "A wave of 2-3 metres hit it!", "Nobody was hurt (they said)."},
       {"The ship is sailing to the old harbour at 7.30 in the morning.",
        "A wave of 2-3 metres hit it.", "Nobody was hurt, they said."},
       60.75306021405163,
       79.82063166523035},
      {"Unicode",
       {"naïve Größe — “zitiert”", "日本語 の 文。", "", "e\u00a0f & <g> ..."},
       {"naïve Größe – „zitiert“", "日本語の文。", "leer", "e f & <g> …"},
       44.59798910708181,
       67.99057032037513},
      {"no match", {"aaa bbb ccc ddd eee"}, {"1 2 3 4 5 6"}, 0, 0},
      {"no match of some orders",
       {"the cat sat here now"},
       {"the dog sat there cat"},
       14.058533129758727,
       38.300569825755204},
      {"too short for an order",
       {"eins zwei", "drei"},
       {"eins zwei", "vier"},
       0,
       86.66666666666667},
      {"a reference too short for an order",
       {"ein langer Satz ohne Ende", "der alte Hafen am Meer"},
       {"ein", "der alte Hafen am See"},
       35.35533905932737,
       75.86025460330904},
      {"shorter than the reference", {"the old"}, {"the old ship at sea"}, 0, 31.18871293504669},
      {"identical", {"the old ship is at sea"}, {"the old ship is at sea"}, 100, 100}};
  return goldens;
}

TEST(Scores, AreThoseOfSacrebleu) {
  for (const Golden& golden : Goldens()) {
    ScoreCounts forward, backward;
    const std::size_t count = golden.hypotheses.size();
    for (std::size_t i = 0; i < count; ++i) {
      forward += CountMatches(golden.hypotheses[i], golden.references[i]);
      backward += CountMatches(golden.hypotheses[count - 1 - i], golden.references[count - 1 - i]);
    }
    EXPECT_NEAR(Bleu(forward), golden.bleu, kTolerance * golden.bleu) << golden.name;
    EXPECT_NEAR(ChrF(forward), golden.chrf, kTolerance * golden.chrf) << golden.name;
    EXPECT_EQ(Bleu(backward), Bleu(forward)) << golden.name;
    EXPECT_EQ(ChrF(backward), ChrF(forward)) << golden.name;
  }
}

TEST(Scores, ExactMatchesAreRoundedDownOnTheScreen) {
  const auto text = [](std::int64_t exact, std::int64_t texts) {
    ScoreCounts counts;
    counts.exact = exact, counts.texts = texts;
    return ExactMatchText(counts);
  };
  EXPECT_EQ(text(1999, 2000), "99.9");
  EXPECT_EQ(text(997, 1000), "99.7");
  EXPECT_EQ(text(2000, 2000), "100.0");
  EXPECT_EQ(text(0, 0), "0.0");
}

TEST(Scores, CountExactMatches) {
  ScoreCounts counts;
  EXPECT_EQ(ExactMatch(counts), 0);
  EXPECT_EQ(Bleu(counts), 0);
  EXPECT_EQ(ChrF(counts), 0);
  counts += CountMatches("zwei", "zwei");
  counts += CountMatches("zwei ", "zwei");
  counts += CountMatches("", "");
  counts += CountMatches("drei", "Drei");
  EXPECT_EQ(ExactMatch(counts), 50);
}

// Bytes that are no UTF-8 are characters of their own, and differ.
TEST(Scores, TakeAnyBytes) {
  EXPECT_EQ(ChrF(CountMatches("\xFF\xC3", "\xFF\xC3")), 100);
  EXPECT_EQ(ChrF(CountMatches("\xFF", "\xFE")), 0);
  EXPECT_EQ(ChrF(CountMatches("\xE2\x82", "\xE2\x82\xAC")), 0);
}

// WikiText's detokenisation, rule by rule.

TEST(Detokenise, FollowsEachRule) {
  const std::pair<const char*, const char*> cases[] = {
      {"a 10 @-@ year @,@ 000 1 @.@ 5", "a 10-year,000 1.5"},
      {"one , two ; three : four . Five ! Six ? x", "one, two; three: four. Five! Six? x"},
      {"the ships ' crew", "the ships' crew"},
      {"Smith 's ship", "Smith's ship"},
      {"( a b ) [ c ] { d }", "(a b) [c] {d}"},
      {"he said \" yes \" and ' no '", "he said \"yes\" and 'no'"},
      {"( never closed \" nor this", "( never closed \" nor this"},
      {" = Title = \n", " = Title =\n"},
      {" \n = = Section = = \n ", "\n== Section ==\n"},
      {"= = = x = = =", "=== x ==="},
      {"12 \xC2\xB0 C",
       "12\xC2\xB0"
       "C"},
      {"about N ships", "about 1 ships"},
      {"", ""},
      {"\"\xC2\xA0 x \xE2\x80\x89\"", "\"x\""},
      {"(   )", "()"},
  };
  for (const auto& [text, wanted] : cases) EXPECT_EQ(DetokeniseWikitext(text), wanted);
}

// As Python's regular expressions of these rules give it.
TEST(Detokenise, GivesTheKnownBytesOfWikiText) {
  const char* const shared = std::getenv("TRIREME_SHARED");
  std::ifstream file(std::string(shared == nullptr ? "" : shared) + "/data/wikitext-2/test.txt",
                     std::ios::binary);
  if (!file) GTEST_SKIP() << "WikiText-2 is not in TRIREME_SHARED: not checked";
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const data::TextUnits units = data::UnitsOf(text);
  EXPECT_EQ(units.words, 241211);
  EXPECT_EQ(units.lines, 4358);
  const std::string result = DetokeniseWikitext(text);
  EXPECT_EQ(result.size(), 1206463U);
  std::uint64_t hash = 0xCBF29CE484222325;  // FNV-1a
  for (const char c : result) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  EXPECT_EQ(hash, 0x4848965000EE78A0U);
}

}  // namespace
}  // namespace trireme::tasks
