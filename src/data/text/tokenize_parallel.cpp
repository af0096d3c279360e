// From the deck to the plan of the work: files, tokenizer and splits, the same on every rank.
#include <fmt/format.h>

#include <charconv>
#include <memory>
#include <string_view>

#include "tokenize_texts.hpp"
#include "trireme/base/error.hpp"

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

std::unique_ptr<tokenizer::Tokenizer> ShareTokenizer(const comm::Communicator& world,
                                                     const TokenizeOptions& options,
                                                     const input::Deck& deck) {
  std::vector<std::string> texts;
  world.Together([&] {
    if (!world.IsRoot()) return;
    if (options.tokenizer.empty()) {
      throw deck.Complain("tokenize.tokenizer",
                          fmt::format("tokenize.kind = {} needs one", NameOf(options.kind)),
                          "Name a tokenizer.json, or its folder.");
    }
    for (const auto& [name, contents] : tokenizer::ReadFiles(options.tokenizer)) {
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
  });
  plan.files = ShareFiles(world, plan.files);
  const std::unique_ptr<tokenizer::Tokenizer> tokenizer = ShareTokenizer(world, options, deck);
  world.Together([&] { plan.encode.eos = EosOf(*tokenizer, options, deck); });
  plan.encode.masks = !options.prompt_key.empty();
  const auto fraction = [&](Split split, double wanted) {
    return options.texts.at(static_cast<std::size_t>(split)).empty() ? wanted : 0.0;
  };
  plan.encode.valid_fraction = fraction(Split::kValid, options.valid_fraction);
  plan.encode.test_fraction = fraction(Split::kTest, options.test_fraction);
  if (dry) return {.tokenizer = tokenizer->Kind(), .vocabulary = tokenizer->VocabularySize()};
  return TokenizeTexts(world, *tokenizer, plan, path, watch);
}

}  // namespace trireme::data
