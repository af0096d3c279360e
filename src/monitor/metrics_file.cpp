// The records of metrics.jsonl: written line by line, cut when a run is resumed.
#include "metrics_file.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "append_file.hpp"
#include "trireme/base/error.hpp"

namespace trireme::monitor {

const char* NameOf(Record::Kind kind) {
  switch (kind) {
    case Record::Kind::kStep:
      return "step";
    case Record::Kind::kValid:
      return "valid";
    case Record::Kind::kTest:
      return "test";
    case Record::Kind::kDone:
      break;
  }
  return "done";
}

double Perplexity(double loss) {
  constexpr double kLargest = 709.0;  // exp(709) = 8.2e307 is still a double
  return loss > kLargest ? std::exp(kLargest) : std::exp(loss);
}

std::string ToJsonLine(const Record& record) {
  nlohmann::ordered_json json;
  json["kind"] = NameOf(record.kind);
  json["step"] = record.step;
  json["epoch"] = record.epoch;
  json["tokens"] = record.tokens;
  json["loss"] = record.loss;
  json["perplexity"] = Perplexity(record.loss);
  json["learning_rate"] = record.learning_rate;
  json["grad_norm"] = record.grad_norm;
  json["step_seconds"] = record.step_seconds;
  json["tokens_per_second"] = record.tokens_per_second;
  json["flops_per_second"] = record.flops_per_second;
  json["roof_fraction"] = record.roof_fraction;
  json["memory_bytes"] = record.memory_bytes;
  json["seconds_compute"] = record.seconds_compute;
  json["seconds_exposed_communication"] = record.seconds_exposed_communication;
  json["seconds_bubble"] = record.seconds_bubble;
  json["seconds_data"] = record.seconds_data;
  json["seconds_checkpoint"] = record.seconds_checkpoint;
  return json.dump() + "\n";
}

namespace {

// Whether a line is a record that a run resumed at `resume_step` keeps; notes what it says.
bool Keeps(const std::string& line, std::int64_t resume_step, History& history) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object()) return false;
  const auto kind = json.find("kind");
  const auto step = json.find("step");
  if (kind == json.end() || !kind->is_string() || step == json.end() ||
      !step->is_number_integer()) {
    return false;
  }
  const auto at = step->get<std::int64_t>();
  if (at > resume_step || *kind == NameOf(Record::Kind::kDone)) return false;
  const auto loss = json.find("loss");
  if (loss == json.end() || !loss->is_number()) return true;
  const auto value = loss->get<double>();
  if (*kind == NameOf(Record::Kind::kStep) && !history.first_loss) history.first_loss = value;
  if (*kind == NameOf(Record::Kind::kValid) && value < history.best_valid.value_or(INFINITY)) {
    history.best_valid = value;
    history.best_valid_step = at;
  }
  return true;
}

}  // namespace

History CutMetrics(const std::string& path, std::int64_t resume_step) {
  History history;
  std::ifstream file(path, std::ios::binary);
  if (!file) return history;
  std::string kept;
  bool cut = false;
  for (std::string line; std::getline(file, line);) {
    const bool whole = !file.eof();  // a torn last line has no newline
    if (whole && Keeps(line, resume_step, history)) {
      kept += line + "\n";
    } else {
      cut = true;
    }
  }
  if (file.bad()) throw RunError(path + ": cannot be read");
  if (cut) WriteWhole(path, kept);
  return history;
}

}  // namespace trireme::monitor
