// Records as lines of metrics.jsonl.
#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "metrics_file.hpp"

namespace trireme::monitor {

namespace {

using Json = nlohmann::ordered_json;

std::string Line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// A member after others, of a number; the name needs no escaping.
template <typename Number>
void AppendMember(std::string& text, std::string_view name, Number value) {
  if (std::isfinite(value)) {
    fmt::format_to(std::back_inserter(text), ",\"{}\":{}", name, value);
  } else {
    fmt::format_to(std::back_inserter(text), ",\"{}\":null", name);
  }
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
  const auto measured = [&text](std::string_view name, double value) {
    AppendMember(text, name, static_cast<float>(value));
  };
  fmt::format_to(std::back_inserter(text), "{{\"kind\":\"step\",\"step\":{}", record.step);
  AppendMember(text, "epoch", record.epoch);
  AppendMember(text, "tokens", record.tokens);
  AppendMember(text, "loss", record.loss);
  AppendMember(text, "perplexity", Perplexity(record.loss));
  AppendMember(text, "learning_rate", record.learning_rate);
  AppendMember(text, "grad_norm", record.grad_norm);
  measured("step_seconds", record.step_seconds);
  measured("tokens_per_second", record.tokens_per_second);
  measured("flops_per_second", record.flops_per_second);
  measured("roof_fraction", record.roof_fraction);
  measured("seconds_compute", record.seconds_compute);
  measured("seconds_exposed_communication", record.seconds_exposed_communication);
  measured("seconds_bubble", record.seconds_bubble);
  measured("seconds_data", record.seconds_data);
  measured("seconds_checkpoint", record.seconds_checkpoint);
  AppendMember(text, "bad_steps", record.bad_steps);
  text += "}\n";
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

}  // namespace trireme::monitor
