// The list "mixture" of run.json: writing, reading, comparing.
#include "mixture_record.hpp"

#include <fmt/format.h>

#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/deck/json_text.hpp"
#include "trireme/deck/shown.hpp"

namespace trireme::app {

namespace {

constexpr double kLargestShare = 1e9;  // weight or epochs, as data.mixture allows

const char* ShareName(const data::Proportion& proportion) {
  return proportion.epochs > 0 ? "epochs" : "weight";
}

// A list of anything in a run.json that may not be one.
const nlohmann::json* MixtureOf(const nlohmann::json& run) {
  const auto found = run.find("mixture");
  return found != run.end() && found->is_array() ? &*found : nullptr;
}

double ShareOf(const nlohmann::json& file) {
  for (const char* name : {"epochs", "weight"}) {
    const auto found = file.find(name);
    if (found != file.end() && found->is_number()) return found->get<double>();
  }
  return 0;
}

// The list as in a deck.
std::string TextOf(const nlohmann::json& run) {
  const nlohmann::json* files = MixtureOf(run);
  if (files == nullptr) return "not set";
  std::string text;
  for (const nlohmann::json& file : *files) {
    text += text.empty() ? "" : ", ";
    text += fmt::format("{}{}{:.6g}", file.value("file", ""), file.contains("epochs") ? '*' : ':',
                        ShareOf(file));
  }
  return text;
}

// Contents and shares of the files, whatever their names: lists with the same text have the same
// order of windows.
std::vector<std::string> IdentityOf(const nlohmann::json& run) {
  const nlohmann::json* files = MixtureOf(run);
  if (files == nullptr) return {run.value("source_sha256", "")};
  double sum = 0;
  for (const nlohmann::json& file : *files) sum += ShareOf(file);
  std::vector<std::string> identity;
  for (const nlohmann::json& file : *files) {
    const bool epochs = file.contains("epochs");
    const std::string share =
        files->size() == 1 && !epochs
            ? std::string()
            : fmt::format(" {}{:.9g}", epochs ? '*' : ':', ShareOf(file) / (epochs ? 1 : sum));
    identity.push_back(file.value("source_sha256", "") + share);
  }
  return identity;
}

}  // namespace

nlohmann::json MixtureJson(const std::vector<data::MixtureFile>& files, const data::Corpus& corpus,
                           const data::Sampler& sampler, std::int64_t step) {
  const std::vector<data::SourcePlace> places = sampler.Places(step);
  nlohmann::json list = nlohmann::json::array();
  for (std::size_t i = 0; i < files.size(); ++i) {
    const data::TokenFile& file = corpus.Of(static_cast<int>(i));
    const data::Proportion& proportion = files[i].proportion;
    list.push_back(
        {{"file", files[i].path},
         {ShareName(proportion), proportion.epochs > 0 ? proportion.epochs : proportion.weight},
         {"source_sha256", file.SourceSha256()},
         {"train_tokens", file.Size(data::Split::kTrain)},
         {"windows", sampler.WindowsOf(static_cast<std::int64_t>(i))},
         {"windows_used", places[i].windows},
         {"tokens", places[i].targets}});
  }
  return list;
}

void ParseMixture(const nlohmann::json& run, const std::string& path, RunRecord& record) {
  if (!run.contains("mixture")) return;
  const nlohmann::json& list = deck::JsonObject(run, path).List("mixture");
  if (list.empty() || list.size() > data::kMostMixtureFiles) {
    throw InputError(fmt::format("{}: mixture: 1 to {} files expected, {} found", path,
                                 data::kMostMixtureFiles, list.size()));
  }
  for (const nlohmann::json& each : list) {
    const deck::JsonObject file(each, path + ": mixture");
    data::Proportion proportion;
    if (file.Has("epochs")) {
      proportion.epochs = file.Real("epochs", 1 / kLargestShare, kLargestShare);
    } else {
      proportion.weight = file.Real("weight", 1 / kLargestShare, kLargestShare);
    }
    record.mixture.push_back(
        {.file = file.Text("file"),
         .sha256 = file.Text("source_sha256"),
         .source = {file.Integer("train_tokens", 2, kMostTrainTokens), proportion}});
    const data::SourcePlace place{file.Integer("windows_used"), file.Integer("tokens")};
    if (record.origin) record.origin->sources.push_back(place);
  }
  const bool by_epochs = record.mixture.front().source.proportion.epochs > 0;
  for (const RunRecord::Source& file : record.mixture) {
    if ((file.source.proportion.epochs > 0) == by_epochs) continue;
    throw InputError(fmt::format("{}: mixture: weights and epochs in one list", path));
  }
}

std::string MixtureChange(const nlohmann::json& was, const nlohmann::json& now) {
  if (MixtureOf(was) == nullptr && MixtureOf(now) == nullptr) return {};
  if (IdentityOf(was) == IdentityOf(now)) return {};
  const std::string then = TextOf(was), text = TextOf(now);
  if (then == text) {
    return fmt::format(
        "data.mixture = {}: a file has other contents than when the checkpoint was "
        "written, and starts at its beginning",
        deck::Shown(text));
  }
  return fmt::format(
      "data.mixture is {} now and was {} when the checkpoint was written: each file "
      "goes on at its own place",
      deck::Shown(text), deck::Shown(then));
}

}  // namespace trireme::app
