// Tokenisation: in memory, for single texts of words or bytes and the harbour corpus; by all ranks
// into a token file, for other single texts, line-aligned pairs and numerals. Decides on files,
// tokenizers and splits, the same on every rank.
#include "trireme/data/tokenize.hpp"

#include <fmt/format.h>
#include <xxhash.h>
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <unordered_map>
#include <utility>

#include "harbour/grammar.hpp"
#include "pairs/line_pairs.hpp"
#include "text/documents.hpp"
#include "text/inputs.hpp"
#include "text/tokenize_texts.hpp"
#include "token_arrays.hpp"
#include "token_codec.hpp"
#include "token_layout.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/base/utf8.hpp"
#include "trireme/data/pairs.hpp"
#include "trireme/data/tokenizer.hpp"
#include "words.hpp"

namespace trireme::data {

namespace {

// What TokenizeInParallel is given.
struct Job {
  const comm::Communicator& world;
  const TokenizeOptions& options;
  const deck::Deck& deck;
  const std::string& path;
  const TextWatch& watch;
  bool dry;
};

// Sends root's files to all ranks. Collective.
void Share(const comm::Communicator& world, std::vector<TextFile>& files) {
  std::vector<std::string> paths;
  std::vector<std::int64_t> numbers;  // four for each file
  for (const TextFile& file : files) {
    paths.push_back(file.path);
    numbers.insert(numbers.end(), {static_cast<int>(file.split), file.json_lines,
                                   static_cast<int>(file.packing), file.bytes});
  }
  Broadcast(world, paths);
  numbers.resize(4 * paths.size());
  world.Broadcast(numbers.data(), std::ssize(numbers) * std::int64_t{sizeof(std::int64_t)});
  files.clear();
  for (const std::int64_t* at = numbers.data(); std::string & path : paths) {
    files.push_back({.path = std::move(path),
                     .split = static_cast<Split>(at[0]),
                     .json_lines = at[1] != 0,
                     .packing = static_cast<Packing>(at[2]),
                     .bytes = at[3]});
    at += 4;
  }
}

// A tokenizer as the deck names it.
struct TokenizerName {
  std::string path = {};  // file, folder or token file; empty: the deck names none
  const char* key = "tokenize.tokenizer";
  Side side = Side::kTarget;  // which tokenizer to take from a file of pairs
};

// Id of the token that ends a document: tokenize.eos, or what the tokenizer names. Throws
// InputError with the deck's line if there is none.
std::int64_t EosOf(const Tokenizer& tokenizer, const Job& job) {
  const bool named = !job.options.eos.empty();
  if (const auto eos = named ? tokenizer.IdOf(job.options.eos) : tokenizer.Eos()) return *eos;
  if (named) throw job.deck.Complain("tokenize.eos", "the tokenizer has no such token");
  throw job.deck.Complain("tokenize.eos", "the tokenizer names no token for the end of a document",
                          "Name one of its tokens, as <|endoftext|>.");
}

// Returns what `body` returns; an Error of it becomes one about the deck's key.
template <typename Body>
auto ForKey(const std::string& key, const deck::Deck& deck, Body body) {
  try {
    return body();
  } catch (const Error& error) {
    throw deck.Complain(key, error.what());
  }
}

std::vector<TextFile> FindFiles(const std::string& list, Split split, Side side,
                                const deck::Deck& deck) {
  return ForKey(KeyOfTexts(split, side), deck, [&] { return FindTextFiles(list, split); });
}

// Throws InputError if writing `path` would replace the file.
void RefuseReplaced(const TextFile& file, Side side, const std::string& path,
                    const deck::Deck& deck) {
  if (!IsReplaced(file, path)) return;
  throw deck.Complain(KeyOfTexts(file.split, side),
                      fmt::format("{} is data.file, which would be replaced", file.path));
}

// Files of single texts for all splits. Serial.
std::vector<TextFile> FindSingleFiles(const TokenizeOptions& options, const deck::Deck& deck,
                                      const std::string& path) {
  std::vector<TextFile> files;
  for (const Split split : kSplits) {
    const std::string& list = options.texts.at(static_cast<std::size_t>(split));
    if (list.empty() && split != Split::kTrain) continue;
    std::ranges::move(FindFiles(list, split, Side::kText, deck), std::back_inserter(files));
  }
  for (const std::string& twice : NamedTwice(files)) fmt::print(stderr, "warning: {}\n", twice);
  for (const TextFile& file : files) RefuseReplaced(file, Side::kText, path, deck);
  return files;
}

// Files of pairs for all splits, by side. Serial.
PerText<std::vector<TextFile>> FindPairFiles(const TokenizeOptions& options, const deck::Deck& deck,
                                             const std::string& path) {
  PerText<std::vector<TextFile>> files;
  for (const Split split : kSplits) {
    const PairTexts& texts = options.pairs.texts.at(static_cast<std::size_t>(split));
    if (texts.source.empty()) continue;
    PerText<std::vector<TextFile>> found = {FindFiles(texts.source, split, Side::kSource, deck),
                                            FindFiles(texts.target, split, Side::kTarget, deck)};
    if (found[0].size() != found[1].size()) {
      throw deck.Complain(KeyOfTexts(split, Side::kTarget),
                          fmt::format("{} files for the {} of {}", found[1].size(), found[0].size(),
                                      KeyOfTexts(split, Side::kSource)));
    }
    for (std::size_t t = 0; t < found.size(); ++t) {
      for (TextFile& file : found.at(t)) {
        RefuseReplaced(file, kPairSides.at(t), path, deck);
        if (file.json_lines) {
          throw deck.Complain(KeyOfTexts(split, kPairSides.at(t)),
                              file.path + ": texts of pairs are plain, a line each");
        }
        files.at(t).push_back(std::move(file));
      }
    }
  }
  return files;
}

// Settings of the encoder; splits without texts of their own get a fraction of train's documents.
EncodeSettings SettingsOf(const TokenizeOptions& options) {
  const auto fraction = [&](Split split, double wanted) {
    const auto s = static_cast<std::size_t>(split);
    const bool own = !options.texts.at(s).empty() || !options.pairs.texts.at(s).source.empty();
    return own ? 0.0 : wanted;
  };
  return {.masks = !options.prompt_key.empty(),
          .valid_fraction = fraction(Split::kValid, options.valid_fraction),
          .test_fraction = fraction(Split::kTest, options.test_fraction)};
}

// Vocabulary of the words in the train pairs, on one side or both: <eos>, <unk>, then those that
// occur at least tokenize.min_count times. Serial.
Vocabulary CountWords(const LinePairs& lines, const TokenizeOptions& options,
                      const std::vector<std::size_t>& texts, const TextWatch& watch) {
  std::unordered_map<std::string, std::int64_t> counts;  // by word
  for (std::size_t unit = 0; unit < lines.Units(); ++unit) {
    RequireGoingOn(watch.stop);
    lines.VisitTrain(unit, [&](const PerText<std::string>& pair) {
      for (const std::size_t text : texts) {
        const std::string folded = options.lowercase ? LowerCased(pair.at(text)) : pair.at(text);
        ForEachWord(folded, [&](std::string_view word) { ++counts[std::string(word)]; });
      }
    });
  }
  std::erase_if(counts, [&](const auto& each) {
    const auto& [word, count] = each;
    return count < options.min_count || word == kEndOfSentence || word == kUnknown;
  });
  Vocabulary vocabulary{
      .words = {std::string(kEndOfSentence), std::string(kUnknown)}, .eos = 0, .unk = 1};
  std::ranges::move(ByCount(counts), std::back_inserter(vocabulary.words));
  return vocabulary;
}

// Bytes of the sample on which a tokenizer is trained.
constexpr std::int64_t kSampleBytes = std::int64_t{64} << 20;

// Bytes to take from a unit, at least.
constexpr std::int64_t kLeastOfUnit = std::int64_t{256} << 10;

// Thrown to end the reading of a unit that has given enough.
struct Enough {};

// Where to cut a line that is longer than `most` bytes: at the last blank within them or, without
// one, before the character that does not fit.
std::size_t CutBefore(std::string_view line, std::size_t most) {
  const std::size_t blank = line.rfind(' ', most - 1);
  if (blank != std::string_view::npos && blank > 0) return blank;
  std::size_t at = most;
  while (at > 0 && ContinuesCharacter(line[at])) --at;
  return at;
}

// Collects the lines of those documents of a unit that belong to the train split.
class SampledLines : public RecordSink {
 public:
  SampledLines(const EncodeSettings& settings, std::vector<std::string>& lines)
      : settings_(settings), lines_(lines) {}

