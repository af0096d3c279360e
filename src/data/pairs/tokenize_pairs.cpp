// From the deck to a file of pairs: texts or numerals, tokenizers, splits.
#include <fmt/format.h>
#include <algorithm>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "line_pairs.hpp"
#include "text/tokenize_texts.hpp"
#include "token_codec.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/data/pairs.hpp"
#include "trireme/data/tokenize.hpp"
#include "trireme/data/tokenizer.hpp"
#include "words.hpp"

namespace trireme::data {

// Word, byte and numeral vocabularies as tokenizers of single texts.

class CodecTokenizer : public Tokenizer {
 public:
  // kind: as of the attribute `tokenizer`.
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
  std::optional<std::int32_t> IdOf(std::string_view) const override { return std::nullopt; }
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
  void Template(std::vector<std::int32_t>&, std::vector<std::int32_t>&) const override {}
  std::string Decode(std::span<const std::int32_t> ids) const override {
    return codec_.Decode({ids.begin(), ids.end()});
  }
  std::size_t SafeCut(std::string_view) const override { return 0; }

 private:
  Vocabulary vocabulary_;
  std::string kind_;
  TokenCodec codec_;
  Files none_;
};

// <eos>, <unk>, then words by falling number of occurrences, equal ones by their bytes; words that
// occur less than `least` times are left out.
Vocabulary RankedWords(const std::unordered_map<std::string, std::int64_t>& counts,
                       std::int64_t least);
Vocabulary ByteVocabulary();  // the 256 bytes; "\n" is eos

namespace {

// Tokenizers with their owners.
struct OwnedTokenizers {
  PerText<std::unique_ptr<Tokenizer>> own;  // of the target alone if they share one
  PairTokenizers tokenizers;

  void Finish(const TokenizeOptions& options, const deck::Deck& deck) {
    for (std::size_t t = 0; t < own.size(); ++t) {
      tokenizers.of.at(t) = own.at(t) ? own.at(t).get() : own.at(kTargetText).get();
      tokenizers.eos.at(t) = EosOf(*tokenizers.of.at(t), options, deck);
    }
  }
};

class NumeralMaker : public PairMaker {
 public:
  NumeralMaker(std::uint32_t seed, std::int64_t train) : seed_(seed) {
    const std::int64_t held_out = std::max(train / kHeldOutShare, std::min(train, kLeastHeldOut));
    counts_ = {train, held_out, held_out};
    for (const std::int64_t count : counts_) units_ += CeilDivide(count, kUnitPairs);
  }
  std::size_t Units() const override { return static_cast<std::size_t>(units_); }
  void Make(std::size_t unit, PairEncoder& to, const std::function<void()>& tell) override {
    auto place = static_cast<std::int64_t>(unit);
    for (const Split split : kSplits) {
      const std::int64_t count = counts_.at(static_cast<std::size_t>(split));
      const std::int64_t units = CeilDivide(count, kUnitPairs);
      if (place >= units) {
        place -= units;
        continue;
      }
      const std::int64_t end = std::min((place + 1) * kUnitPairs, count);
      for (std::int64_t i = place * kUnitPairs; i < end; ++i) {
        tell();
        const NumeralPair pair = MakeNumeralPair(seed_, split, i);
        to.Add(pair.source, pair.target, split);
      }
      return;
    }
  }

 private:
  static constexpr std::int64_t kUnitPairs = 1 << 14;
  static constexpr std::int64_t kHeldOutShare = 100;  // valid and test each: train / this
  static constexpr std::int64_t kLeastHeldOut = 100;  // pairs, if the train split has as many

