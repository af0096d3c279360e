// From the deck to the plan of the work: files, tokenizer and splits, the same on every rank.
#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <memory>
#include <string_view>
#include <system_error>

#include "sentence_sample.hpp"
#include "token_layout.hpp"
#include "tokenize_texts.hpp"
#include "trireme/base/error.hpp"
#include "trireme/tokenizer/train.hpp"

namespace trireme::data {

namespace {

std::string KeyOf(Split split) { return fmt::format("tokenize.{}", NameOf(split)); }

// Files of all splits, found by rank 0.
std::vector<TextFile> FindFiles(const TokenizeOptions& options, const input::Deck& deck) {
  std::vector<TextFile> files;
  for (const Split split : kSplits) {
    const std::string& list = options.texts.at(static_cast<std::size_t>(split));
    if (list.empty() && split != Split::kTrain) continue;
    try {
      for (TextFile& file : FindTextFiles(list, split)) files.push_back(std::move(file));
    } catch (const Error& error) {
      throw deck.Complain(KeyOf(split), error.what());
    }
  }
  return files;
}

// Texts that one rank has, for all. Collective.
std::vector<std::string> Share(const comm::Communicator& world, std::vector<std::string> texts) {
  std::int64_t count = std::ssize(texts);
  world.Broadcast(&count, sizeof count);
  texts.resize(static_cast<std::size_t>(count));
  for (std::string& text : texts) text = world.Broadcast(text);
  return texts;
}

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

// Files of the tokenizer that the deck names, or that is trained. Serial.
tokenizer::Files FilesOf(const TokenizeOptions& options, const input::Deck& deck,
                         const TextPlan& plan, const TextWatch& watch) {
  const bool models = options.kind == TokenizeKind::kSentencePiece;
  if (!options.tokenizer.empty()) {
    if (std::string_view(options.tokenizer).ends_with(".h5")) {
      tokenizer::Files files = InspectTokenFile(options.tokenizer).tokenizer_files;
      if (!files.empty()) return files;
      throw deck.Complain("tokenize.tokenizer", "this token file has no subword tokenizer");
    }
    return tokenizer::ReadFiles(options.tokenizer,
                                models ? tokenizer::Kind::kSentencePiece : tokenizer::Kind::kBpe);
  }
  if (options.vocabulary_size == 0) {
    throw deck.Complain("tokenize.tokenizer",
                        fmt::format("tokenize.kind = {} needs one", NameOf(options.kind)),
                        models ? "Name a model, or train one with tokenize.vocabulary_size."
                               : "Name a tokenizer.json, or its folder.");
  }
  const std::vector<std::string> sentences = SampleSentences(plan, watch.stop);
  try {
    return tokenizer::TrainSentencePiece(sentences, options.model_type, options.vocabulary_size);
  } catch (const Error& error) {
    throw deck.Complain("tokenize.vocabulary_size", error.what());
  }
}

std::unique_ptr<tokenizer::Tokenizer> ShareTokenizer(const comm::Communicator& world,
                                                     const TokenizeOptions& options,
                                                     const input::Deck& deck, const TextPlan& plan,
                                                     const TextWatch& watch) {
  std::vector<std::string> texts;
  world.Together([&] {
    if (!world.IsRoot()) return;
    for (const auto& [name, contents] : FilesOf(options, deck, plan, watch)) {
      texts.push_back(name);
      texts.push_back(contents);
    }
  });
  texts = Share(world, std::move(texts));
  tokenizer::Files files;
  for (std::size_t i = 0; i + 1 < texts.size(); i += 2) files[texts[i]] = texts[i + 1];
  std::unique_ptr<tokenizer::Tokenizer> made;
  world.Together([&] {
    made = tokenizer::Make(files, options.tokenizer);
    if (std::string_view(made->Kind()) == NameOf(options.kind)) return;
    throw deck.Complain("tokenize.kind", fmt::format("{} is a tokenizer of kind {}",
                                                     options.tokenizer, made->Kind()));
  });
  return made;
}

std::int64_t EosOf(const tokenizer::Tokenizer& tokenizer, const TokenizeOptions& options,
                   const input::Deck& deck) {
  if (options.eos.empty()) {
    if (const auto eos = tokenizer.Eos()) return *eos;
    throw deck.Complain("tokenize.eos", "the tokenizer names no token for the end of a document",
                        "Name one of its tokens, as <|endoftext|>.");
  }
  if (const auto eos = tokenizer.IdOf(options.eos)) return *eos;
  throw deck.Complain("tokenize.eos", "the tokenizer has no such token");
}

}  // namespace

TextTokens TokenizeInParallel(const comm::Communicator& world, const TokenizeOptions& options,
                              const input::Deck& deck, const std::string& path,
                              const TextWatch& watch, bool dry) {
  TextPlan plan{.files = {},
                .document = options.document,
                .keys = {options.text_key, options.prompt_key},
                .replace = options.replace_invalid,
                .encode = {}};
  world.Together([&] {
    if (!world.IsRoot()) return;
    CheckTokenizeKeys(options, deck);
    plan.files = FindFiles(options, deck);
    for (const TextFile& file : plan.files) {
      std::error_code none;
      if (!std::filesystem::equivalent(file.path, path, none)) continue;
      throw deck.Complain(KeyOf(file.split),
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
  const std::unique_ptr<tokenizer::Tokenizer> tokenizer =
      ShareTokenizer(world, options, deck, plan, watch);
  world.Together([&] { plan.encode.eos = EosOf(*tokenizer, options, deck); });
  if (dry) return {.tokenizer = tokenizer->Kind(), .vocabulary = tokenizer->VocabularySize()};
  return TokenizeTexts(world, *tokenizer, plan, path, watch);
}

}  // namespace trireme::data
