// The numerals: numbers as digits and as English and German words, a translation problem with one
// right answer.
#ifndef TRIREME_DATA_NUMERALS_HPP_
#define TRIREME_DATA_NUMERALS_HPP_

#include <cstdint>
#include <string>

#include "trireme/data/token_file.hpp"

namespace trireme::data {

inline constexpr std::int64_t kLargestNumeral = 999'999'999;

// Spelling of 0 <= number <= kLargestNumeral. Digits stand in groups of three with a blank between
// them. English is American, without "and". German writes what is below a million as one word; a
// word begins with "hundert" or "tausend" rather than "einhundert" or "eintausend".
std::string InDigits(std::int64_t number);   // "1 342 117"
std::string InEnglish(std::int64_t number);  // "three hundred forty-two"
std::string InGerman(std::int64_t number);   // "eine Million hunderteinundzwanzigtausendeins"

struct NumeralPair {
  std::int64_t number = 0;
  std::string source;  // a tag of the target's form, a blank, the number in another form
  std::string target;
};

// Split of the pairs of a number: a hundredth of the numbers are each of valid and test, by a hash
// of the number alone; numbers below 100 are always train.
Split SplitOfNumber(std::int64_t number);

// Pair `index` of a split: a pure function (Philox). The number has 3 to 9 digits, leading zeros
// included, each length equally often, and then each number; forms of source and target are
// different ones of digits, English and German, each two equally often. A pair may come again.
NumeralPair MakeNumeralPair(std::uint32_t seed, Split split, std::int64_t index);

// Pieces of which all sources and targets are made, "<eos>" first (eos).
Vocabulary NumeralVocabulary();

}  // namespace trireme::data

#endif  // TRIREME_DATA_NUMERALS_HPP_
