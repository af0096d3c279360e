// Safeguards: counts of steps that went wrong, and how run.json stores them.
#include "safeguards.hpp"

#include <fmt/format.h>

#include "trireme/base/error.hpp"
#include "trireme/deck/json_text.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::tasks {

namespace {
constexpr const char* kMember = "safeguards";
constexpr std::size_t kMostItems = 1'000'000;  // upper limit for a list read from a file
}  // namespace

Safeguards::Safeguards(const train::SafeguardOptions& options)
    : options_(options), losses_(options.spike_window, options.spike_threshold) {}

bool Safeguards::TakeBadStep() {
  ++bad_steps_;
  return ++bad_in_a_row_ > options_.max_bad_steps;
}

std::optional<train::Spike> Safeguards::TakeLoss(double loss) {
  bad_in_a_row_ = 0;
  std::optional<train::Spike> spike = losses_.Take(loss);
  if (spike) ++spikes_;
  return spike;
}

void Safeguards::HaveWritten(std::int64_t step) {
  if (goes_back_to_ == step) return;
  goes_back_to_ = step;
  rollbacks_to_it_ = 0;
}

std::string Safeguards::WhyNot() const {
  if (options_.on_spike == train::OnSpike::kReport) return "run.on_spike = report";
  if (!goes_back_to_) return "there is no checkpoint to go back to";
  if (rollbacks_to_it_ < options_.max_rollbacks) return {};
  return fmt::format("run.max_rollbacks = {} to the checkpoint of step {}", options_.max_rollbacks,
                     report::WithThousands(*goes_back_to_));
}

void Safeguards::GoBack(const app::RunRecord& record, std::int64_t next_sample) {
  RestoreLosses(record);
  ++rollbacks_;
  ++rollbacks_to_it_;
  if (!skipped_.empty() && skipped_.back().step == record.step) {
    skipped_.back().to = next_sample;
  } else {
    skipped_.push_back({record.step, record.origin ? record.origin->sample : 0, next_sample});
  }
}

nlohmann::json Safeguards::Json(bool stop_only) const {
  nlohmann::json json = {{"bad_steps", bad_steps_},
                         {"bad_steps_in_a_row", bad_in_a_row_},
                         {"spikes", spikes_},
                         {"rollbacks", rollbacks_},
                         {"losses", losses_.Losses()}};
  if (stop_only) {
    json["goes_back_to"] = goes_back_to_ ? nlohmann::json(*goes_back_to_) : nlohmann::json();
    json["rollbacks_to_it"] = rollbacks_to_it_;
  }
  nlohmann::json skipped = nlohmann::json::array();
  for (const Skipped& one : skipped_) {
    skipped.push_back({{"step", one.step}, {"from_sample", one.from}, {"to_sample", one.to}});
  }
  json["skipped"] = std::move(skipped);
  return json;
}

// Restores losses and bad steps in a row; checkpoints of earlier versions have neither.
void Safeguards::RestoreLosses(const app::RunRecord& record) {
  bad_in_a_row_ = 0;
  losses_.Restore({});
  const deck::JsonObject run(record.json, record.path);
  if (!run.Has(kMember)) return;
  const deck::JsonObject json = run.Object(kMember);
  bad_in_a_row_ = json.Integer("bad_steps_in_a_row");
  const nlohmann::json& list = json.List("losses");
  std::vector<double> losses;
  for (const nlohmann::json& loss : list) {
    if (!loss.is_number() || losses.size() == kMostItems) {
      throw InputError(
          fmt::format("{}: losses: numbers expected, {} found", json.Where(), deck::Brief(loss)));
    }
    losses.push_back(loss.get<double>());
  }
  losses_.Restore(losses);
}

void Safeguards::Restore(const app::RunRecord& record) {
  RestoreLosses(record);
  goes_back_to_ = record.step;
  const deck::JsonObject run(record.json, record.path);
  if (!run.Has(kMember)) return;
  const deck::JsonObject json = run.Object(kMember);
  bad_steps_ = json.Integer("bad_steps");
  spikes_ = json.Integer("spikes");
  rollbacks_ = json.Integer("rollbacks");
  if (json.Has("goes_back_to")) {
    goes_back_to_.reset();
    const bool none = record.json.at(kMember).at("goes_back_to").is_null();
    if (!none) goes_back_to_ = json.Integer("goes_back_to", 0, record.step);
    rollbacks_to_it_ = json.Integer("rollbacks_to_it");
  }
  skipped_.clear();
  for (const nlohmann::json& item : json.List("skipped")) {
    const deck::JsonObject one(item, json.Where() + ": skipped");
    skipped_.push_back({one.Integer("step"), one.Integer("from_sample"), one.Integer("to_sample")});
  }
}

std::string Safeguards::Summary() const {
  std::string text;
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : "; ") + part; };
  if (bad_steps_ > 0) add(report::Counted(bad_steps_, "bad step") + " without an update");
  if (spikes_ > 0) add(report::Counted(spikes_, "spike") + " of the loss");
  if (rollbacks_ > 0) {
    std::int64_t samples = 0;
    for (const Skipped& one : skipped_) samples += one.to - one.from;
    add(fmt::format("{}, {} left out", report::Counted(rollbacks_, "rollback"),
                    report::Counted(samples, "sample")));
  }
  return text;
}

// SlowestRank: pipeline stages have different work, so a rank is compared with its own stage only.

Slowest SlowestRank(const comm::ProcessGrid& grid, double seconds) {
  const comm::Communicator& world = grid.World();
  const auto stage = static_cast<std::size_t>(grid.Coordinates().pipeline);
  const int stages = grid.Shape().pipeline;
  std::vector<double> means(static_cast<std::size_t>(stages));
  const int ranks = grid.Shape().Ranks() / stages;
  means[stage] = seconds / ranks;
  world.Sum(means);
  const double mean = means[stage];
  const double ratio = mean > 0 ? seconds / mean : 1;
  const bool slowest = ratio >= world.Max(ratio);
  Slowest result;
  result.rank = static_cast<int>(world.Min(std::int64_t{slowest ? world.Rank() : world.Size()}));
  std::vector<double> facts = {0, 0};
  if (world.Rank() == result.rank) facts = {seconds, mean};
  world.Sum(facts);
  result.seconds = facts[0];
  result.mean = facts[1];
  return result;
}

}  // namespace trireme::tasks
