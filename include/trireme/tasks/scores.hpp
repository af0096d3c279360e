// Scores of translations against one reference each: corpus BLEU (Papineni et al. 2002,
// doi:10.3115/1073083.1073135) and chrF (Popović 2015, doi:10.18653/v1/W15-3049) with the
// definitions of sacrebleu (Post 2018, arXiv:1804.08771), and exact match.
#ifndef TRIREME_TASKS_SCORES_HPP_
#define TRIREME_TASKS_SCORES_HPP_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace trireme::tasks {

// Names of the definitions in sacrebleu, without its version.
inline constexpr const char* kBleuSignature = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp";
inline constexpr const char* kChrFSignature = "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no";

// Counts of texts, from which all scores follow. Whole numbers: sums over texts, and over ranks,
// are the same in any order.
struct ScoreCounts {
  static constexpr std::size_t kWordOrders = 4;       // of BLEU's n-grams
  static constexpr std::size_t kCharacterOrders = 6;  // of chrF's
  // N-grams of one order.
  struct Grams {
    std::int64_t hypothesis = 0, reference = 0, matches = 0;
  };

  std::int64_t texts = 0, exact = 0;  // exact: byte for byte
  std::int64_t hypothesis_words = 0, reference_words = 0;
  std::array<Grams, kWordOrders> words{};            // n-grams of n = 1, 2, ... words
  std::array<Grams, kCharacterOrders> characters{};  // likewise, of characters that are no blanks

  ScoreCounts& operator+=(const ScoreCounts& other);
};

// Counts of one text. UTF-8; a byte that is none counts as a character.
ScoreCounts CountMatches(std::string_view hypothesis, std::string_view reference);

// Of all texts; 0 to 100. 0 without texts.
double Bleu(const ScoreCounts& counts);
double ChrF(const ScoreCounts& counts);  // chrF2
double ExactMatch(const ScoreCounts& counts);
// "99.9": rounded down, so that 100.0 is all of them.
std::string ExactMatchText(const ScoreCounts& counts);

}  // namespace trireme::tasks

#endif  // TRIREME_TASKS_SCORES_HPP_
