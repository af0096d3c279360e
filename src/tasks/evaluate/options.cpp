// The keys of [evaluate].
#include "trireme/tasks/evaluate_options.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <system_error>
#include <utility>

#include "trireme/deck/choice.hpp"

namespace trireme::tasks {

namespace {

namespace fs = std::filesystem;

constexpr deck::Names<2> kDetokenise = {"none", "wikitext"};

void CheckInput(const char* key, const std::string& path, const deck::Deck& deck) {
  std::error_code error;
  if (path.empty() || fs::is_regular_file(path, error)) return;
  throw deck.Complain(key,
                      fs::exists(path, error) ? path + " is not a file" : path + ": no such file",
                      "Check the path.");
}

void CheckTarget(const char* key, const std::string& path, bool overwrite,
                 const deck::Deck& deck) {
  if (path.empty()) return;
  std::error_code error;
  if (fs::exists(path, error) && (!overwrite || !fs::is_regular_file(path, error))) {
    throw deck.Complain(key, path + " is there already",
                        "evaluate.overwrite = yes replaces a file; or name another one.");
  }
  const std::string parent = fs::path(path).parent_path().string();
  const std::string folder = parent.empty() ? "." : parent;
  if (::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) == 0) return;
  throw deck.Complain(
      key,
      fmt::format("the folder {} {}", folder,
                  fs::is_directory(folder, error) ? "forbids writing" : "does not exist"),
      "Make it, or name another place.");
}

}  // namespace

void DeclareEvaluate(deck::Schema& schema) {
  schema
      .Section("evaluate", "Evaluating a trained model (job.task = evaluate); see doc/evaluate.md.")
      .Integer("evaluate.stride", 0, deck::AtLeast(0), "tokens",
               "Between the beginnings of neighbouring windows, which count each target once: all "
               "but the first window's have at least data.sequence_length - stride tokens of "
               "context. 0: windows do not overlap.")
      .Path("evaluate.text", "",
            "A text file to evaluate beside the token file's splits, as one document.")
      .Choice("evaluate.detokenise", "none", deck::Choices(kDetokenise),
              "wikitext: undoes the tokenisation of WikiText's files in evaluate.text, for subword "
              "tokenizers; words stay those of the file.")
      .Switch("evaluate.baselines", false,
              "Shows the losses of the uniform and unigram distributions and of a Kneser-Ney "
              "5-gram model beside the trained one, learned from the token file's train split of "
              "up to 100 million tokens.")
      .Path("evaluate.documents", "",
            "File to write: the loss of each document, HDF5. The splits need their documents.")
      .Path("evaluate.choices", "",
            "File of multiple-choice questions to score, JSONL: "
            "{\"context\": \"...\", \"choices\": [\"...\", ...], \"answer\": 0}.")
      .Path("evaluate.output", "",
            "File to write, JSONL: the scores of each question; of a model that translates, the "
            "translation of each pair.")
      .Path("evaluate.results", "", "File to write: all results, JSON.")
      .Switch("evaluate.overwrite", false, "Files to write replace what is there.");
}

EvaluateOptions ReadEvaluate(const deck::Deck& deck) {
  return {.stride = deck.Integer("evaluate.stride"),
          .text = deck.Text("evaluate.text"),
          .detokenise = deck::Pick<Detokenise>(deck.Text("evaluate.detokenise"), kDetokenise),
          .baselines = deck.Switch("evaluate.baselines"),
          .documents = deck.Text("evaluate.documents"),
          .choices = deck.Text("evaluate.choices"),
          .output = deck.Text("evaluate.output"),
          .results = deck.Text("evaluate.results"),
          .overwrite = deck.Switch("evaluate.overwrite")};
}

namespace {

void CheckTargets(const EvaluateOptions& options, const deck::Deck& deck) {
  const std::array<std::pair<const char*, const std::string*>, 3> targets = {
      {{"evaluate.documents", &options.documents},
       {"evaluate.output", &options.output},
       {"evaluate.results", &options.results}}};
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const auto& [key, path] = targets[i];
    CheckTarget(key, *path, options.overwrite, deck);
    for (std::size_t j = 0; j < i && !path->empty(); ++j) {
      if (*path != *targets[j].second) continue;
      throw deck.Complain(key, fmt::format("{} names the same file", targets[j].first),
                          "Name another one.");
    }
  }
}

}  // namespace

void CheckPairs(const EvaluateOptions& options, const deck::Deck& deck) {
  const std::array<std::pair<const char*, bool>, 5> none = {
      {{"evaluate.stride", options.stride != 0},
       {"evaluate.text", !options.text.empty()},
       {"evaluate.baselines", options.baselines},
       {"evaluate.documents", !options.documents.empty()},
       {"evaluate.choices", !options.choices.empty()}}};
  for (const auto& [key, asked] : none) {
    if (!asked) continue;
    throw deck.Complain(key, "a model that translates is evaluated on pairs alone",
                        "Leave this key out.");
  }
  CheckTargets(options, deck);
}

void CheckEvaluate(const EvaluateOptions& options, const deck::Deck& deck, std::int64_t length) {
  if (options.stride > length) {
    throw deck.Complain("evaluate.stride",
                        fmt::format("windows of {} tokens would skip some", length),
                        "It may not exceed data.sequence_length.");
  }
  if (options.detokenise != Detokenise::kNone && options.text.empty()) {
    throw deck.Complain("evaluate.detokenise", "there is no text to change",
                        "Name WikiText's file with evaluate.text.");
  }
  if (!options.output.empty() && options.choices.empty()) {
    throw deck.Complain("evaluate.output", "there are no questions to score",
                        "Name their file with evaluate.choices.");
  }
  CheckInput("evaluate.text", options.text, deck);
  CheckInput("evaluate.choices", options.choices, deck);
  CheckTargets(options, deck);
}

}  // namespace trireme::tasks
