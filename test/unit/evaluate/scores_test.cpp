// Scores of translations: numbers of sacrebleu 2.6.0, and sums in any order.
#include "trireme/tasks/evaluate.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace trireme::tasks {
namespace {

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

}  // namespace
}  // namespace trireme::tasks
