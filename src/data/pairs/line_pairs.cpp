// Counting and reading of line-aligned texts, and the numerals. A unit's targets are read from the
// start of the byte range in which their first line begins, so at most that range is read twice.
#include "line_pairs.hpp"

#include <fmt/format.h>
#include <xxhash.h>
#include <algorithm>
#include <limits>
#include <memory>

#include "trireme/base/error.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/base/utf8.hpp"
#include "trireme/data/pairs.hpp"
#include "trireme/data/text_units.hpp"
#include "words.hpp"

namespace trireme::data {

namespace {

constexpr std::size_t kLongestLine = std::size_t{16} << 20;  // bytes

// Lines of a file, from the first one that begins at byte `begin` or later.
class Lines {
 public:
  Lines(const TextFile& file, std::int64_t begin)
      : path_(file.path),
        source_(OpenText(file, std::max<std::int64_t>(begin - 1, 0))),
        reader_(*source_, std::max<std::int64_t>(begin - 1, 0)),
        offset_(begin) {
    // A line begins exactly at `begin` if a line end precedes it, so reading starts a byte earlier.
    LineReader::Piece piece;
    while (begin > 0 && reader_.Next(piece) && !piece.last) {
      if (piece.offset - begin > static_cast<std::int64_t>(kLongestLine)) RefuseLong();
    }
  }

  bool Next(std::string& line) {
    line.clear();
    LineReader::Piece piece;
    if (!reader_.Next(piece)) return false;
    offset_ = piece.offset;
    line = piece.text;
    while (!piece.last && reader_.Next(piece)) {
      line += piece.text;
      if (line.size() > kLongestLine) RefuseLong();
    }
    if (offset_ == 0 && line.starts_with(kByteOrderMark)) line.erase(0, kByteOrderMark.size());
    return true;
  }
  std::int64_t Offset() const { return offset_; }  // of the line, in bytes of the file's text

 private:
  [[noreturn]] void RefuseLong() const {
    throw InputError(fmt::format("{}: the line at byte {} has more than {} MiB", path_, offset_,
                                 kLongestLine >> 20),
                     "A pair is a line of each file: are these line-aligned texts?");
  }

