// Tokenisation in memory, from text files or the harbour corpus.
#include "trireme/data/tokenize.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "text/documents.hpp"
#include "text/inputs.hpp"
#include "token_arrays.hpp"
#include "token_codec.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/utf8.hpp"
#include "words.hpp"

namespace trireme::data {

namespace {

struct SourceText {
  std::string path;  // for messages
  std::string text;
};

struct WordOptions {
  bool lowercase = false;
  std::int64_t min_count = 1;  // words that occur less often in the train split become <unk>
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

// Numbers words by first appearance and counts them. The text must outlive it.
class Counter {
 public:
  std::int32_t Add(std::string_view word, std::int64_t count) {
    const auto [known, added] = ids_.emplace(word, static_cast<std::int32_t>(words_.size()));
    if (added) words_.emplace_back(word, 0);
    words_[static_cast<std::size_t>(known->second)].second += count;
    return known->second;
  }
  std::int32_t Find(std::string_view word, std::int32_t otherwise) const {
    const auto known = ids_.find(word);
    return known == ids_.end() ? otherwise : known->second;
  }
  const std::vector<std::pair<std::string_view, std::int64_t>>& Words() const { return words_; }

 private:
  std::unordered_map<std::string_view, std::int32_t> ids_;
  std::vector<std::pair<std::string_view, std::int64_t>> words_;
};

// new_ids maps ids by first appearance to ids by frequency; rare words get the id of <unk>.
struct Ranking {
  std::vector<std::int32_t> new_ids;
  Vocabulary vocabulary;
};

Ranking Rank(const Counter& counter, std::int32_t eos, std::int32_t unk, std::int64_t min_count) {
  auto words = counter.Words();
  const auto special = [&](std::int32_t id) { return id == eos || id == unk; };
  std::vector<std::int32_t> kept;
  for (std::int32_t id = 0; id < static_cast<std::int32_t>(words.size()); ++id) {
    const std::int64_t count = words[static_cast<std::size_t>(id)].second;
    if (special(id) || count >= min_count) {
      kept.push_back(id);
    } else {
      words[static_cast<std::size_t>(unk)].second += count;
    }
  }
  std::sort(kept.begin(), kept.end(), [&](std::int32_t a, std::int32_t b) {
    const auto& left = words[static_cast<std::size_t>(a)];
    const auto& right = words[static_cast<std::size_t>(b)];
    return left.second != right.second ? left.second > right.second : left.first < right.first;
  });
  Ranking ranking;
  ranking.new_ids.assign(words.size(), -1);
  for (const std::int32_t id : kept) {
    ranking.new_ids[static_cast<std::size_t>(id)] =
        static_cast<std::int32_t>(ranking.vocabulary.words.size());
    ranking.vocabulary.words.emplace_back(words[static_cast<std::size_t>(id)].first);
  }
  const std::int32_t new_unk = ranking.new_ids[static_cast<std::size_t>(unk)];
  for (std::int32_t& id : ranking.new_ids) id = id < 0 ? new_unk : id;
  ranking.vocabulary.eos = ranking.new_ids[static_cast<std::size_t>(eos)];
  ranking.vocabulary.unk = new_unk;
  return ranking;
}

// Splits at blanks and ends each line with <eos>. The vocabulary is the train split's words, <eos>
// and <unk>, by descending frequency, then by bytes. Throws InputError for invalid UTF-8.
TokenData TokenizeWords(std::array<SourceText, 3> sources, const WordOptions& options) {
  for (SourceText& source : sources) {
    CheckUtf8(source);
    if (options.lowercase) source.text = LowerCase()(source.text);
  }
  Counter counter;
  const std::int32_t eos = counter.Add(kEndOfSentence, 0);
  const std::int32_t unk = counter.Add(kUnknown, 0);
  TokenData data;
  for (std::size_t split = 0; split < sources.size(); ++split) {
    const bool train = split == static_cast<std::size_t>(Split::kTrain);
    std::vector<std::int32_t>& ids = data.tokens.at(split);
    const auto add = [&](std::string_view word) {
      ids.push_back(train ? counter.Add(word, 1) : counter.Find(word, unk));
    };
    ForEachLine(sources.at(split).text, [&](std::string_view line) {
      ForEachWord(line, add);
      add(kEndOfSentence);
    });
  }
  Ranking ranking = Rank(counter, eos, unk, options.min_count);
  for (auto& ids : data.tokens) {
    for (std::int32_t& id : ids) id = ranking.new_ids[static_cast<std::size_t>(id)];
  }
  data.vocabulary = std::move(ranking.vocabulary);
  data.tokenizer = options.lowercase ? kLowercaseTokenizer : kWordTokenizer;
  return data;
}

// valid and test each: train's tokens divided by this.
constexpr std::int64_t kHeldOutShare = 10;

std::string KeyOf(Split split) { return fmt::format("tokenize.{}", NameOf(split)); }

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
    const std::string key = KeyOf(split);
    const std::string& list = options.texts.at(static_cast<std::size_t>(split));
    if (list.empty()) {
      throw deck.Complain(
          key, fmt::format("tokenize.kind = {} needs a text for this split", NameOf(options.kind)),
          "Name a text file; tokenize.kind = harbour needs none.");
    }
    SourceText& source = sources.at(static_cast<std::size_t>(split));
    source.path = list;
    try {
      for (const TextFile& file : FindTextFiles(list, split)) {
        if (IsReplaced(file, target)) {
          throw InputError(fmt::format("{} is data.file, which would be replaced", file.path));
        }
        if (!source.text.empty()) Joined::EndLine(source.text);
        missing += Append(file, {options.text_key, "", options.skip_missing}, source.text);
        all.push_back(file);
      }
    } catch (const Error& error) {
      throw deck.Complain(key, error.what());
    }
    if (source.text.empty()) throw deck.Complain(key, "the file is empty; each split needs text");
  }
  for (const std::string& twice : NamedTwice(all)) fmt::print(stderr, "warning: {}\n", twice);
  if (missing > 0)
    fmt::print("{} JSON records without \"{}\" left out\n", missing, options.text_key);
  return sources;
}

TokenData TokenizeBytes(const std::array<SourceText, 3>& sources) {
  TokenData data;
  for (std::size_t split = 0; split < sources.size(); ++split) {
    const std::string& text = sources.at(split).text;
    std::transform(text.begin(), text.end(), std::back_inserter(data.tokens.at(split)),
                   [](char c) { return static_cast<unsigned char>(c); });
  }
  data.vocabulary = ByteVocabulary();
  data.tokenizer = kByteTokenizer;
  return data;
}

TokenData TokenizeTexts(const TokenizeOptions& options, const deck::Deck& deck,
                        const std::string& target) {
  std::array<SourceText, 3> sources = ReadSources(options, deck, target);
  const std::array<std::string_view, 3> texts = {sources[0].text, sources[1].text, sources[2].text};
  const std::string sha256 = Sha256(texts);
  TokenData data = options.kind == TokenizeKind::kByte
                       ? TokenizeBytes(sources)
                       : TokenizeWords(std::move(sources), {options.lowercase, options.min_count});
  data.source_sha256 = sha256;
  for (const Split split : kSplits) {
    const std::size_t count = data.tokens[static_cast<std::size_t>(split)].size();
    if (count >= 2) continue;
    throw deck.Complain(KeyOf(split),
                        fmt::format("the text holds {} token; at least 2 are needed", count));
  }
  return data;
}

TokenData TokenizeHarbour(const TokenizeOptions& options) {
  const std::int64_t train = options.harbour_tokens, seed = options.harbour_seed;
  const std::int64_t held_out = std::max<std::int64_t>(train / kHeldOutShare, 2);
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
  const std::string deck_text =
      fmt::format("harbour_tokens = {}\nharbour_seed = {}\n", train, seed);
  const std::string_view text = deck_text;
  data.source_sha256 = Sha256(std::span(&text, 1));
  return data;
}

}  // namespace

TokenData Tokenize(const TokenizeOptions& options, const deck::Deck& deck,
                   const std::string& target) {
  CheckTokenizeKeys(options, deck);
  return options.kind == TokenizeKind::kHarbour ? TokenizeHarbour(options)
                                                : TokenizeTexts(options, deck, target);
}

}  // namespace trireme::data
