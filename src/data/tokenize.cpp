// The deck's [data] and [tokenize], and the way from texts, or from the built-in corpus, to tokens.
#include "trireme/data/tokenize.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <span>
#include <string_view>
#include <system_error>

#include "sha256.hpp"
#include "token_codec.hpp"
#include "tokenize_word.hpp"
#include "trireme/base/error.hpp"
#include "trireme/data/harbour.hpp"

namespace trireme::data {

namespace {

constexpr std::int64_t kByteEndOfLine = '\n';
constexpr std::int64_t kHeldOutShare = 10;  // valid and test each: train / this

// Lengths and counts of windows: the product of two stays below 2^63.
constexpr double kLargestCount = std::numeric_limits<std::int32_t>::max();
constexpr double kLargestCorpus = 0x1p40;  // tokens: more than a node's memory holds

std::string KeyOf(Split split) { return fmt::format("tokenize.{}", NameOf(split)); }

// Keys that the chosen kind would silently ignore are refused.
void RefuseKeys(const input::Deck& deck, std::initializer_list<const char*> names,
                const std::string& why) {
  for (const char* name : names) {
    if (deck.Given(name)) throw deck.Complain(name, why, "Remove this key.");
  }
}

std::string ReadText(const input::Deck& deck, const std::string& key) {
  const std::string& path = deck.Text(key);
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    throw deck.Complain(key, "there is no such file");
  }
  if (!std::filesystem::status_known(status)) {
    throw deck.Complain(key, "cannot be read: " + error.message());
  }
  if (!std::filesystem::is_regular_file(status)) throw deck.Complain(key, "is not a file");
  const auto size = std::filesystem::file_size(path, error);
  if (error) throw deck.Complain(key, "its size is unknown: " + error.message());
  std::ifstream file(path, std::ios::binary);
  std::string text(file ? static_cast<std::size_t>(size) : 0, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file) {
    throw deck.Complain(key, "cannot be read: " + std::generic_category().message(errno));
  }
  if (text.empty()) throw deck.Complain(key, "the file is empty; each split needs text");
  return text;
}

std::array<SourceText, 3> ReadSources(const input::Deck& deck) {
  std::array<SourceText, 3> sources;
  for (const Split split : kSplits) {
    const std::string key = KeyOf(split);
    if (deck.Text(key).empty()) {
      throw deck.Complain(
          key,
          fmt::format("tokenize.kind = {} needs a text for this split", deck.Text("tokenize.kind")),
          "Name a text file; tokenize.kind = harbour needs none.");
    }
    sources.at(static_cast<std::size_t>(split)) = {deck.Text(key), ReadText(deck, key)};
  }
  return sources;
}

TokenData TokenizeBytes(const std::array<SourceText, 3>& sources) {
  TokenData data;
  for (std::size_t split = 0; split < sources.size(); ++split) {
    const std::string& text = sources.at(split).text;
    std::transform(text.begin(), text.end(), std::back_inserter(data.tokens.at(split)),
                   [](char c) { return static_cast<unsigned char>(c); });
  }
  for (int byte = 0; byte < 256; ++byte) {
    data.vocabulary.words.emplace_back(1, static_cast<char>(byte));
  }
  data.vocabulary.eos = kByteEndOfLine;
  data.tokenizer = kByteTokenizer;
  return data;
}

TokenData TokenizeTexts(const input::Deck& deck) {
  const bool bytes = deck.Text("tokenize.kind") == "byte";
  RefuseKeys(deck, {"tokenize.harbour_tokens", "tokenize.harbour_seed"},
             "belongs to tokenize.kind = harbour");
  if (bytes) {
    RefuseKeys(deck, {"tokenize.lowercase", "tokenize.min_count"},
               "belongs to tokenize.kind = word; bytes are taken as they are");
  }
  std::array<SourceText, 3> sources = ReadSources(deck);
  const std::array<std::string_view, 3> texts = {sources[0].text, sources[1].text, sources[2].text};
  const std::string sha256 = Sha256(texts);
  TokenData data = bytes ? TokenizeBytes(sources)
                         : TokenizeWords(std::move(sources), {deck.Switch("tokenize.lowercase"),
                                                              deck.Integer("tokenize.min_count")});
  data.source_sha256 = sha256;
  for (const Split split : kSplits) {
    const std::size_t count = data.tokens[static_cast<std::size_t>(split)].size();
    if (count >= 2) continue;
    throw deck.Complain(KeyOf(split),
                        fmt::format("the text holds {} token; at least 2 are needed", count));
  }
  return data;
}

TokenData TokenizeHarbour(const input::Deck& deck) {
  RefuseKeys(deck, {"tokenize.train", "tokenize.valid", "tokenize.test"},
             "tokenize.kind = harbour makes its own text and reads none");
  RefuseKeys(deck, {"tokenize.lowercase", "tokenize.min_count"}, "belongs to tokenize.kind = word");
  const std::int64_t train = deck.Integer("tokenize.harbour_tokens");
  const std::int64_t held_out = std::max<std::int64_t>(train / kHeldOutShare, 2);
  const std::int64_t seed = deck.Integer("tokenize.harbour_seed");
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
  // What the generator was told stands in for a source text.
  const std::string deck_text =
      fmt::format("harbour_tokens = {}\nharbour_seed = {}\n", train, seed);
  const std::string_view text = deck_text;
  data.source_sha256 = Sha256(std::span(&text, 1));
  return data;
}

}  // namespace

