// Tokenisation by all ranks into a token file, for single texts, line-aligned pairs and numerals:
// decides on files, tokenizers and splits, the same on every rank.
#include <fmt/format.h>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "pairs/line_pairs.hpp"
#include "text/tokenize_texts.hpp"
#include "token_codec.hpp"
#include "token_layout.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/data/pairs.hpp"
#include "trireme/data/tokenize.hpp"
#include "trireme/data/tokenizer.hpp"
#include "words.hpp"

namespace trireme::data {

namespace {

// Sends root's texts to all ranks. Collective.
std::vector<std::string> Share(const comm::Communicator& world, std::vector<std::string> texts) {
  std::int64_t count = std::ssize(texts);
  world.Broadcast(&count, sizeof count);
  texts.resize(static_cast<std::size_t>(count));
  for (std::string& text : texts) text = world.Broadcast(text);
  return texts;
}

// Sends root's files to all ranks. Collective.
std::vector<TextFile> ShareFiles(const comm::Communicator& world,
                                 const std::vector<TextFile>& files) {
  std::vector<std::string> texts;
  for (const TextFile& file : files) {
    texts.push_back(fmt::format("{}{}{}{} {}", static_cast<int>(file.split),
                                static_cast<int>(file.json_lines), static_cast<int>(file.packing),
                                file.bytes, file.path));
  }
  std::vector<TextFile> shared;
  for (const std::string& text : Share(world, texts)) {
    const std::size_t blank = text.find(' ');
    TextFile file{.path = text.substr(blank + 1),
                  .split = static_cast<Split>(text.at(0) - '0'),
                  .json_lines = text.at(1) == '1',
                  .packing = static_cast<Packing>(text.at(2) - '0')};
    std::from_chars(text.data() + 3, text.data() + blank, file.bytes);
    shared.push_back(std::move(file));
  }
  return shared;
}

// A tokenizer as the deck names it.
struct TokenizerName {
  std::string path = {};  // file, folder or token file; empty: the deck names none
  const char* key = "tokenize.tokenizer";
  Side side = Side::kTarget;  // which tokenizer to take from a file of pairs
};

// Reads the files of a named tokenizer. Serial. Throws InputError, with the deck's line if the name
// is missing or if a token file has no subword tokenizer.
Files NamedTokenizer(const TokenizerName& name, TokenizeKind kind, const deck::Deck& deck) {
  const bool models = kind == TokenizeKind::kSentencePiece;
  if (name.path.empty()) {
    throw deck.Complain(name.key, fmt::format("tokenize.kind = {} needs one", NameOf(kind)),
                        models ? "Name a model, or train one with tokenize.vocabulary_size."
                               : "Name a tokenizer.json, or its folder.");
  }
  if (!std::string_view(name.path).ends_with(".h5")) {
    return ReadFiles(name.path, models ? TokenizerKind::kSentencePiece : TokenizerKind::kBpe);
  }
  const Side side = HoldsPairs(name.path) ? name.side : Side::kText;
  Files files = InspectTokenFile(name.path, side).tokenizer_files;
  if (!files.empty()) return files;
  throw deck.Complain(name.key, "this token file has no subword tokenizer");
}

// Makes the same tokenizer on all ranks, from files that root gets from `files_of`. Collective.
// Throws AgreedError, with the deck's line for a tokenizer of another kind.
std::unique_ptr<Tokenizer> ShareTokenizer(const comm::Communicator& world,
                                          const TokenizerName& name, TokenizeKind kind,
                                          const deck::Deck& deck,
                                          const std::function<Files()>& files_of) {
  std::vector<std::string> texts;
  world.Together([&] {
    if (!world.IsRoot()) return;
    for (const auto& [file, contents] : files_of()) {
      texts.push_back(file);
      texts.push_back(contents);
    }
  });
  texts = Share(world, std::move(texts));
  Files files;
  for (std::size_t i = 0; i + 1 < texts.size(); i += 2) files[texts[i]] = texts[i + 1];
  std::unique_ptr<Tokenizer> made;
  world.Together([&] {
    made = Make(files, name.path);
    if (std::string_view(made->Kind()) == NameOf(kind)) return;
    throw deck.Complain("tokenize.kind",
                        fmt::format("{} is a tokenizer of kind {}", name.path, made->Kind()));
  });
  return made;
}

// Id of the token that ends a document: tokenize.eos, or what the tokenizer names. Throws
// InputError with the deck's line if there is none.
std::int64_t EosOf(const Tokenizer& tokenizer, const TokenizeOptions& options,
                   const deck::Deck& deck) {
  if (options.eos.empty()) {
    if (const auto eos = tokenizer.Eos()) return *eos;
    throw deck.Complain("tokenize.eos", "the tokenizer names no token for the end of a document",
                        "Name one of its tokens, as <|endoftext|>.");
  }
  if (const auto eos = tokenizer.IdOf(options.eos)) return *eos;
  throw deck.Complain("tokenize.eos", "the tokenizer has no such token");
}

// Makes a word, byte or numeral vocabulary usable as a Tokenizer, for pairs.

class CodecTokenizer : public Tokenizer {
 public:
  // kind: a value of the token file's attribute `tokenizer`.
  CodecTokenizer(Vocabulary vocabulary, std::string kind)
      : vocabulary_(std::move(vocabulary)),
        kind_(std::move(kind)),
        codec_(vocabulary_, kind_, kind_) {}

