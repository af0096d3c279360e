// Spelling of numbers, their split, and the pieces of the vocabulary.
#include "trireme/data/numerals.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <array>
#include <string_view>
#include <vector>

#include "trireme/base/philox.hpp"
#include "words.hpp"

namespace trireme::data {

namespace {

constexpr std::int64_t kThousand = 1000, kMillion = 1'000'000;

constexpr std::array<std::string_view, 20> kEnglish = {
    "zero",     "one",     "two",     "three",     "four",     "five",    "six",
    "seven",    "eight",   "nine",    "ten",       "eleven",   "twelve",  "thirteen",
    "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"};
constexpr std::array<std::string_view, 10> kEnglishTens = {
    "", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"};
constexpr std::array<std::string_view, 20> kGerman = {
    "null",     "ein",      "zwei",     "drei",     "vier",     "fünf",    "sechs",
    "sieben",   "acht",     "neun",     "zehn",     "elf",      "zwölf",   "dreizehn",
    "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn"};
constexpr std::array<std::string_view, 10> kGermanTens = {
    "", "", "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"};
constexpr std::array<std::string_view, 3> kTags = {"<digits>", "<en>", "<de>"};

template <std::size_t n>
std::string At(const std::array<std::string_view, n>& words, std::int64_t place) {
  return std::string(words.at(static_cast<std::size_t>(place)));
}

// 1 to 999.
std::string EnglishGroup(std::int64_t number) {
  std::string text;
  if (number >= 100) text = At(kEnglish, number / 100) + " hundred";
  const std::int64_t rest = number % 100;
  if (rest == 0) return text;
  if (!text.empty()) text += ' ';
  if (rest < 20) return text + At(kEnglish, rest);
  text += At(kEnglishTens, rest / 10);
  return rest % 10 == 0 ? text : text + '-' + At(kEnglish, rest % 10);
}

// 1 to 999, with the form of a last one ("ein", "eins", "eine"). begins: a word.
std::string GermanGroup(std::int64_t number, const char* one, bool begins) {
  std::string text;
  const std::int64_t hundreds = number / 100, rest = number % 100;
  if (hundreds > 0) {
    text = (hundreds == 1 && begins ? std::string() : At(kGerman, hundreds)) + "hundert";
  }
  if (rest == 0) return text;
  if (rest == 1) return text + one;
  if (rest < 20) return text + At(kGerman, rest);
  if (rest % 10 != 0) text += At(kGerman, rest % 10) + "und";
  return text + At(kGermanTens, rest / 10);
}

// 1 to 999,999: one word.
std::string GermanWord(std::int64_t number) {
  const std::int64_t thousands = number / kThousand, rest = number % kThousand;
  std::string text;
  if (thousands > 0) {
    text = (thousands == 1 ? std::string() : GermanGroup(thousands, "ein", true)) + "tausend";
  }
  return rest == 0 ? text : text + GermanGroup(rest, "eins", text.empty());
}

std::string InForm(std::size_t form, std::int64_t number) {
  if (form == 0) return InDigits(number);
  return form == 1 ? InEnglish(number) : InGerman(number);
}

}  // namespace

std::string InDigits(std::int64_t number) {
  if (number < kThousand) return fmt::format("{}", number);
  return fmt::format("{} {:03}", InDigits(number / kThousand), number % kThousand);
}

std::string InEnglish(std::int64_t number) {
  if (number == 0) return At(kEnglish, 0);
  std::string text;
  const auto add = [&](std::int64_t group, std::string_view scale) {
    if (group == 0) return;
    if (!text.empty()) text += ' ';
    text += EnglishGroup(group);
    text += scale;
  };
  add(number / kMillion, " million");
  add(number / kThousand % kThousand, " thousand");
  add(number % kThousand, "");
  return text;
}

std::string InGerman(std::int64_t number) {
  if (number == 0) return At(kGerman, 0);
  const std::int64_t millions = number / kMillion, rest = number % kMillion;
  std::string text;
  if (millions > 0) {
    text = GermanGroup(millions, "eine", true) + (millions == 1 ? " Million" : " Millionen");
  }
  if (rest == 0) return text;
  return (text.empty() ? text : text + ' ') + GermanWord(rest);
}

Split SplitOfNumber(std::int64_t number) {
  constexpr std::int64_t kAlwaysTrain = 100;
  constexpr std::uint64_t kShare = 100;  // one of so many
  if (number < kAlwaysTrain) return Split::kTrain;
  const std::uint64_t place = XXH3_64bits(&number, sizeof number) % kShare;
  return place == 0 ? Split::kValid : place == 1 ? Split::kTest : Split::kTrain;
}

NumeralPair MakeNumeralPair(std::uint32_t seed, Split split, std::int64_t index) {
  constexpr std::uint32_t kLeastDigits = 3, kLengths = 7;
  const auto place = static_cast<std::uint64_t>(index);
  for (std::uint32_t attempt = 0;; ++attempt) {
    const PhiloxCounter bits =
        Philox({static_cast<std::uint32_t>(place), static_cast<std::uint32_t>(place >> 32), attempt,
                static_cast<std::uint32_t>(split)},
               MakeKey(seed, Purpose::kNumerals));
    std::uint64_t count = 1;  // of numbers with at most so many digits
    for (std::uint32_t d = 0; d < kLeastDigits + bits[0] % kLengths; ++d) count *= 10;
    // The remainder's bias is below count / 2^64.
    const std::uint64_t random = std::uint64_t{bits[1]} << 32 | bits[2];
    const auto number = static_cast<std::int64_t>(random % count);
    if (SplitOfNumber(number) != split) continue;
    const std::size_t from = bits[3] % kTags.size();
    const std::size_t to = (from + 1 + bits[3] / kTags.size() % 2) % kTags.size();
    return {number, fmt::format("{} {}", kTags.at(to), InForm(from, number)), InForm(to, number)};
  }
}

Vocabulary NumeralVocabulary() {
  Vocabulary vocabulary;
  std::vector<std::string>& words = vocabulary.words;
  words = {std::string(kEndOfSentence), " ", "-"};
  for (const std::string_view tag : kTags) words.push_back(std::string(tag) + ' ');
  for (char digit = '0'; digit <= '9'; ++digit) words.emplace_back(1, digit);
  const auto english = [&](std::string_view word) {
    if (word.empty()) return;
    words.emplace_back(word);
    words.push_back(' ' + std::string(word));
  };
  for (const std::string_view word : kEnglish) english(word);
  for (const std::string_view word : kEnglishTens) english(word);
  for (const char* word : {" hundred", " thousand", " million"}) words.emplace_back(word);
  for (const std::string_view word : kGerman) words.emplace_back(word);
  for (const std::string_view word : kGermanTens) {
    if (!word.empty()) words.emplace_back(word);
  }
  for (const char* word : {"eins", "eine", "und", "hundert", "tausend", " Million", " Millionen"}) {
    words.emplace_back(word);
  }
  vocabulary.eos = 0;
  vocabulary.unk = -1;
  return vocabulary;
}

}  // namespace trireme::data
