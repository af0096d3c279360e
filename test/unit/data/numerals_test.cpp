// The numerals: spelling, split by number, pieces.
#include "trireme/data/pairs.hpp"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>

#include "token_codec.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {
namespace {

struct Spelled {
  std::int64_t number;
  const char *digits, *english, *german;
};

TEST(Numerals, AreSpelledInThreeForms) {
  const std::vector<Spelled> expected = {
      {0, "0", "zero", "null"},
      {1, "1", "one", "eins"},
      {12, "12", "twelve", "zwölf"},
      {16, "16", "sixteen", "sechzehn"},
      {17, "17", "seventeen", "siebzehn"},
      {20, "20", "twenty", "zwanzig"},
      {21, "21", "twenty-one", "einundzwanzig"},
      {30, "30", "thirty", "dreißig"},
      {66, "66", "sixty-six", "sechsundsechzig"},
      {77, "77", "seventy-seven", "siebenundsiebzig"},
      {100, "100", "one hundred", "hundert"},
      {101, "101", "one hundred one", "hunderteins"},
      {111, "111", "one hundred eleven", "hundertelf"},
      {201, "201", "two hundred one", "zweihunderteins"},
      {1000, "1 000", "one thousand", "tausend"},
      {1001, "1 001", "one thousand one", "tausendeins"},
      {1100, "1 100", "one thousand one hundred", "tausendeinhundert"},
      {21000, "21 000", "twenty-one thousand", "einundzwanzigtausend"},
      {100000, "100 000", "one hundred thousand", "hunderttausend"},
      {101000, "101 000", "one hundred one thousand", "hunderteintausend"},
      {342117, "342 117", "three hundred forty-two thousand one hundred seventeen",
       "dreihundertzweiundvierzigtausendeinhundertsiebzehn"},
      {1000000, "1 000 000", "one million", "eine Million"},
      {1000001, "1 000 001", "one million one", "eine Million eins"},
      {1100000, "1 100 000", "one million one hundred thousand", "eine Million hunderttausend"},
      {2000000, "2 000 000", "two million", "zwei Millionen"},
      {21000100, "21 000 100", "twenty-one million one hundred", "einundzwanzig Millionen hundert"},
      {101000000, "101 000 000", "one hundred one million", "hunderteine Millionen"},
      {999999999, "999 999 999",
       "nine hundred ninety-nine million nine hundred ninety-nine thousand nine hundred "
       "ninety-nine",
       "neunhundertneunundneunzig Millionen "
       "neunhundertneunundneunzigtausendneunhundertneunundneunzig"}};
  for (const Spelled& each : expected) {
    EXPECT_EQ(InDigits(each.number), each.digits);
    EXPECT_EQ(InEnglish(each.number), each.english);
    EXPECT_EQ(InGerman(each.number), each.german);
  }
}

TEST(Numerals, ArePureFunctionsWithinTheirSplits) {
  std::array<std::set<std::int64_t>, 3> numbers;
  std::set<std::string> tags;
  for (const Split split : kSplits) {
    for (std::int64_t i = 0; i < 2000; ++i) {
      const NumeralPair pair = MakeNumeralPair(3, split, i);
      EXPECT_EQ(MakeNumeralPair(3, split, i).source, pair.source);
      EXPECT_EQ(SplitOfNumber(pair.number), split);
      EXPECT_LE(pair.number, kLargestNumeral);
      const std::string form = pair.source.substr(pair.source.find('>') + 2);
      EXPECT_NE(form, pair.target);
      const std::string tag = pair.source.substr(0, pair.source.find('>') + 1);
      tags.insert(tag);
      EXPECT_EQ(pair.target, tag == "<de>"   ? InGerman(pair.number)
                             : tag == "<en>" ? InEnglish(pair.number)
                                             : InDigits(pair.number));
      numbers.at(static_cast<std::size_t>(split)).insert(pair.number);
    }
  }
  EXPECT_EQ(tags, (std::set<std::string>{"<de>", "<en>", "<digits>"}));
  for (const std::int64_t number : numbers[2]) {
    EXPECT_FALSE(numbers[0].contains(number) || numbers[1].contains(number)) << number;
  }
  EXPECT_NE(MakeNumeralPair(4, Split::kTrain, 0).number,
            MakeNumeralPair(3, Split::kTrain, 0).number);
}

// Every pair is made of pieces, which give the text back; greedy cuts end where words do.
TEST(Numerals, AreMadeOfPieces) {
  const Vocabulary vocabulary = NumeralVocabulary();
  const TokenCodec codec(vocabulary, kNumeralsTokenizer, "numerals");
  const auto pieces = [&](const std::string& text) {
    std::vector<std::string> words;
    for (const std::int32_t id : codec.Encode(text)) {
      words.push_back(vocabulary.words.at(static_cast<std::size_t>(id)));
    }
    return words;
  };
  using Words = std::vector<std::string>;
  EXPECT_EQ(pieces("<de> 1 017"), (Words{"<de> ", "1", " ", "0", "1", "7"}));
  EXPECT_EQ(pieces("hunderteinundsechzigtausendsechs"),
            (Words{"hundert", "ein", "und", "sechzig", "tausend", "sechs"}));
  EXPECT_EQ(pieces("seventy-six hundred"), (Words{"seventy", "-", "six", " hundred"}));
  for (std::int64_t i = 0; i < 3000; ++i) {
    const NumeralPair pair = MakeNumeralPair(1, Split::kTrain, i);
    for (const std::string& text : {pair.source, pair.target}) {
      EXPECT_EQ(codec.Decode(codec.Encode(text)), text);
    }
  }
  EXPECT_THROW(codec.Encode("dreihundert Schiffe"), Error);
}

}  // namespace
}  // namespace trireme::data
