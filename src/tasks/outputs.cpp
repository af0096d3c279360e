// What a task writes is nothing that the job reads.
#include "outputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/base/new_file.hpp"

namespace trireme::tasks {

namespace {

namespace fs = std::filesystem;

// Keys that name a file to write, and the task that writes it. Not there: generate.output, hf.path
// of an export, which refuse what exists.
constexpr std::array<std::pair<std::string_view, app::Task>, 5> kOutputs = {
    {{"data.file", app::Task::kTokenize},
     {"evaluate.documents", app::Task::kEvaluate},
     {"evaluate.output", app::Task::kEvaluate},
     {"evaluate.results", app::Task::kEvaluate},
     {"plan.timeline", app::Task::kPlan}}};

struct Input {
  std::string key;  // or what it is
  std::string path;
};

// The parts of a list "a:2, b" as well as the whole, which may be one name with a comma.
void AddNames(const std::string& key, const std::string& text, std::vector<Input>& to) {
  to.push_back({key, text});
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find_first_of(",: ", begin), text.size());
    if (end > begin && end - begin < text.size()) {
      to.push_back({key, text.substr(begin, end - begin)});
    }
    begin = end + 1;
  }
}

std::vector<Input> InputsOf(const app::Job& job) {
  std::vector<Input> inputs;
  const deck::Deck& values = job.deck;  // of keys that the schema lists
  for (const std::string& deck : {job.sources.deck_path, job.sources.site_path}) {
    inputs.push_back({"this job's deck", deck});
  }
  for (const deck::Key& key : job.schema->Keys()) {
    const bool written = std::ranges::any_of(kOutputs, [&](const auto& output) {
      return output.first == key.name &&
             (output.second == job.options.job.task || key.name != "data.file");
    });
    if (key.path && !written) AddNames(key.name, values.Text(key.name), inputs);
  }
  return inputs;
}

bool IsOneOf(const std::string& output, const Input& input) {
  std::error_code none;
  if (input.path.empty() || !fs::exists(input.path, none)) return false;
  if (!fs::is_directory(input.path, none)) return fs::equivalent(output, input.path, none);
  // Of a folder that holds a tokenizer any file may be read.
  return (input.key.starts_with("tokenize.") || input.key.starts_with("hf.")) &&
         fs::equivalent(fs::absolute(output, none).parent_path(), input.path, none);
}

}  // namespace

void CheckOutputs(const app::Job& job) {
  std::vector<Input> inputs;
  const deck::Deck& values = job.deck;  // of the keys above
  for (const auto& [key, task] : kOutputs) {
    if (task != job.options.job.task) continue;
    const std::string output = BehindLink(values.Text(std::string(key)));
    std::error_code none;
    if (output.empty() || !fs::exists(output, none)) continue;
    if (inputs.empty()) inputs = InputsOf(job);
    for (const Input& input : inputs) {
      if (!IsOneOf(output, input)) continue;
      throw job.deck.Complain(
          std::string(key),
          fmt::format("{} is read by this job, as {}, and would be replaced", output, input.key),
          "Name another file.");
    }
  }
}

}  // namespace trireme::tasks