  // Starts a unit. bytes: the most that are kept of it.
  void Begin(std::int64_t bytes) {
    left_ = bytes;
    document_.clear();
  }

  void Prompt(std::string_view text, std::int64_t /*offset*/) override { document_ = text; }
  void Text(std::string_view piece, std::int64_t /*offset*/) override {
    document_ += piece;
    if (std::ssize(document_) < left_) return;
    Keep();  // the beginning of a long document is enough
    throw Enough();
  }
  void End() override {
    ++documents_;
    const std::uint64_t hash = XXH3_64bits(document_.data(), document_.size());
    if (settings_.SplitOf(hash, Split::kTrain) == Split::kTrain) Keep();
    document_.clear();
    if (left_ <= 0) throw Enough();
  }
  std::int64_t Documents() const { return documents_; }  // read to their ends, of all splits

 private:
  void Keep() {
    std::string_view rest = document_;
    rest = rest.substr(0, static_cast<std::size_t>(std::max<std::int64_t>(left_, 0)));
    // Drops the beginning of a character at the end.
    while (rest.size() < document_.size() && !rest.empty() &&
           ContinuesCharacter(document_[rest.size()])) {
      rest.remove_suffix(1);
    }
    left_ -= std::ssize(rest);
    while (!rest.empty()) {
      const std::size_t end = rest.find('\n');
      std::string_view line = rest.substr(0, end);
      rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
      while (line.size() > kLongestSentence) {
        const std::size_t cut = CutBefore(line, kLongestSentence);
        lines_.emplace_back(line.substr(0, cut));
        line.remove_prefix(cut);
      }
      if (!line.empty()) lines_.emplace_back(line);
    }
  }

