// Records as lines of metrics.jsonl.
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>

#include "metrics_file.hpp"

#include "trireme/base/json.hpp"

namespace trireme::report {

namespace {

using Json = nlohmann::ordered_json;

std::string Line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// Members of a step's line after its kind and step, in their order.
constexpr std::array kStepMembers = {"epoch",
                                     "tokens",
                                     "loss",
                                     "perplexity",
                                     "learning_rate",
                                     "grad_norm",
                                     "step_seconds",
                                     "tokens_per_second",
                                     "flops_per_second",
                                     "roof_fraction",
                                     "seconds_compute",
                                     "seconds_exposed_communication",
                                     "seconds_bubble",
                                     "seconds_data",
                                     "seconds_checkpoint",
                                     "bad_steps"};
constexpr std::string_view kStepStart = "{\"kind\":\"step\",\"step\":";

// Appends members in the order of kStepMembers.
class StepMembers {
 public:
  explicit StepMembers(std::string& text) : text_(text) {}
  template <typename Number>
  StepMembers& Add(Number value) {
    fmt::format_to(std::back_inserter(text_), ",\"{}\":", kStepMembers[next_++]);
    if (std::isfinite(value)) {
      fmt::format_to(std::back_inserter(text_), "{}", value);
    } else {
      text_ += "null";
    }
    return *this;
  }
  StepMembers& Measured(double value) { return Add(static_cast<float>(value)); }

 private:
  std::string& text_;
  std::size_t next_ = 0;
};

// Takes `start` off the front of `text`; false if it is not there.
bool Skip(std::string_view& text, std::string_view start) {
  if (!text.starts_with(start)) return false;
  text.remove_prefix(start.size());
  return true;
}

// Takes a number off the front of `text`; false if there is none.
template <typename Number>
bool Take(std::string_view& text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

void AddMeasures(Json& json, const Record& record) {
  json["flops_per_second"] = record.flops_per_second;
  json["roof_fraction"] = record.roof_fraction;
  json["memory_bytes"] = record.memory_bytes;
  json["seconds_compute"] = record.seconds_compute;
  json["seconds_exposed_communication"] = record.seconds_exposed_communication;
  json["seconds_bubble"] = record.seconds_bubble;
  json["seconds_data"] = record.seconds_data;
  json["seconds_checkpoint"] = record.seconds_checkpoint;
  json["slowest_rank"] = nullptr;
  if (record.slowest_rank >= 0) json["slowest_rank"] = record.slowest_rank;
  json["seconds_slowest"] = record.seconds_slowest;
  json["bad_steps"] = record.bad_steps;
  for (const auto& [name, tokens] : record.sources) json["sources"][name] = tokens;
}

void AddSpread(Json& json, const std::string& name, const Spread& spread) {
  json[name + "_min"] = spread.min;
  json[name + "_max"] = spread.max;
  json[name + "_mean"] = spread.mean;
}

}  // namespace

const char* NameOf(Record::Kind kind) {
  switch (kind) {
    case Record::Kind::kStep:
      return "step";
    case Record::Kind::kValid:
      return "valid";
    case Record::Kind::kValidOther:
      return "valid_other";
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

void AppendStepLine(const Record& record, std::string& text) {
  fmt::format_to(std::back_inserter(text), "{}{}", kStepStart, record.step);
  StepMembers(text)
      .Add(record.epoch)
      .Add(record.tokens)
      .Add(record.loss)
      .Add(Perplexity(record.loss))
      .Add(record.learning_rate)
      .Add(record.grad_norm)
      .Measured(record.step_seconds)
      .Measured(record.tokens_per_second)
      .Measured(record.flops_per_second)
      .Measured(record.roof_fraction)
      .Measured(record.seconds_compute)
      .Measured(record.seconds_exposed_communication)
      .Measured(record.seconds_bubble)
      .Measured(record.seconds_data)
      .Measured(record.seconds_checkpoint)
      .Add(record.bad_steps);
  text += "}\n";
}

std::optional<StepFacts> ReadStepLine(std::string_view line) {
  StepFacts facts;
  if (!Skip(line, kStepStart) || !Take(line, facts.step)) return std::nullopt;
  for (const std::string_view name : kStepMembers) {
    if (!Skip(line, ",\"") || !Skip(line, name) || !Skip(line, "\":")) return std::nullopt;
    double value = NAN;
    if (!Skip(line, "null") && (!Take(line, value) || !std::isfinite(value))) return std::nullopt;
    if (name == "loss" && std::isfinite(value)) facts.loss = value;
  }
  if (line != "}") return std::nullopt;
  return facts;
}

std::string ToJsonLine(const Record& record) {
  if (record.kind == Record::Kind::kStep) {
    std::string text;
    AppendStepLine(record, text);
    return text;
  }
  Json json;
  json["kind"] = NameOf(record.kind);
  if (!record.set.empty()) json["set"] = record.set;
  if (record.windows > 0) json["windows"] = record.windows;
  json["step"] = record.step;
  json["epoch"] = record.epoch;
  json["tokens"] = record.tokens;
  json["loss"] = record.loss;
  json["perplexity"] = Perplexity(record.loss);
  json["learning_rate"] = record.learning_rate;
  json["grad_norm"] = record.grad_norm;
  json["step_seconds"] = record.step_seconds;
  json["tokens_per_second"] = record.tokens_per_second;
  AddMeasures(json, record);
  for (const auto& [name, number] : record.more) json[name] = number;
  return Line(json);
}

std::string ToJsonLine(const Interval& interval) {
  const Record& last = interval.last;
  Json json;
  json["kind"] = "interval";
  json["step"] = last.step;
  json["steps"] = interval.steps;
  json["epoch"] = last.epoch;
  json["tokens"] = last.tokens;
  AddSpread(json, "loss", interval.loss);
  AddSpread(json, "grad_norm", interval.grad_norm);
  AddSpread(json, "step_seconds", interval.step_seconds);
  AddSpread(json, "tokens_per_second", interval.tokens_per_second);
  AddMeasures(json, last);
  json["memory_rank"] = nullptr;
  if (last.memory_rank >= 0) json["memory_rank"] = last.memory_rank;
  json["memory_host"] = last.memory_host;
  json["slowest_host"] = last.slowest_host;
  for (const auto& [name, number] : last.more) json[name] = number;
  return Line(json);
}

std::string ToJsonLine(const Event& event) {
  Json json;
  json["kind"] = "event";
  json["event"] = event.name;
  json["step"] = event.step;
  json["rank"] = event.rank;
  json["host"] = event.host;
  json["text"] = event.text;
  for (const auto& [name, number] : event.numbers) json[name] = number;
  return Line(json);
}

}  // namespace trireme::report