  std::uint32_t seed_;
  std::array<std::int64_t, 3> counts_{};
  std::int64_t units_ = 0;
};

std::vector<TextFile> FindFiles(const std::string& list, Split split, const std::string& key,
                                const deck::Deck& deck) {
  try {
    return FindTextFiles(list, split);
  } catch (const Error& error) {
    throw deck.Complain(key, error.what());
  }
}

// Files of all splits. Serial.
PerText<std::vector<TextFile>> FindPairFiles(const TokenizeOptions& options, const deck::Deck& deck,
                                             const std::string& path) {
  PerText<std::vector<TextFile>> files;
  for (const Split split : kSplits) {
    const PairTexts& texts = options.pairs.texts.at(static_cast<std::size_t>(split));
    if (texts.source.empty()) continue;
    const std::string prefix =
        split == Split::kTrain ? "tokenize." : fmt::format("tokenize.{}_", NameOf(split));
    const PerText<std::string> keys = {prefix + "source", prefix + "target"};
    PerText<std::vector<TextFile>> found = {FindFiles(texts.source, split, keys[0], deck),
                                            FindFiles(texts.target, split, keys[1], deck)};
    if (found[0].size() != found[1].size()) {
      throw deck.Complain(keys[1], fmt::format("{} files for the {} of {}", found[1].size(),
                                               found[0].size(), keys[0]));
    }
    for (std::size_t t = 0; t < found.size(); ++t) {
      for (TextFile& file : found.at(t)) {
        if (IsReplaced(file, path)) {
          throw deck.Complain(keys.at(t),
                              fmt::format("{} is data.file, which would be replaced", file.path));
        }
        if (file.json_lines) {
          throw deck.Complain(keys.at(t), file.path + ": texts of pairs are plain, a line each");
        }
        files.at(t).push_back(std::move(file));
      }
    }
  }
  return files;
}

void RequireGoingOn(const TextWatch& watch) {
  if (!watch.stop || !watch.stop()) return;
  throw RunError("stopped by a signal: no token file was written");
}

// Word counts of the train pairs, of one text or of both. Serial.
Vocabulary CountWords(const LinePairs& lines, const TokenizeOptions& options,
                      const std::vector<std::size_t>& texts, const TextWatch& watch) {
  const LowerCase lower_case;
  std::unordered_map<std::string, std::int64_t> counts;
  for (std::size_t unit = 0; unit < lines.Units(); ++unit) {
    RequireGoingOn(watch);
    lines.VisitTrain(unit, [&](const PerText<std::string>& pair) {
      for (const std::size_t text : texts) {
        const std::string folded = options.lowercase ? lower_case(pair.at(text)) : pair.at(text);
        ForEachWord(folded, [&](std::string_view word) { ++counts[std::string(word)]; });
      }
    });
  }
  return RankedWords(counts, options.min_count);
}

// Train texts of at most about kSampleBytes, from units at even distances. Serial.
Files Train(const LinePairs& lines, const TokenizeOptions& options,
            const std::vector<std::size_t>& texts, const deck::Deck& deck, const TextWatch& watch) {
  const auto units = static_cast<std::int64_t>(lines.Units());
  const std::int64_t step = std::max<std::int64_t>(CeilDivide(lines.Bytes(), kSampleBytes), 1);
  std::vector<std::string> sentences;
  std::int64_t bytes = 0;
  for (std::int64_t unit = 0; unit < units && bytes < kSampleBytes; unit += step) {
    RequireGoingOn(watch);
    lines.VisitTrain(static_cast<std::size_t>(unit), [&](const PerText<std::string>& pair) {
      for (const std::size_t text : texts) {
        const std::string& line = pair.at(text);
        if (line.size() > kLongestSentence || bytes >= kSampleBytes) continue;
        sentences.push_back(line);
        bytes += std::ssize(line);
      }
    });
  }
  try {
    return TrainSentencePiece(sentences, options.model_type, options.vocabulary_size);
  } catch (const Error& error) {
    throw deck.Complain("tokenize.vocabulary_size", error.what());
  }
}

// One rank's words, on all. Collective.
Vocabulary ShareWords(const comm::Communicator& world, const Vocabulary& words) {
  std::string joined;
  for (const std::string& word : words.words) joined += word + '\n';
  joined = world.Broadcast(joined);
  Vocabulary shared{.words = {}, .eos = 0, .unk = 1};
  ForEachLine(joined, [&](std::string_view word) { shared.words.emplace_back(word); });
  return shared;
}

// Collective. The tokenizer of `texts`, which are one or both.
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
    if (!name.path.empty() || options.vocabulary_size == 0) {
      return NamedTokenizer(name, options.kind, deck);
    }
    return Train(lines, options, texts, deck, watch);
  });
}

PairTokens TokenizeNumerals(const comm::Communicator& world, const TokenizeOptions& options,
                            const deck::Deck& deck, const std::string& path, const TextWatch& watch,
                            bool dry) {
  OwnedTokenizers owned;
  owned.own[kTargetText] =
      std::make_unique<CodecTokenizer>(NumeralVocabulary(), kNumeralsTokenizer);
  owned.Finish(options, deck);
  if (dry) return {};
  NumeralMaker maker(static_cast<std::uint32_t>(options.pairs.numerals_seed),
                     options.pairs.numerals_pairs);
  return WritePairs(world, path, maker, owned.tokenizers, watch);
}

}  // namespace

PairTokens TokenizePairs(const comm::Communicator& world, const TokenizeOptions& options,
                         const deck::Deck& deck, const std::string& path, const TextWatch& watch,
                         bool dry) {
  world.Together([&] {
    if (world.IsRoot()) CheckTokenizeKeys(options, deck);
  });
  if (options.kind == TokenizeKind::kNumerals) {
    return TokenizeNumerals(world, options, deck, path, watch, dry);
  }
  LinePlan plan{.files = {}, .replace = options.replace_invalid, .settings = {}};
  world.Together([&] {
    if (world.IsRoot()) plan.files = FindPairFiles(options, deck, path);
  });
  for (std::vector<TextFile>& files : plan.files) files = ShareFiles(world, files);
  const auto fraction = [&](Split split, double wanted) {
    return options.pairs.texts.at(static_cast<std::size_t>(split)).source.empty() ? wanted : 0.0;
  };
  plan.settings.valid_fraction = fraction(Split::kValid, options.valid_fraction);
  plan.settings.test_fraction = fraction(Split::kTest, options.test_fraction);
  // A dry run leaves the texts alone, of which vocabularies are made, too.
  const bool named = IsSubword(options.kind) && options.vocabulary_size == 0;
  if (dry && !named) return {};
  LinePairs lines(plan, dry ? std::vector<LineUnit>() : AlignLines(world, plan, watch.stop));
  OwnedTokenizers owned;
  if (options.pairs.shared_vocabulary) {
    owned.own[kTargetText] =
        TokenizerOf(world, options, deck, lines, {kSourceText, kTargetText}, watch);
  } else {
    for (const std::size_t text : {kSourceText, kTargetText}) {
      owned.own.at(text) = TokenizerOf(world, options, deck, lines, {text}, watch);
    }
  }
  world.Together([&] { owned.Finish(options, deck); });
  if (dry) return {};
  return WritePairs(world, path, lines, owned.tokenizers, watch);
}

// RankedWords, ByteVocabulary.

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

Vocabulary ByteVocabulary() {
  Vocabulary vocabulary{.words = {}, .eos = '\n', .unk = -1};
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.words.emplace_back(1, static_cast<char>(byte));
  }
  return vocabulary;
}

}  // namespace trireme::data
