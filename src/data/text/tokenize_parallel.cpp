// From the deck to the plan of the work: files, tokenizer and splits, the same on every rank.
#include <fmt/format.h>

#include <memory>
#include <string_view>

#include "sentence_sample.hpp"
#include "share_texts.hpp"
#include "tokenize_texts.hpp"
#include "trireme/base/error.hpp"
#include "trireme/data/train.hpp"

namespace trireme::data {

namespace {

std::string DeckKeyOf(Split split) { return fmt::format("tokenize.{}", NameOf(split)); }

// Files of all splits, found by rank 0.
std::vector<TextFile> FindFiles(const TokenizeOptions& options, const deck::Deck& deck) {
  std::vector<TextFile> files;
  for (const Split split : kSplits) {
    const std::string& list = options.texts.at(static_cast<std::size_t>(split));
    if (list.empty() && split != Split::kTrain) continue;
    try {
      for (TextFile& file : FindTextFiles(list, split)) files.push_back(std::move(file));
    } catch (const Error& error) {
      throw deck.Complain(DeckKeyOf(split), error.what());
    }
  }
  return files;
}

// Files of the tokenizer that the deck names, or that is trained. Serial.
Files FilesOf(const TokenizeOptions& options, const deck::Deck& deck,
                         const TextPlan& plan, const TextWatch& watch) {
  if (!options.tokenizer.empty() || options.vocabulary_size == 0) {
    return NamedTokenizer({.path = options.tokenizer}, options.kind, deck);
  }
  const std::vector<std::string> sentences = SampleSentences(plan, watch.stop);
  try {
    return TrainSentencePiece(sentences, options.model_type, options.vocabulary_size);
  } catch (const Error& error) {
    throw deck.Complain("tokenize.vocabulary_size", error.what());
  }
}

}  // namespace

TextTokens TokenizeInParallel(const comm::Communicator& world, const TokenizeOptions& options,
                              const deck::Deck& deck, const std::string& path,
                              const TextWatch& watch, bool dry) {
  TextPlan plan{.files = {},
                .document = options.document,
                .keys = {options.text_key, options.prompt_key, options.skip_missing},
                .replace = options.replace_invalid,
                .encode = {}};
  world.Together([&] {
    if (!world.IsRoot()) return;
    CheckTokenizeKeys(options, deck);
    plan.files = FindFiles(options, deck);
    for (const std::string& twice : NamedTwice(plan.files))
      fmt::print(stderr, "warning: {}\n", twice);
    for (const TextFile& file : plan.files) {
      if (!IsReplaced(file, path)) continue;
      throw deck.Complain(DeckKeyOf(file.split),
                          fmt::format("{} is data.file, which would be replaced", file.path));
    }
  });
  plan.files = ShareFiles(world, plan.files);
  plan.encode.masks = !options.prompt_key.empty();
  const auto fraction = [&](Split split, double wanted) {
    return options.texts.at(static_cast<std::size_t>(split)).empty() ? wanted : 0.0;
  };
  plan.encode.valid_fraction = fraction(Split::kValid, options.valid_fraction);
  plan.encode.test_fraction = fraction(Split::kTest, options.test_fraction);
  // Training reads the texts, which a dry run leaves alone.
  const bool trains = options.tokenizer.empty() && options.vocabulary_size > 0;
  if (dry && trains) {
    return {.tokenizer = NameOf(options.kind), .vocabulary = options.vocabulary_size};
  }
  const std::unique_ptr<Tokenizer> tokenizer =
      ShareTokenizer(world, {.path = options.tokenizer}, options.kind, deck,
                     [&] { return FilesOf(options, deck, plan, watch); });
  world.Together([&] { plan.encode.eos = EosOf(*tokenizer, options, deck); });
  if (dry) return {.tokenizer = tokenizer->Kind(), .vocabulary = tokenizer->VocabularySize()};
  return TokenizeTexts(world, *tokenizer, plan, path, watch);
}

}  // namespace trireme::data