void DeclareData(input::Schema& schema) {
  schema.Section("data", "the token file and how training takes windows from it")
      .Text("data.file", "data/tokens.h5",
            "Token file (HDF5): task = tokenize writes it, the other tasks read it.")
      .Integer("data.sequence_length", 128, input::Between(1, kLargestCount), "tokens",
               "Targets of one window: how far a prediction can look back.")
      .Integer(
          "data.stride", 0, input::Between(0, kLargestCount), "tokens",
          "Distance between the beginnings of neighbouring windows; 0: the sequence length, so "
          "that each target is used once an epoch.")
      .Integer("data.batch", 64, input::Between(1, kLargestCount), "windows",
               "Windows a step, over all ranks; need not divide by anything.")
      .Integer("data.micro_batch", 0, input::Between(0, kLargestCount), "windows",
               "Windows that a rank takes at once; 0: chosen by the program.")
      .Choice("data.staging", "shared_memory", {"none", "shared_memory"},
              "Where the tokens are kept: a copy a rank, or one a node in shared memory.");
}

void DeclareTokenize(input::Schema& schema) {
  constexpr double kLargestSeed = std::numeric_limits<std::uint32_t>::max();
  schema.Section("tokenize", "job.task = tokenize: from texts to the token file")
      .Choice("tokenize.kind", "word", {"word", "byte", "harbour"},
              "word: blanks separate tokens, <eos> ends each line. byte: the 256 bytes. harbour: a "
              "built-in corpus of known entropy, made from a grammar.")
      .Text("tokenize.train", "", "Text of the train split (word, byte).")
      .Text("tokenize.valid", "", "Text of the valid split (word, byte).")
      .Text("tokenize.test", "", "Text of the test split (word, byte).")
      .Switch("tokenize.lowercase", false, "Fold the text to lower case (word).")
      .Integer("tokenize.min_count", 1, input::AtLeast(1), "occurrences",
               "Rarer words of the train split become <unk> (word).")
      .Switch("tokenize.overwrite", false,
              "Replace data.file where it exists; else that is refused.")
      .Integer("tokenize.harbour_tokens", 1000000, input::Between(2, kLargestCorpus), "tokens",
               "Size of the train split (harbour); valid and test get a tenth each.")
      .Integer("tokenize.harbour_seed", 1, input::Between(0, kLargestSeed), "",
               "Another seed is another corpus of the same language (harbour).");
}

TokenData Tokenize(const input::Deck& deck) {
  return deck.Text("tokenize.kind") == "harbour" ? TokenizeHarbour(deck) : TokenizeTexts(deck);
}

}  // namespace trireme::data
