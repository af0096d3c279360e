// Broadcasts of files' descriptions and of tokenizers.
#include "share_texts.hpp"

#include <fmt/format.h>

#include <charconv>
#include <string_view>

#include "token_layout.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {

namespace {

// Texts that one rank has, for all. Collective.
std::vector<std::string> Share(const comm::Communicator& world, std::vector<std::string> texts) {
  std::int64_t count = std::ssize(texts);
  world.Broadcast(&count, sizeof count);
  texts.resize(static_cast<std::size_t>(count));
  for (std::string& text : texts) text = world.Broadcast(text);
  return texts;
}

}  // namespace

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

Files NamedTokenizer(const TokenizerName& name, TokenizeKind kind,
                                const deck::Deck& deck) {
  const bool models = kind == TokenizeKind::kSentencePiece;
  if (name.path.empty()) {
    throw deck.Complain(name.key, fmt::format("tokenize.kind = {} needs one", NameOf(kind)),
                        models ? "Name a model, or train one with tokenize.vocabulary_size."
                               : "Name a tokenizer.json, or its folder.");
  }
  if (!std::string_view(name.path).ends_with(".h5")) {
    return ReadFiles(name.path,
                                models ? TokenizerKind::kSentencePiece : TokenizerKind::kBpe);
  }
  const Side side = HoldsPairs(name.path) ? name.side : Side::kText;
  Files files = InspectTokenFile(name.path, side).tokenizer_files;
  if (!files.empty()) return files;
  throw deck.Complain(name.key, "this token file has no subword tokenizer");
}

std::unique_ptr<Tokenizer> ShareTokenizer(
    const comm::Communicator& world, const TokenizerName& name, TokenizeKind kind,
    const deck::Deck& deck, const std::function<Files()>& files_of) {
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

}  // namespace trireme::data