  const EncodeSettings& settings_;
  std::vector<std::string>& lines_;
  std::string document_;
  std::int64_t left_ = 0, documents_ = 0;
};

// A sample of text for training a tokenizer: lines of the train split's documents, long ones cut at
// blanks, about kSampleBytes at most. From larger texts it takes units at equal distances. stop:
// asked now and then; true: RunError. Serial. Throws as TokenizeTexts does for faulty texts.
std::vector<std::string> SampleSentences(const TextPlan& plan, const std::function<bool()>& stop) {
  std::vector<TextUnit> units = CutIntoUnits(plan.files, plan.document, plan.unit_bytes);
  std::erase_if(
      units, [&](const TextUnit& unit) { return plan.files.at(unit.file).split != Split::kTrain; });
  std::vector<std::string> sentences;
  if (units.empty()) return sentences;
  const std::int64_t count = std::ssize(units);
  std::int64_t all = 0;
  for (const TextUnit& unit : units) all += unit.end - unit.begin;
  const std::int64_t read =
      all <= kSampleBytes ? count : std::clamp<std::int64_t>(kSampleBytes / kLeastOfUnit, 1, count);
  SampledLines lines(plan.encode, sentences);
  std::int64_t left = kSampleBytes;
  for (std::int64_t i = 0; i < read; ++i) {
    const std::int64_t share = CeilDivide(left, read - i);
    lines.Begin(share);
    const std::size_t before = sentences.size();
    try {
      ReadUnit(plan, units.at(static_cast<std::size_t>(i * count / read)), lines,
               [&](std::int64_t) { RequireGoingOn(stop); });
    } catch (const Enough&) {
    }
    for (std::size_t s = before; s < sentences.size(); ++s) left -= std::ssize(sentences[s]);
  }
  const bool shared = plan.encode.valid_fraction + plan.encode.test_fraction > 0;
  if (sentences.empty() && lines.Documents() > 0 && shared) {
    throw InputError("the train split gets none of the texts, and a tokenizer is trained on it",
                     TooFewToShare(lines.Documents(), plan.encode));
  }
  return sentences;
}

// Sample of train texts for training a tokenizer: up to about kSampleBytes, from units of text at
// equal distances. Serial.
std::vector<std::string> SamplePairs(const LinePairs& lines, const std::vector<std::size_t>& texts,
                                     const TextWatch& watch) {
  const auto units = static_cast<std::int64_t>(lines.Units());
  const std::int64_t step = std::max<std::int64_t>(CeilDivide(lines.Bytes(), kSampleBytes), 1);
  std::vector<std::string> sentences;
  std::int64_t bytes = 0;
  for (std::int64_t unit = 0; unit < units && bytes < kSampleBytes; unit += step) {
    RequireGoingOn(watch.stop);
    lines.VisitTrain(static_cast<std::size_t>(unit), [&](const PerText<std::string>& pair) {
      for (const std::size_t text : texts) {
        const std::string& line = pair.at(text);
        if (line.size() > kLongestSentence || bytes >= kSampleBytes) continue;
        sentences.push_back(line);
        bytes += std::ssize(line);
      }
    });
  }
  return sentences;
}

// Files of the tokenizer that the deck names, or of one trained on `sentences`. Serial. Throws
// InputError, with the deck's line if the name is missing or if a token file has no subword
// tokenizer.
Files FilesOf(const TokenizerName& name, const Job& job,
              const std::function<std::vector<std::string>()>& sentences) {
  const TokenizeOptions& options = job.options;
  const bool models = options.kind == TokenizeKind::kSentencePiece;
  if (name.path.empty() && options.vocabulary_size > 0) {
    const std::vector<std::string> sample = sentences();
    return ForKey("tokenize.vocabulary_size", job.deck, [&] {
      return TrainSentencePiece(sample, options.model_type, options.vocabulary_size);
    });
  }
  if (name.path.empty()) {
    throw job.deck.Complain(name.key,
                            fmt::format("tokenize.kind = {} needs one", NameOf(options.kind)),
                            models ? "Name a model, or train one with tokenize.vocabulary_size."
                                   : "Name a tokenizer.json, or its folder.");
  }
  if (!name.path.ends_with(".h5")) {
    return ReadFiles(name.path, models ? TokenizerKind::kSentencePiece : TokenizerKind::kBpe);
  }
  const Side side = HoldsPairs(name.path) ? name.side : Side::kText;
  Files files = InspectTokenFile(name.path, side).tokenizer_files;
  if (!files.empty()) return files;
  throw job.deck.Complain(name.key, "this token file has no subword tokenizer");
}

// Makes the same tokenizer on all ranks. Collective. Throws AgreedError, with the deck's line for a
// tokenizer of another kind.
std::unique_ptr<Tokenizer> ShareTokenizer(
    const TokenizerName& name, const Job& job,
    const std::function<std::vector<std::string>()>& sentences) {
  std::vector<std::string> texts;
  job.world.Together([&] {
    if (!job.world.IsRoot()) return;
    for (const auto& [file, contents] : FilesOf(name, job, sentences)) {
      texts.push_back(file);
      texts.push_back(contents);
    }
  });
  Broadcast(job.world, texts);
  Files files;
  for (std::size_t i = 0; i + 1 < texts.size(); i += 2) files[texts[i]] = texts[i + 1];
  std::unique_ptr<Tokenizer> made;
  job.world.Together([&] {
    made = Make(files, name.path);
    if (std::string_view(made->Kind()) == NameOf(job.options.kind)) return;
    throw job.deck.Complain("tokenize.kind",
                            fmt::format("{} is a tokenizer of kind {}", name.path, made->Kind()));
  });
  return made;
}

// Tokenizer for one side or both, as `texts` says. Collective.
std::unique_ptr<Tokenizer> TokenizerOf(const Job& job, const LinePairs& lines,
                                       const std::vector<std::size_t>& texts) {
  const TokenizeOptions& options = job.options;
  if (options.kind == TokenizeKind::kByte) {
    return std::make_unique<TokenCodec>(ByteVocabulary(), kByteTokenizer, kByteTokenizer);
  }
  if (options.kind == TokenizeKind::kWord) {
    Vocabulary words{.words = {}, .eos = 0, .unk = 1};
    job.world.Together([&] {
      if (job.world.IsRoot()) words = CountWords(lines, options, texts, job.watch);
    });
    Broadcast(job.world, words.words);
    const char* const kind = options.lowercase ? kLowercaseTokenizer : kWordTokenizer;
    return std::make_unique<TokenCodec>(std::move(words), kind, kind);
  }
  const bool source = texts.size() == 1 && texts.front() == kSourceText;
  const TokenizerName name = source ? TokenizerName{options.pairs.source_tokenizer,
                                                    "tokenize.source_tokenizer", Side::kSource}
                                    : TokenizerName{options.tokenizer};
  return ShareTokenizer(name, job, [&] { return SamplePairs(lines, texts, job.watch); });
}

class NumeralMaker : public DocumentMaker {
 public:
  NumeralMaker(std::uint32_t seed, std::int64_t train) : seed_(seed) {
    const std::int64_t held_out = std::max(train / kHeldOutShare, std::min(train, kLeastHeldOut));
    counts_ = {train, held_out, held_out};
    for (const std::int64_t count : counts_) units_ += CeilDivide(count, kUnitPairs);
  }
  std::size_t Units() const override { return static_cast<std::size_t>(units_); }
  std::int64_t WorkIn(std::size_t unit) const override { return RangeOf(unit).Size(); }
  UnitResult Make(std::size_t unit, Encoder& to, const UnitProgress& tell) override {
    const Range range = RangeOf(unit);
    to.Begin(unit, range.split);
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      tell(i - range.begin);
      const NumeralPair pair = MakeNumeralPair(seed_, range.split, i);
      to.Add(pair.source);
      to.NextText();
      to.Add(pair.target);
      to.End();
    }
    return to.Finish();
  }

