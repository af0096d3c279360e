// The object "imported" of run.json: tokenizers that belong to an imported model.
#include "imported_record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "trireme/base/error.hpp"
#include "trireme/base/posix_file.hpp"
#include "trireme/deck/json_text.hpp"

namespace trireme::app {

namespace {
constexpr const char* kImported = "imported";
constexpr const char* kTokenizers = "tokenizers";
constexpr std::int64_t kMostTokenizerBytes = std::int64_t{256} << 20;
}  // namespace

nlohmann::json ImportedJson(const std::string& folder) {
  // Files of one tokenizer, as tokenize takes them.
  const std::vector<std::vector<const char*>> sets = {
      {"tokenizer.json"}, {"merges.txt", "vocab.json"}, {"tokenizer.model"}};
  nlohmann::json hashes = nlohmann::json::array();
  for (const std::vector<const char*>& names : sets) {
    const auto there = [&](const char* name) {
      std::error_code ignored;
      return std::filesystem::is_regular_file(folder + "/" + name, ignored);
    };
    if (!std::all_of(names.begin(), names.end(), there)) continue;
    std::map<std::string, std::string> files;
    for (const char* name : names) {
      files[name] = ReadText(folder + "/" + name, kMostTokenizerBytes);
    }
    hashes.push_back(data::TokenizerSha256Of(files));
  }
  return {{kTokenizers, std::move(hashes)}};
}

void CheckImportedTokenizer(const RunRecord& record, const data::TokenFile& tokens) {
  if (!record.json.contains(kImported)) return;
  const deck::JsonObject run(record.json, record.path);
  const nlohmann::json& hashes = run.Object(kImported).List(kTokenizers);
  if (hashes.empty() ||
      std::find(hashes.begin(), hashes.end(), tokens.TokenizerSha256()) != hashes.end()) {
    return;
  }
  throw InputError(
      fmt::format("{}: made by the tokenizer {}, not by the imported model's own, whose files lie "
                  "in the run's hf folder",
                  tokens.Path(), tokens.Tokenizer()),
      "Make the tokens anew with job.task = tokenize and tokenize.tokenizer = RUN/hf.");
}

}  // namespace trireme::app
