// Files of a tokenizer, and the choice of its kind by their names.
#include <filesystem>
#include <fstream>
#include <iterator>

#include "bpe.hpp"
#include "trireme/base/error.hpp"

namespace trireme::tokenizer {

namespace {

constexpr const char* kJson = "tokenizer.json";
constexpr const char* kModel = "tokenizer.model";

std::string Contents(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    throw InputError(path.string() + ": there is no such file");
  }
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  if (!file) throw InputError(path.string() + ": cannot be read");
  return text;
}

}  // namespace

Files ReadFiles(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    const bool model = fs::path(path).extension() == ".model";
    return {{model ? kModel : kJson, Contents(path)}};
  }
  const fs::path folder(path);
  for (const char* name : {kJson, kModel}) {
    if (fs::exists(folder / name, error)) return {{name, Contents(folder / name)}};
  }
  Files files;
  for (const char* name : {"vocab.json", "merges.txt"}) {
    if (!fs::exists(folder / name, error)) {
      throw InputError(path + ": neither tokenizer.json, tokenizer.model nor " + name +
                       " lies in this folder");
    }
    files[name] = Contents(folder / name);
  }
  return files;
}

std::unique_ptr<Tokenizer> Make(const Files& files, const std::string& where) {
  if (files.contains(kModel)) throw InputError(where + ": SentencePiece models are not supported");
  return MakeBpe(files, where);
}

}  // namespace trireme::tokenizer