 private:
  static constexpr std::int64_t kUnitPairs = 1 << 14;
  // valid and test each: train's pairs divided by kHeldOutShare, but at least kLeastHeldOut pairs
  // if train has as many.
  static constexpr std::int64_t kHeldOutShare = 100;
  static constexpr std::int64_t kLeastHeldOut = 100;

  // The pairs that a unit of work covers.
  struct Range {
    Split split = Split::kTrain;
    std::int64_t begin = 0, end = 0;
    std::int64_t Size() const { return end - begin; }
  };
  Range RangeOf(std::size_t unit) const {
    auto place = static_cast<std::int64_t>(unit);
    for (const Split split : kSplits) {
      const std::int64_t count = counts_.at(static_cast<std::size_t>(split));
      const std::int64_t units = CeilDivide(count, kUnitPairs);
      if (place < units) {
        return {split, place * kUnitPairs, std::min((place + 1) * kUnitPairs, count)};
      }
      place -= units;
    }
    return {};
  }

  std::uint32_t seed_;
  std::array<std::int64_t, 3> counts_{};
  std::int64_t units_ = 0;
};

TextTokens TokenizeNumerals(const Job& job) {
  TokenCodec numerals(NumeralVocabulary(), kNumeralsTokenizer, kNumeralsTokenizer);
  const TextTokenizers tokenizers = {&numerals, &numerals};
  const std::int64_t eos = numerals.Eos().value();
  const EncodeSettings settings{.eos = {eos, eos}};
  if (job.dry) return {};
  NumeralMaker maker(static_cast<std::uint32_t>(job.options.pairs.numerals_seed),
                     job.options.pairs.numerals_pairs);
  return TokenizeDocuments(job.world, maker, {job.path, tokenizers, settings, job.watch});
}

TextTokens TokenizeLines(const Job& job) {
  const TokenizeOptions& options = job.options;
  LinePlan plan{.files = {}, .replace = options.replace_invalid, .settings = SettingsOf(options)};
  job.world.Together([&] {
    if (job.world.IsRoot()) plan.files = FindPairFiles(options, job.deck, job.path);
  });
  for (std::vector<TextFile>& files : plan.files) Share(job.world, files);
  // A dry run does not read the texts, so it cannot make a vocabulary from them.
  const bool named = IsSubword(options.kind) && options.vocabulary_size == 0;
  if (job.dry && !named) return {};
  LinePairs lines(plan,
                  job.dry ? std::vector<LineUnit>() : AlignLines(job.world, plan, job.watch.stop));
  std::unique_ptr<Tokenizer> source, target;
  if (options.pairs.shared_vocabulary) {
    target = TokenizerOf(job, lines, {kSourceText, kTargetText});
  } else {
    source = TokenizerOf(job, lines, {kSourceText});
    target = TokenizerOf(job, lines, {kTargetText});
  }
  const TextTokenizers tokenizers = {source ? source.get() : target.get(), target.get()};
  job.world.Together([&] {
    for (std::size_t t = 0; t < tokenizers.size(); ++t) {
      plan.settings.eos.at(t) = EosOf(*tokenizers[t], job);
    }
  });
  if (job.dry) return {};
  return TokenizeDocuments(job.world, lines, {job.path, tokenizers, plan.settings, job.watch});
}

TextTokens TokenizeSingles(const Job& job) {
  const TokenizeOptions& options = job.options;
  TextPlan plan{.files = {},
                .document = options.document,
                .keys = {options.text_key, options.prompt_key, options.skip_missing},
                .replace = options.replace_invalid,
                .encode = SettingsOf(options)};
  job.world.Together([&] {
    if (job.world.IsRoot()) plan.files = FindSingleFiles(options, job.deck, job.path);
  });
  Share(job.world, plan.files);
  // Training a tokenizer needs the texts, which a dry run does not read.
  if (job.dry && options.tokenizer.empty() && options.vocabulary_size > 0) return {};
  const std::unique_ptr<Tokenizer> tokenizer = ShareTokenizer(
      {.path = options.tokenizer}, job, [&] { return SampleSentences(plan, job.watch.stop); });
  job.world.Together([&] { plan.encode.eos[0] = EosOf(*tokenizer, job); });
  if (job.dry) return {};
  return TokenizeTexts(job.world, *tokenizer, plan, job.path, job.watch);
}

struct SourceText {
  std::string path;  // for messages
  std::string text;
};

void CheckUtf8(const SourceText& source) {
  const std::size_t bad = FirstInvalidUtf8(source.text);
  if (bad == std::string::npos) return;
  const auto begin = source.text.begin();
  const auto line = 1 + std::count(begin, begin + static_cast<std::ptrdiff_t>(bad), '\n');
  throw InputError(fmt::format("{}:{}: byte 0x{:02x} at offset {} is not valid UTF-8", source.path,
                               line, static_cast<unsigned char>(source.text[bad]), bad),
                   "Convert the text to UTF-8, or use tokenize.kind = byte.");
}

// The words of a text, <eos>, which ends each line, and <unk>, by descending frequency, then by
// bytes. Rare words count as <unk>.
Vocabulary WordsOf(std::string_view text, std::int64_t min_count) {
  std::unordered_map<std::string_view, std::int64_t> counts = {{kEndOfSentence, 0}, {kUnknown, 0}};
  ForEachLine(text, [&](std::string_view line) {
    ForEachWord(line, [&](std::string_view word) { ++counts[word]; });
    ++counts[kEndOfSentence];
  });
  std::int64_t rare = 0;  // occurrences of rare words
  std::erase_if(counts, [&](const auto& each) {
    const auto& [word, count] = each;
    if (word == kEndOfSentence || word == kUnknown || count >= min_count) return false;
    rare += count;
    return true;
  });
  counts[kUnknown] += rare;
  Vocabulary vocabulary{.words = ByCount(counts)};
  const auto begin = vocabulary.words.begin(), end = vocabulary.words.end();
  vocabulary.eos = std::find(begin, end, kEndOfSentence) - begin;
  vocabulary.unk = std::find(begin, end, kUnknown) - begin;
  return vocabulary;
}

// valid and test each: train's tokens divided by this.
constexpr std::int64_t kHarbourHeldOutShare = 10;

// Appends the texts of records, each ended by a newline.
class Joined : public RecordSink {
 public:
  explicit Joined(std::string& text) : text_(text) {}
  void Prompt(std::string_view, std::int64_t) override {}
  void Text(std::string_view piece, std::int64_t) override { text_ += piece; }
  void End() override { EndLine(text_); }