  std::string path_;
  std::unique_ptr<TextSource> source_;
  LineReader reader_;
  std::int64_t offset_;  // of the line at hand; before the first one, where reading begins
};

// Number of lines that begin in a unit.
std::int64_t CountLines(const TextFile& file, const TextUnit& unit,
                        const std::function<void()>& ask) {
  constexpr std::int64_t kAskEvery = 1 << 14;
  const std::int64_t end =
      file.packing == Packing::kNone ? unit.end : std::numeric_limits<std::int64_t>::max();
  Lines lines(file, unit.begin);
  std::string line;
  std::int64_t count = 0;
  while (lines.Next(line) && lines.Offset() < end) {
    if (++count % kAskEvery == 0) ask();
  }
  return count;
}

// Throws unless the two files have equal numbers of lines.
void CheckEqual(const TextFile& source, const TextFile& target, std::int64_t sources,
                std::int64_t targets) {
  if (sources == targets) return;
  const bool more = sources > targets;
  throw InputError(fmt::format("{} has {} lines and {} has {}: line {} of {} has no partner",
                               source.path, sources, target.path, targets,
                               std::min(sources, targets) + 1, more ? source.path : target.path),
                   "Line k of the source and line k of the target are a pair; an empty line keeps "
                   "the place of a text that is missing.");
}

// The units of one file, with the lines in each and before each.
struct Ranges {
  std::vector<TextUnit> units;
  std::vector<std::int64_t> lines, before;
  std::int64_t all = 0;
};

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

// Spells 1 to 999.
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

// Spells 1 to 999. one: form of a final one ("ein", "eins", "eine"). begins: the group begins its
// word, so 100 is "hundert" and not "einhundert".
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

// Spells 1 to 999,999 as one word.
std::string GermanWord(std::int64_t number) {
  const std::int64_t thousands = number / kThousand, rest = number % kThousand;
  std::string text;
  if (thousands > 0) {
    text = (thousands == 1 ? std::string() : GermanGroup(thousands, "ein", true)) + "tausend";
  }
  return rest == 0 ? text : text + GermanGroup(rest, "eins", text.empty());
}

}  // namespace

std::vector<LineUnit> AlignLines(const comm::Communicator& world, const LinePlan& plan,
                                 const std::function<bool()>& stop) {
  PerText<std::vector<TextUnit>> units;
  for (std::size_t t = 0; t < units.size(); ++t) {
    units.at(t) = CutIntoUnits(plan.files.at(t), DocumentEnd::kLine, plan.unit_bytes);
  }
  PerText<std::vector<double>> lines;  // by unit; a double counts them exactly
  comm::WorkJointly(world, [&](const comm::Poll& poll) {
    const auto ask = Asking(stop, poll);
    for (std::size_t t = 0; t < units.size(); ++t) {
      lines.at(t).resize(units.at(t).size());
      const auto ranks = static_cast<std::size_t>(world.Size());
      for (auto u = static_cast<std::size_t>(world.Rank()); u < units.at(t).size(); u += ranks) {
        ask();
        const TextUnit& unit = units.at(t)[u];
        lines.at(t)[u] = static_cast<double>(CountLines(plan.files.at(t).at(unit.file), unit, ask));
      }
    }
  });
  PerText<std::vector<Ranges>> ranges;
  for (std::size_t t = 0; t < units.size(); ++t) {
    world.Sum(lines.at(t));
    ranges.at(t).resize(plan.files.at(t).size());
    for (std::size_t u = 0; u < units.at(t).size(); ++u) {
      const TextUnit& unit = units.at(t)[u];
      Ranges& of = ranges.at(t).at(unit.file);
      of.units.push_back(unit);
      of.lines.push_back(static_cast<std::int64_t>(lines.at(t)[u]));
      of.before.push_back(of.all);
      of.all += of.lines.back();
    }
  }
  std::vector<LineUnit> aligned;
  world.Together([&] {
    for (std::size_t f = 0; f < plan.files[kSourceText].size(); ++f) {
      const TextFile& source = plan.files[kSourceText][f];
      const TextFile& target = plan.files[kTargetText].at(f);
      const Ranges& sources = ranges[kSourceText][f];
      const Ranges& targets = ranges[kTargetText].at(f);
      CheckEqual(source, target, sources.all, targets.all);
      if (source.packing != Packing::kNone || target.packing != Packing::kNone) {
        if (sources.all > 0) aligned.push_back({.file = f, .lines = sources.all});
        continue;
      }
      for (std::size_t u = 0; u < sources.units.size(); ++u) {
        if (sources.lines[u] == 0) continue;
        const std::int64_t first = sources.before[u];
        const auto after = std::ranges::upper_bound(targets.before, first);
        const auto v = static_cast<std::size_t>(after - targets.before.begin()) - 1;
        aligned.push_back({f, sources.lines[u], first, sources.units[u].begin,
                           targets.units[v].begin, first - targets.before[v]});
      }
    }
  });
  return aligned;
}

LinePairs::LinePairs(const LinePlan& plan, std::vector<LineUnit> units)
    : plan_(plan), units_(std::move(units)) {}

std::int64_t LinePairs::Bytes() const {
  std::int64_t bytes = 0;
  for (const std::vector<TextFile>& files : plan_.files) {
    for (const TextFile& file : files) bytes += file.bytes;
  }
  return bytes;
}

void LinePairs::ForEach(std::size_t unit, const std::function<void(const Read&)>& visit) const {
  const LineUnit& range = units_.at(unit);
  const PerText<const TextFile*> files = {&plan_.files[kSourceText].at(range.file),
                                          &plan_.files[kTargetText].at(range.file)};
  PerText<Lines> lines = {Lines(*files[kSourceText], range.source_begin),
                          Lines(*files[kTargetText], range.target_begin)};
  Read read;
  for (std::int64_t skipped = 0; skipped < range.skip; ++skipped) {
    lines[kTargetText].Next(read.texts[kTargetText]);
  }
  std::string line;
  for (std::int64_t i = 0; i < range.lines; ++i) {
    read.line = range.first + i + 1;
    read.blank = false;
    read.replaced = 0;
    for (std::size_t t = 0; t < lines.size(); ++t) {
      if (!lines.at(t).Next(line)) {
        throw InputError(files.at(t)->path + ": the file has changed while it was read");
      }
      read.texts.at(t).clear();
      WholeText text(read.texts.at(t));
      Utf8Filter filter(text, files.at(t)->path, plan_.replace);
      filter.Text(line, lines.at(t).Offset());
      filter.End();
      read.replaced += filter.Replaced();
      read.blank |= read.texts.at(t).find_first_not_of(kWhiteSpace) == std::string::npos;
    }
    visit(read);
  }
}

UnitResult LinePairs::Make(std::size_t unit, Encoder& to, const UnitProgress& tell) {
  const LineUnit& range = units_.at(unit);
  const TextFile& source = plan_.files[kSourceText].at(range.file);
  const TextFile& target = plan_.files[kTargetText].at(range.file);
  std::int64_t line = 0, empty = 0, replaced = 0;
  to.Begin(unit, source.split,
           [&] { return fmt::format("line {} of {} and {}", line, source.path, target.path); });
  ForEach(unit, [&](const Read& read) {
    line = read.line;
    tell(line - range.first);
    replaced += read.replaced;
    if (read.blank) {
      ++empty;
      return;
    }
    to.Add(read.texts[kSourceText]);
    to.NextText();
    to.Add(read.texts[kTargetText]);
    to.End();
  });
  UnitResult result = to.Finish();
  result.empty = empty;
  result.replaced = replaced;
  return result;
}

void LinePairs::VisitTrain(std::size_t unit, const Visit& visit) const {
  const Split split = plan_.files[kSourceText].at(units_.at(unit).file).split;
  ForEach(unit, [&](const Read& read) {
    if (read.blank) return;
    const std::string pair = read.texts[kSourceText] + '\n' + read.texts[kTargetText];
    const std::uint64_t hash = XXH3_64bits(pair.data(), pair.size());
    if (plan_.settings.SplitOf(hash, split) == Split::kTrain) visit(read.texts);
  });
}

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
  constexpr std::uint64_t kShare = 100;  // one number in a hundred
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
    std::uint64_t count = 1;  // becomes 10^digits
    for (std::uint32_t d = 0; d < kLeastDigits + bits[0] % kLengths; ++d) count *= 10;
    // The bias of this remainder is below count / 2^64.
    const std::uint64_t random = std::uint64_t{bits[1]} << 32 | bits[2];
    const auto number = static_cast<std::int64_t>(random % count);
    if (SplitOfNumber(number) != split) continue;
    const std::size_t from = bits[3] % kTags.size();
    const std::size_t to = (from + 1 + bits[3] / kTags.size() % 2) % kTags.size();
    constexpr std::array kForms = {InDigits, InEnglish, InGerman};
    return {number, fmt::format("{} {}", kTags.at(to), kForms.at(from)(number)),
            kForms.at(to)(number)};
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
  std::ranges::for_each(kEnglish, english);
  std::ranges::for_each(kEnglishTens, english);
  for (const char* word : {" hundred", " thousand", " million"}) words.emplace_back(word);
  for (const std::string_view word : kGerman) words.emplace_back(word);
  for (const std::string_view word : kGermanTens) {
    if (!word.empty()) words.emplace_back(word);
  }
  for (const char* word : {"eins", "eine", "und", "hundert", "tausend", " Million", " Millionen"}) {
    words.emplace_back(word);
  }
  return vocabulary;
}

}  // namespace trireme::data
