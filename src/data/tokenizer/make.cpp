// Files of a tokenizer, and the choice of its kind by their names.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "bpe.hpp"
#include "sentencepiece.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/posix_file.hpp"

namespace trireme::data {

namespace {

constexpr const char* kJson = "tokenizer.json";

std::string Contents(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    throw InputError(path.string() + ": there is no such file");
  }
  RefuseForeignFile(path.string());
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  if (!file) throw InputError(path.string() + ": cannot be read");
  return text;
}

// Refuses files that are known, by their names, to be something else.
void RefuseOthers(const std::filesystem::path& path, TokenizerKind kind) {
  const std::string name = path.filename().string();
  if (kind == TokenizerKind::kSentencePiece) {
    if (!name.ends_with(".json")) return;
    throw InputError(path.string() + ": is no SentencePiece model",
                     "tokenize.kind = bpe reads a tokenizer.json.");
  }
  if (name == "vocab.json" || name == "merges.txt") {
    throw InputError(path.string() + ": is one half of a tokenizer",
                     "Name the folder that holds vocab.json and merges.txt.");
  }
  if (name.ends_with(".model") || name.ends_with(".tiktoken")) {
    throw InputError(
        path.string() + ": is no tokenizer.json",
        "tokenize.kind = sentencepiece reads SentencePiece's models; of a tiktoken file "
        "use the tokenizer.json that is published with it.");
  }
}

}  // namespace

Files ReadFiles(const std::string& path, TokenizerKind kind) {
  namespace fs = std::filesystem;
  std::error_code error;
  const char* const own = kind == TokenizerKind::kSentencePiece ? kSentencePieceFile : kJson;
  if (!fs::is_directory(path, error)) {
    std::string contents = Contents(path);
    RefuseOthers(path, kind);
    return {{own, std::move(contents)}};
  }
  const fs::path folder(path);
  if (fs::exists(folder / own, error)) return {{own, Contents(folder / own)}};
  if (kind == TokenizerKind::kSentencePiece) {
    throw InputError(fmt::format("{}: there is no {} in this folder", path, own),
                     "Name the model's file.");
  }
  Files files;
  for (const char* name : {"vocab.json", "merges.txt"}) {
    if (!fs::exists(folder / name, error)) {
      throw InputError(path + ": neither tokenizer.json nor " + name + " lies in this folder");
    }
    files[name] = Contents(folder / name);
  }
  return files;
}

std::unique_ptr<Tokenizer> Make(const Files& files, const std::string& where) {
  return files.contains(kSentencePieceFile) ? MakeSentencePiece(files, where)
                                            : MakeBpe(files, where);
}

}  // namespace trireme::data