  static void EndLine(std::string& text) {
    if (!text.empty() && text.back() != '\n') text += '\n';
  }

 private:
  std::string& text_;
};

// Appends a file's text without byte order marks; for JSON lines, the texts of the records. Returns
// the number of records without text.
std::int64_t Append(const TextFile& file, const RecordKeys& keys, std::string& text) {
  Joined joined(text);
  JsonRecords records(joined, keys, file.path, false);
  WholeText whole(text);
  DocumentSink& sink = file.json_lines ? static_cast<DocumentSink&>(records) : whole;
  ForEachDocument(file, {.begin = 0, .end = file.bytes}, DocumentEnd::kFile, sink,
                  [](std::int64_t) {});
  return records.Missing();
}

std::array<SourceText, 3> ReadSources(const TokenizeOptions& options, const deck::Deck& deck,
                                      const std::string& target) {
  std::array<SourceText, 3> sources;
  std::vector<TextFile> all;
  std::int64_t missing = 0;
  for (const Split split : kSplits) {
    const std::string key = KeyOfTexts(split, Side::kText);
    SourceText& source = sources.at(static_cast<std::size_t>(split));
    source.path = options.texts.at(static_cast<std::size_t>(split));
    if (source.path.empty()) {
      throw deck.Complain(
          key, fmt::format("tokenize.kind = {} needs a text for this split", NameOf(options.kind)),
          "Name a text file; tokenize.kind = harbour needs none.");
    }
    for (const TextFile& file : FindFiles(source.path, split, Side::kText, deck)) {
      RefuseReplaced(file, Side::kText, target, deck);
      Joined::EndLine(source.text);
      missing += ForKey(key, deck, [&] {
        return Append(file, {options.text_key, "", options.skip_missing}, source.text);
      });
      all.push_back(file);
    }
    if (source.text.empty()) throw deck.Complain(key, "the file is empty; each split needs text");
  }
  for (const std::string& twice : NamedTwice(all)) fmt::print(stderr, "warning: {}\n", twice);
  if (missing > 0)
    fmt::print("{} JSON records without \"{}\" left out\n", missing, options.text_key);
  return sources;
}

// Words are separated by blanks, and <eos> ends each line.
TokenData TokenizeSources(const TokenizeOptions& options, const deck::Deck& deck,
                          const std::string& target) {
  std::array<SourceText, 3> sources = ReadSources(options, deck, target);
  TokenData data;
  data.source_sha256 = Sha256({sources[0].text, sources[1].text, sources[2].text});
  const bool words = options.kind == TokenizeKind::kWord;
  for (SourceText& source : sources) {
    if (words) CheckUtf8(source);
    if (words && options.lowercase) source.text = LowerCased(source.text);
  }
  data.vocabulary = words ? WordsOf(sources[0].text, options.min_count) : ByteVocabulary();
  data.tokenizer = !words              ? kByteTokenizer
                   : options.lowercase ? kLowercaseTokenizer
                                       : kWordTokenizer;
  TokenCodec codec(data.vocabulary, words ? kWordTokenizer : kByteTokenizer, target);
  for (const Split split : kSplits) {
    const auto s = static_cast<std::size_t>(split);
    std::vector<std::int32_t>& ids = data.tokens.at(s);
    codec.Encode(sources.at(s).text, ids);
    if (words) ids.push_back(static_cast<std::int32_t>(data.vocabulary.eos));
    if (ids.size() >= 2) continue;
    throw deck.Complain(KeyOfTexts(split, Side::kText),
                        fmt::format("the text holds {} token; at least 2 are needed", ids.size()));
  }
  return data;
}

TokenData TokenizeHarbour(const TokenizeOptions& options) {
  const std::int64_t train = options.harbour_tokens, seed = options.harbour_seed;
  const std::int64_t held_out = std::max<std::int64_t>(train / kHarbourHeldOutShare, 2);
  const HarbourGrammar grammar;
  TokenData data;
  for (const Split split : kSplits) {
    data.tokens.at(static_cast<std::size_t>(split)) = grammar.Generate(
        static_cast<std::uint32_t>(seed), split, split == Split::kTrain ? train : held_out);
  }
  data.vocabulary = grammar.Words();
  data.tokenizer = kHarbourTokenizer;
  data.entropy_rate = grammar.EntropyRate();
  data.harbour_seed = seed;
  // The hash is that of the generator's settings, as there is no source text.
  data.source_sha256 =
      Sha256({fmt::format("harbour_tokens = {}\nharbour_seed = {}\n", train, seed)});
  return data;
}

}  // namespace

TokenData Tokenize(const TokenizeOptions& options, const deck::Deck& deck,
                   const std::string& target) {
  CheckTokenizeKeys(options, deck);
  return options.kind == TokenizeKind::kHarbour ? TokenizeHarbour(options)
                                                : TokenizeSources(options, deck, target);
}

TextTokens TokenizeInParallel(const comm::Communicator& world, const TokenizeOptions& options,
                              const deck::Deck& deck, const std::string& path,
                              const TextWatch& watch, bool dry) {
  world.Together([&] {
    if (world.IsRoot()) CheckTokenizeKeys(options, deck);
  });
  const auto tokenize = options.kind == TokenizeKind::kNumerals ? TokenizeNumerals
                        : options.WritesPairs()                 ? TokenizeLines
                                                                : TokenizeSingles;
  return tokenize({world, options, deck, path, watch, dry});
}

}  // namespace trireme::data
