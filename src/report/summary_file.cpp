// summary.json: one JSON object about a training session; the comparison with a prediction.
#include <fmt/format.h>
#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>

#include "metrics_file.hpp"
#include "trireme/base/json.hpp"
#include "trireme/report/append_file.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::report {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;
constexpr std::ptrdiff_t kMostRanks = 1024;  // up to this many ranks, all are listed
constexpr std::ptrdiff_t kShownRanks = 64;   // otherwise this many at either end

Json OrNull(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

Json OrNull(const std::string& text) { return text.empty() ? Json() : Json(text); }

template <typename Value>
Json Object(const std::vector<std::pair<std::string, Value>>& members) {
  Json json = Json::object();
  for (const auto& [name, value] : members) json[name] = value;
  return json;
}

void AddFacts(Json& json, const Summary& summary) {
  const RunFacts& facts = summary.facts;
  json["format"] = kFormat;
  json["version"] = facts.version;
  json["commit"] = facts.commit;
  json["started"] = facts.started;
  json["ended"] = summary.ended;
  json["outcome"] = summary.done ? "done" : "stopped";
  json["reason"] = OrNull(summary.reason);
  json["first_step"] = facts.first_step;
  json["step"] = summary.last.step;
  json["total_steps"] = facts.total_steps;
  json["epoch"] = summary.last.epoch;
  json["tokens"] = summary.last.tokens;
  json["bad_steps"] = summary.last.bad_steps;
  json["ranks"] = facts.ranks;
  json["hosts"] = facts.hosts;
  json["threads"] = facts.threads;
  json["device"] = facts.device;
  json["precision"] = facts.precision;
  json["grid"] = facts.grid;
  json["model"] = facts.model;
  json["data"] = facts.data;
  json["parameters"] = facts.parameters;
}

Json LossesOf(const Summary& summary) {
  const LossFacts& losses = summary.losses;
  Json json;
  json["first"] = OrNull(losses.first);
  json["best_valid"] = OrNull(losses.best_valid);
  json["best_valid_step"] = losses.best_valid ? Json(losses.best_valid_step) : Json();
  json["last"] = OrNull(losses.last);
  json["last_valid"] = OrNull(losses.last_valid);
  json["test"] = OrNull(losses.test);
  json["entropy_floor"] = OrNull(summary.facts.entropy_floor);
  return json;
}

Json TimeOf(const TimeFacts& time) {
  return {{"elapsed", time.elapsed},
          {"compute", time.compute},
          {"exposed_communication", time.exposed_communication},
          {"bubble", time.bubble},
          {"data", time.data},
          {"checkpoint", time.checkpoint},
          {"validation", time.validation},
          {"other", time.other}};
}

Json SpeedOf(const Summary& summary) {
  return {{"tokens_per_second", summary.last.tokens_per_second},
          {"flops_per_second", summary.last.flops_per_second},
          {"roof_fraction", summary.last.roof_fraction},
          {"roof_flops", summary.facts.roof_flops}};
}

Json MemoryOf(const Summary& summary) {
  Json planned = Json::array();
  for (const auto& [term, bytes] : summary.facts.planned_memory) {
    planned.push_back({{"term", term}, {"bytes", bytes}});
  }
  Json ranks = Json::array();
  for (const RankUse& rank : summary.ranks) {
    ranks.push_back({{"rank", rank.rank},
                     {"host", rank.host},
                     {"pipeline", rank.pipeline},
                     {"data", rank.data},
                     {"context", rank.context},
                     {"tensor", rank.tensor},
                     {"planned_bytes", rank.planned_bytes},
                     {"used_bytes", rank.used_bytes},
                     {"program_bytes", rank.program_bytes},
                     {"writer_bytes", rank.writer_bytes},
                     {"others_bytes", rank.others_bytes},
                     {"seconds_compute", rank.seconds_compute}});
  }
  return {{"planned", planned}, {"ranks", ranks}, {"ranks_left_out", summary.ranks_left_out}};
}

Json TrafficOf(const std::vector<TrafficRow>& rows) {
  Json traffic = Json::array();
  for (const TrafficRow& row : rows) {
    traffic.push_back({{"group", row.group},
                       {"transfer", row.transfer},
                       {"ranks", row.ranks},
                       {"calls", row.calls},
                       {"bytes", row.bytes},
                       {"seconds_waited", row.seconds_waited},
                       {"longest_waited", row.longest_waited},
                       {"seconds_hidden", row.seconds_hidden}});
  }
  return traffic;
}

Json EnergyOf(const Energy& energy) {
  if (!energy.not_available.empty()) return {{"not_available", energy.not_available}};
  Json json = Object(energy.numbers);
  for (const auto& [name, text] : energy.texts) json[name] = text;
  return json;
}

Json ComparisonOf(const Comparison& comparison) {
  if (!comparison.not_available.empty()) return {{"not_available", comparison.not_available}};
  Json terms = Json::array();
  for (const Comparison::Term& term : comparison.terms) {
    terms.push_back(
        {{"term", term.name}, {"predicted_seconds", term.predicted}, {"seconds", term.actual}});
  }
  return {{"machine", comparison.machine},
          {"terms", terms},
          {"planned_bytes", comparison.planned_bytes},
          {"used_bytes", comparison.used_bytes}};
}

Json PreflightOf(const PreflightFacts& preflight) {
  Json warnings = Json::array();
  for (const auto& [kind, text] : preflight.warnings) {
    warnings.push_back({{"kind", kind}, {"text", text}});
  }
  return {
      {"seconds", preflight.seconds}, {"facts", Object(preflight.facts)}, {"warnings", warnings}};
}

Json FilesOf(const Summary& summary, const std::string& folder) {
  Json files = Json::object();
  for (const auto& [name, path] : summary.files) {
    const std::string inside = std::filesystem::path(path).lexically_relative(folder).string();
    const bool outside = inside.empty() || inside == "." || inside.starts_with("..");
    files[name] = outside ? path : inside;
  }
  return files;
}

}  // namespace