  const char* Kind() const override { return kind_.c_str(); }
  const Files& Source() const override { return none_; }
  std::int64_t VocabularySize() const override { return std::ssize(vocabulary_.words); }
  std::string Piece(std::int32_t id) const override {
    return vocabulary_.words.at(static_cast<std::size_t>(id));
  }
  std::optional<std::int32_t> Eos() const override {
    return static_cast<std::int32_t>(vocabulary_.eos);
  }
  std::optional<std::int32_t> Unk() const override {
    if (vocabulary_.unk < 0) return std::nullopt;
    return static_cast<std::int32_t>(vocabulary_.unk);
  }
  void Encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    const std::vector<std::int32_t> more = codec_.Encode(text);
    ids.insert(ids.end(), more.begin(), more.end());
  }
  std::string Decode(std::span<const std::int32_t> ids) const override {
    return codec_.Decode({ids.begin(), ids.end()});
  }

 private:
  Vocabulary vocabulary_;
  std::string kind_;
  TokenCodec codec_;
  Files none_;
};

// Vocabulary of <eos>, <unk>, then the words by descending count, equal counts by bytes. Words that
// occur less than `least` times are left out.
Vocabulary RankedWords(const std::unordered_map<std::string, std::int64_t>& counts,
                       std::int64_t least) {
  std::vector<std::pair<std::string, std::int64_t>> words;
  for (const auto& [word, count] : counts) {
    if (count >= least && word != kEndOfSentence && word != kUnknown)
      words.emplace_back(word, count);
  }
  std::ranges::sort(words, [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  Vocabulary vocabulary{
      .words = {std::string(kEndOfSentence), std::string(kUnknown)}, .eos = 0, .unk = 1};
  for (auto& [word, count] : words) vocabulary.words.push_back(std::move(word));
  return vocabulary;
}

// Deck key of a split's texts: "tokenize.train" or, for pairs, "tokenize.source",
// "tokenize.valid_target".
std::string KeyOfTexts(Split split, Side side) {
  if (side == Side::kText) return fmt::format("tokenize.{}", NameOf(split));
  const char* const name = side == Side::kSource ? "source" : "target";
  if (split == Split::kTrain) return fmt::format("tokenize.{}", name);
  return fmt::format("tokenize.{}_{}", NameOf(split), name);
}

std::vector<TextFile> FindFiles(const std::string& list, Split split, Side side,
                                const deck::Deck& deck) {
  try {
    return FindTextFiles(list, split);
  } catch (const Error& error) {
    throw deck.Complain(KeyOfTexts(split, side), error.what());
  }
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

// Vocabulary of the words in the train pairs, on one side or both. Serial.
Vocabulary CountWords(const LinePairs& lines, const TokenizeOptions& options,
                      const std::vector<std::size_t>& texts, const TextWatch& watch) {
  const LowerCase lower_case;
  std::unordered_map<std::string, std::int64_t> counts;
  for (std::size_t unit = 0; unit < lines.Units(); ++unit) {
    RequireGoingOn(watch.stop);
    lines.VisitTrain(unit, [&](const PerText<std::string>& pair) {
      for (const std::size_t text : texts) {
        const std::string folded = options.lowercase ? lower_case(pair.at(text)) : pair.at(text);
        ForEachWord(folded, [&](std::string_view word) { ++counts[std::string(word)]; });
      }
    });
  }
  return RankedWords(counts, options.min_count);
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

// Files of the tokenizer that the deck names, or of one trained on `sentences`. Serial.
Files FilesOf(const TokenizerName& name, const TokenizeOptions& options, const deck::Deck& deck,
              const std::function<std::vector<std::string>()>& sentences) {
  if (!name.path.empty() || options.vocabulary_size == 0) {
    return NamedTokenizer(name, options.kind, deck);
  }
  const std::vector<std::string> sample = sentences();
  try {
    return TrainSentencePiece(sample, options.model_type, options.vocabulary_size);
  } catch (const Error& error) {
    throw deck.Complain("tokenize.vocabulary_size", error.what());
  }
}

// Sends root's words to all ranks. Collective.
Vocabulary ShareWords(const comm::Communicator& world, const Vocabulary& words) {
  std::string joined;
  for (const std::string& word : words.words) joined += word + '\n';
  joined = world.Broadcast(joined);
  Vocabulary shared{.words = {}, .eos = 0, .unk = 1};
  ForEachLine(joined, [&](std::string_view word) { shared.words.emplace_back(word); });
  return shared;
}

// Tokenizer for one side or both, as `texts` says. Collective.
std::unique_ptr<Tokenizer> TokenizerOf(const comm::Communicator& world,
                                       const TokenizeOptions& options, const deck::Deck& deck,
                                       const LinePairs& lines,
                                       const std::vector<std::size_t>& texts,
                                       const TextWatch& watch) {
  if (options.kind == TokenizeKind::kByte) {
    return std::make_unique<CodecTokenizer>(ByteVocabulary(), kByteTokenizer);
  }
  if (options.kind == TokenizeKind::kWord) {
    Vocabulary words;
    world.Together([&] {
      if (world.IsRoot()) words = CountWords(lines, options, texts, watch);
    });
    return std::make_unique<CodecTokenizer>(
        ShareWords(world, words), options.lowercase ? kLowercaseTokenizer : kWordTokenizer);
  }
  const bool source = texts.size() == 1 && texts.front() == kSourceText;
  const TokenizerName name = source ? TokenizerName{options.pairs.source_tokenizer,
                                                    "tokenize.source_tokenizer", Side::kSource}
                                    : TokenizerName{options.tokenizer};
  return ShareTokenizer(world, name, options.kind, deck, [&] {
    return FilesOf(name, options, deck, [&] { return SamplePairs(lines, texts, watch); });
  });
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

PerText<std::int64_t> EosOf(const TextTokenizers& tokenizers, const TokenizeOptions& options,
                            const deck::Deck& deck) {
  PerText<std::int64_t> eos{};
  for (std::size_t t = 0; t < tokenizers.size(); ++t)
    eos.at(t) = EosOf(*tokenizers[t], options, deck);
  return eos;
}

TextTokens TokenizeNumerals(const comm::Communicator& world, const TokenizeOptions& options,
                            const deck::Deck& deck, const std::string& path, const TextWatch& watch,
                            bool dry) {
  CodecTokenizer numerals(NumeralVocabulary(), kNumeralsTokenizer);
  const TextTokenizers tokenizers = {&numerals, &numerals};
  const EncodeSettings settings{.eos = EosOf(tokenizers, options, deck)};
  if (dry) return {};
  NumeralMaker maker(static_cast<std::uint32_t>(options.pairs.numerals_seed),
                     options.pairs.numerals_pairs);
  return TokenizeDocuments(world, maker, {path, tokenizers, settings, watch});
}

TextTokens TokenizeLines(const comm::Communicator& world, const TokenizeOptions& options,
                         const deck::Deck& deck, const std::string& path, const TextWatch& watch,
                         bool dry) {
  LinePlan plan{.files = {}, .replace = options.replace_invalid, .settings = SettingsOf(options)};
  world.Together([&] {
    if (world.IsRoot()) plan.files = FindPairFiles(options, deck, path);
  });
  for (std::vector<TextFile>& files : plan.files) files = ShareFiles(world, files);
  // A dry run does not read the texts, so it cannot make a vocabulary from them.
  const bool named = IsSubword(options.kind) && options.vocabulary_size == 0;
  if (dry && !named) return {};
  LinePairs lines(plan, dry ? std::vector<LineUnit>() : AlignLines(world, plan, watch.stop));
  std::unique_ptr<Tokenizer> source, target;
  if (options.pairs.shared_vocabulary) {
    target = TokenizerOf(world, options, deck, lines, {kSourceText, kTargetText}, watch);
  } else {
    source = TokenizerOf(world, options, deck, lines, {kSourceText}, watch);
    target = TokenizerOf(world, options, deck, lines, {kTargetText}, watch);
  }
  const TextTokenizers tokenizers = {source ? source.get() : target.get(), target.get()};
  world.Together([&] { plan.settings.eos = EosOf(tokenizers, options, deck); });
  if (dry) return {};
  return TokenizeDocuments(world, lines, {path, tokenizers, plan.settings, watch});
}

TextTokens TokenizeSingles(const comm::Communicator& world, const TokenizeOptions& options,
                           const deck::Deck& deck, const std::string& path, const TextWatch& watch,
                           bool dry) {
  TextPlan plan{.files = {},
                .document = options.document,
                .keys = {options.text_key, options.prompt_key, options.skip_missing},
                .replace = options.replace_invalid,
                .encode = SettingsOf(options)};
  world.Together([&] {
    if (world.IsRoot()) plan.files = FindSingleFiles(options, deck, path);
  });
  plan.files = ShareFiles(world, plan.files);
  // Training a tokenizer needs the texts, which a dry run does not read.
  if (dry && options.tokenizer.empty() && options.vocabulary_size > 0) return {};
  const TokenizerName name{.path = options.tokenizer};
  const std::unique_ptr<Tokenizer> tokenizer = ShareTokenizer(world, name, options.kind, deck, [&] {
    return FilesOf(name, options, deck, [&] { return SampleSentences(plan, watch.stop); });
  });
  world.Together([&] { plan.encode.eos[0] = EosOf(*tokenizer, options, deck); });
  if (dry) return {};
  return TokenizeTexts(world, *tokenizer, plan, path, watch);
}

}  // namespace

TextTokens TokenizeInParallel(const comm::Communicator& world, const TokenizeOptions& options,
                              const deck::Deck& deck, const std::string& path,
                              const TextWatch& watch, bool dry) {
  world.Together([&] {
    if (world.IsRoot()) CheckTokenizeKeys(options, deck);
  });
  const auto tokenize = options.kind == TokenizeKind::kNumerals ? TokenizeNumerals
                        : options.WritesPairs()                 ? TokenizeLines
                                                                : TokenizeSingles;
  return tokenize(world, options, deck, path, watch, dry);
}

}  // namespace trireme::data