std::string ToJson(const Summary& summary, const std::string& folder) {
  Json json;
  AddFacts(json, summary);
  json["losses"] = LossesOf(summary);
  json["samples"] = summary.samples;
  json["time"] = TimeOf(summary.time);
  json["speed"] = SpeedOf(summary);
  json["memory"] = MemoryOf(summary);
  json["traffic"] = TrafficOf(summary.traffic);
  json["gathers"] = {{"count", summary.gathers.count}, {"ready", summary.gathers.ready}};
  json["predicted"] = ComparisonOf(summary.comparison);
  json["energy"] = EnergyOf(summary.energy);
  json["preflight"] = PreflightOf(summary.facts.preflight);
  if (!summary.facts.gpu_transfers.empty()) {
    json["gpu_transfers"] = Object(summary.facts.gpu_transfers);
  }
  if (const Staging& staging = summary.staging; staging.files > 0) {
    json["staging"] = {{"folder", staging.folder},
                       {"files", staging.files},
                       {"bytes", staging.bytes},
                       {"nodes", staging.nodes},
                       {"seconds", staging.seconds}};
  }
  json["sources"] = Object(summary.last.sources);
  json["files"] = FilesOf(summary, folder);
  json["deck"] = Object(summary.facts.deck);
  json["deck_given"] = summary.facts.deck_given;
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

void LeaveOutRanks(Summary& summary) {
  std::vector<RankUse>& ranks = summary.ranks;
  if (std::ssize(ranks) <= kMostRanks) return;
  summary.ranks_left_out = std::ssize(ranks) - 2 * kShownRanks;
  std::ranges::stable_sort(
      ranks, [](const RankUse& a, const RankUse& b) { return a.used_bytes > b.used_bytes; });
  ranks.erase(ranks.begin() + kShownRanks, ranks.end() - kShownRanks);
}

SummaryFile::SummaryFile(const std::string& folder, bool fresh) : folder_(folder) {
  std::error_code ignored;
  // If this session is killed, the summary of an earlier session must not pass for its own.
  std::filesystem::remove(folder + "/summary.json", ignored);
  if (!fresh) return;
  for (const char* name : {"trace.json.gz", "report.html"}) {
    std::filesystem::remove(folder + "/" + name, ignored);
  }
}

void SummaryFile::Done(const Summary& summary) {
  WriteWhole(folder_ + "/summary.json", ToJson(summary, folder_));
}

// ComparisonText: predicted and actual step time, term by term.

static std::string SecondsField(double seconds) {
  return seconds < 1 ? fmt::format("{:.3g} ms", 1e3 * seconds) : fmt::format("{:.4g} s", seconds);
}

static std::string RatioField(double predicted, double actual) {
  return actual > 0 && predicted > 0 ? fmt::format("{:.2f}", predicted / actual) : "-";
}

std::string ComparisonText(const Comparison& comparison) {
  if (!comparison.not_available.empty()) {
    return fmt::format("{:<8}{}", "predict", "not compared: " + comparison.not_available);
  }
  constexpr double kShown = 0.002;  // share of a step; shorter terms are left out
  std::string text = fmt::format("{:<8}by {}\n{:<8}{:<22}{:>12}{:>12}{:>8}", "predict",
                                 comparison.machine, "", "a step", "predicted", "actual", "ratio");
  double step = 0;
  for (const Comparison::Term& term : comparison.terms) step = std::max(step, term.actual);
  for (const Comparison::Term& term : comparison.terms) {
    if (std::max(term.predicted, term.actual) < kShown * step) continue;
    text +=
        fmt::format("\n{:<8}{:<22}{:>12}{:>12}{:>8}", "", term.name, SecondsField(term.predicted),
                    SecondsField(term.actual), RatioField(term.predicted, term.actual));
  }
  return text + fmt::format("\n{:<8}{:<22}{:>12}{:>12}{:>8}", "", "memory, largest rank",
                            AsBytes(comparison.planned_bytes), AsBytes(comparison.used_bytes),
                            RatioField(static_cast<double>(comparison.planned_bytes),
                                       static_cast<double>(comparison.used_bytes)));
}

}  // namespace trireme::report
