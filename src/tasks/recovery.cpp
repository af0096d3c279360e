// Recovery: what is reported, what is restored, and when a run must end.
#include "recovery.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <filesystem>
#include <sstream>

#include "root.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/json.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/deck/json_text.hpp"

namespace trireme::tasks {

namespace {

constexpr const char* kMember = "safeguards";
constexpr std::size_t kMostItems = 1'000'000;  // upper limit for a list read from a file

// Parts of a GPU's state: a scheduled comparison takes one in turn, because it copies what it
// compares to the host. One before a checkpoint takes all, because that copies everything anyway.
constexpr std::int64_t kPartsOnGpu = 8;

std::string Describe(const train::Spike& spike, std::int64_t step) {
  return fmt::format(
      "step {}: the loss is {:.4f}, {:.1f} standard deviations of {:.4f} above the mean of {:.4f}",
      report::WithThousands(step), spike.loss, spike.score, spike.deviation, spike.mean);
}

// Serial. Complete checkpoints below a folder, newest first; empty if it cannot be read.
std::vector<std::string> Candidates(const std::string& folder) {
  try {
    return checkpoint::Locate(folder).candidates;
  } catch (const Error&) {
    return {};
  }
}

// Serial. The folder's checkpoint of `step`; empty: there is none.
std::string FindIn(const std::string& folder, std::int64_t step) {
  try {
    for (const std::string& candidate : checkpoint::Locate(folder).candidates) {
      if (checkpoint::ReadRun(candidate).value("step", std::int64_t{-1}) == step) return candidate;
    }
  } catch (const Error&) {
    return {};  // the folder is missing or its files are damaged
  }
  return {};
}

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

Recovery::Recovery(LoopParts& loop, CheckpointPolicy& checkpoints, const Safeguards& safeguards,
                   Returning returning)
    : loop_(loop),
      checkpoints_(checkpoints),
      returning_(std::move(returning)),
      safeguards_(safeguards),
      replicas_(loop.state) {}

void Recovery::AnswerFault(const train::Fault& fault) {
  const std::int64_t step = loop_.progress.step;
  const bool too_many = safeguards_.TakeBadStep();
  const std::string& host = Runtime().Hosts().Of(fault.rank);
  const std::string text = fault.Text(host);
  loop_.monitor->Happened(
      {.name = "bad step",
       .step = step,
       .rank = fault.rank,
       .host = host,
       .text = text,
       .numbers = {{"in_a_row", static_cast<double>(safeguards_.BadStepsInARow())}}});
  if (!too_many) {
    loop_.monitor->Warn(
        fmt::format("step {}: {}: its update is left out, {} of at most {} in a row",
                    report::WithThousands(step), text, safeguards_.BadStepsInARow(),
                    safeguards_.MaxBadSteps()));
    return;
  }
  const std::string row = fmt::format("; bad step {} in a row, with run.max_bad_steps = {}",
                                      safeguards_.BadStepsInARow(), safeguards_.MaxBadSteps());
  throw AgreedError(
      ExitCode::kFailed,
      fmt::format("step {}: {}{}", step, text, safeguards_.MaxBadSteps() > 0 ? row : ""),
      fault.Advice());
}

bool Recovery::GoesBack(const train::StepResult& result) {
  if (!result.fault && AnswerSpike(result.loss)) return true;
  return Comes(loop_.progress.step, Options().check_replicas_every) && Compare(false);
}

bool Recovery::AnswerSpike(double loss) {
  const std::optional<train::Spike> spike = safeguards_.TakeLoss(loss);
  if (!spike) return false;
  const std::int64_t& step = loop_.progress.step;
  const std::int64_t at = step;
  const std::string text = Describe(*spike, at);
  if (loop_.job.request.training.on_spike == train::OnSpike::kRollback) checkpoints_.Note();
  std::string why_not = safeguards_.WhyNot(), checkpoint;
  if (why_not.empty()) {
    checkpoint =
        FromRoot(Runtime().World(), [&] { return FindCheckpoint(*safeguards_.GoesBackTo()); });
    if (checkpoint.empty()) {
      why_not = fmt::format("the checkpoint of step {} is not there any more",
                            report::WithThousands(*safeguards_.GoesBackTo()));
    }
  }
  loop_.monitor->Warn(text);
  if (!checkpoint.empty()) GoBack(checkpoint);
  // Going back cut the records of later steps. The two events below come after that and stay.
  loop_.monitor->Happened({.name = "spike",
                           .step = at,
                           .text = why_not.empty() ? text : text + "; not gone back: " + why_not,
                           .numbers = {{"loss", spike->loss},
                                       {"score", spike->score},
                                       {"mean", spike->mean},
                                       {"deviation", spike->deviation}}});
  if (checkpoint.empty()) return false;
  const std::int64_t next_sample = loop_.data.Order().NextSample(step);
  const std::string back =
      fmt::format("back from step {} to {} of step {}, and on from there with sample {}",
                  report::WithThousands(at), checkpoint, report::WithThousands(step),
                  report::WithThousands(next_sample));
  loop_.monitor->Line(back);
  loop_.monitor->Happened({.name = "rollback",
                           .step = step,
                           .text = back,
                           .numbers = {{"from_step", static_cast<double>(at)},
                                       {"next_sample", static_cast<double>(next_sample)}}});
  return true;
}

bool Recovery::Compare(bool whole) {
  const std::int64_t every = Options().check_replicas_every;
  const std::int64_t step = loop_.progress.step;
  if (every == 0 || !replicas_.Active() || compared_at_ == step) return false;
  const std::int64_t parts = whole || !loop_.state.Stream().OnGpu() ? 1 : kPartsOnGpu;
  comm::Ledger& traffic = loop_.state.Grid().Traffic();
  const comm::Ledger steps_alone = traffic;
  const double start = Seconds();
  const std::vector<train::Corruption> found = replicas_.Look(step / every % parts, parts);
  comparison_seconds_ += Seconds() - start;
  ++comparisons_;
  traffic = steps_alone;
  if (found.empty()) {
    if (parts == 1) compared_at_ = step;
    return false;
  }
  AnswerCorruption(found);
  return true;
}

// Restores a checkpoint, or throws AgreedError (exit code 1) if that is impossible.
void Recovery::AnswerCorruption(const std::vector<train::Corruption>& found) {
  const comm::Hosts& hosts = Runtime().Hosts();
  const std::int64_t at = loop_.progress.step;
  const std::string text = train::Describe(found.front(), hosts);
  const int named = found.front().wrong.front();
  loop_.monitor->Happened(
      {.name = "corruption",
       .step = at,
       .rank = named,
       .host = hosts.Of(named),
       .text = text,
       .numbers = {{"ranks", static_cast<double>(found.front().wrong.size())},
                   {"copies", static_cast<double>(found.front().holders.size())}}});
  std::set<int> wrong;  // ranks that differ, in any tensor
  for (const train::Corruption& one : found) wrong.insert(one.wrong.begin(), one.wrong.end());
  const bool again =
      std::ranges::any_of(wrong, [this](int rank) { return corrupted_.contains(rank); });
  corrupted_.insert(wrong.begin(), wrong.end());
  checkpoints_.Settle();  // a checkpoint under way holds a state that was compared before it
  const std::vector<std::string> usable = CheckpointsToRestore();
  const bool restore = Options().on_corruption == checkpoint::OnCorruption::kRestore;
  if (restore && !again &&
      std::ranges::any_of(usable, [this](const auto& one) { return RestoreCheckpoint(one); })) {
    const std::int64_t step = loop_.progress.step;
    loop_.monitor->Warn(fmt::format("step {}: {}: back to the checkpoint of step {}",
                                    report::WithThousands(at), text, report::WithThousands(step)));
    loop_.monitor->Happened(
        {.name = "restore",
         .step = step,
         .text = fmt::format("back from step {} to the checkpoint of step {}", at, step)});
    return;
  }
  throw AgreedError(
      ExitCode::kFailed,
      fmt::format("step {}: {}{}", at, text,
                  again ? ", and a rank is named for the second time in this job" : ""),
      usable.empty()
          ? "Nothing was written, and there is no checkpoint of this session. Start again, without "
            "that host if it is named again."
          : fmt::format("Nothing more was written. The last checkpoint, compared before it was "
                        "written, is {}. Continue from it with -r, without that host if it is "
                        "named again.",
                        usable.front()));
}

// Collective. The checkpoints that may be restored, newest first: those of this session's steps and
// the one from which it began. Before that, the run may have trained on other windows.
std::vector<std::string> Recovery::CheckpointsToRestore() const {
  const comm::Communicator& world = Runtime().World();
  const RunSession& session = *loop_.session;
  std::vector<std::string> paths;
  if (world.IsRoot()) {
    for (const std::string& path : Candidates(session.Folder())) {
      try {
        const auto step = checkpoint::ReadRun(path).value("step", std::int64_t{-1});
        if (step >= loop_.progress.first) paths.push_back(path);
      } catch (const Error&) {
        continue;  // skip it: damaged
      }
    }
    if (session.Resumes() && std::ranges::find(paths, session.Checkpoint()) == paths.end()) {
      paths.push_back(session.Checkpoint());
    }
  }
  std::istringstream lines(world.Broadcast(fmt::format("{}", fmt::join(paths, "\n"))));
  std::vector<std::string> all;
  for (std::string path; std::getline(lines, path);) all.push_back(path);
  return all;
}

// Collective. Goes back to a checkpoint of this run: restores weights, moments and position. False
// if it is damaged or of a step with other windows; then the state must not be used.
bool Recovery::RestoreCheckpoint(const std::string& checkpoint) {
  try {
    const app::RunRecord record = LoadCheckpoint(checkpoint);
    // A checkpoint older than this session may belong to steps with other windows.
    const std::int64_t first = loop_.progress.first;
    const data::Sampler::Options& now = Windows();
    const bool windows = record.length.value_or(now.length) == now.length &&
                         record.stride.value_or(now.stride) == now.stride &&
                         record.batch.value_or(loop_.data.Batch()) == loop_.data.Batch();
    if (record.step < first && !windows) return false;
    Runtime().World().Together([&] { safeguards_.Restore(record); });
    // The checkpoint from which the session began may have other windows: use the session's origin.
    const bool begins = record.step == first || !record.origin;
    ReturnTo(record, begins ? now.origin : *record.origin);
    return true;
  } catch (const checkpoint::DamagedError&) {
    return false;
  }
}

// On rank 0. The checkpoint of `step` in this run's folder or in the run that this one branched
// off; if it was removed, the checkpoint that this session continued. Empty: none of these.
std::string Recovery::FindCheckpoint(std::int64_t step) const {
  const RunSession& session = *loop_.session;
  if (std::string found = FindIn(session.Folder(), step); !found.empty()) return found;
  if (!session.Resumes()) return {};
  const std::string beside = std::filesystem::path(session.Checkpoint()).parent_path().string();
  if (std::string found = FindIn(beside, step); !found.empty()) return found;
  return FindIn(session.Checkpoint(), session.Record().step);
}

void Recovery::GoBack(const std::string& checkpoint) {
  const std::int64_t next_sample = loop_.data.Order().NextSample(loop_.progress.step);
  try {
    const app::RunRecord record = LoadCheckpoint(checkpoint);
    Runtime().World().Together([&] { safeguards_.GoBack(record, next_sample); });
    ReturnTo(record, OriginAfterGoingBack(record, next_sample));
  } catch (const checkpoint::DamagedError& damage) {
    throw AgreedError(ExitCode::kFailed, damage.what(),
                      "The run was going back to it after a spike of the loss. -r goes on from the "
                      "checkpoint before it.");
  }
}

app::RunRecord Recovery::LoadCheckpoint(const std::string& checkpoint) {
  loop_.progress.watch(comm::Phase::kCheckpoint);
  const comm::Communicator& world = Runtime().World();
  comm::Ledger& traffic = loop_.state.Grid().Traffic();
  const comm::Ledger steps_alone = traffic;
  const nlohmann::json run = checkpoint::ReadRun(world, checkpoint);
  app::RunRecord record;
  world.Together([&] { record = app::ParseRunRecord(run, checkpoint + "/run.json"); });
  loop_.state.Load(checkpoint);
  traffic = steps_alone;
  return record;
}

// Where steps go on after going back to the checkpoint of `record`: the counts of tokens seen are
// the checkpoint's, but the places in the files are those reached since, so no text is read again.
data::Origin Recovery::OriginAfterGoingBack(const app::RunRecord& record,
                                            std::int64_t next_sample) const {
  data::Origin origin{.step = record.step,
                      .sample = next_sample,
                      .targets = record.origin ? record.origin->targets : 0};
  if (loop_.data.Files().empty()) return origin;
  const std::vector<data::SourcePlace> reached = loop_.data.Samples().Places(loop_.progress.step);
  std::vector<data::SourcePlace> then = Windows().origin.sources;
  if (record.step != loop_.progress.first && record.origin) then = record.origin->sources;
  then.resize(reached.size());
  for (std::size_t i = 0; i < reached.size(); ++i) {
    origin.sources.push_back({reached[i].windows, then[i].targets});
  }
  return origin;
}

// Restores everything that belongs to a checkpoint's state. origin: where the steps go on.
void Recovery::ReturnTo(const app::RunRecord& record, const data::Origin& origin) {
  checkpoints_.ReturnTo(record);
  returning_(record);
  loop_.step.Move(origin);
  loop_.progress.step = record.step;
  loop_.progress.validation_due = false;
  compared_at_ = -1;
  loop_.monitor->GoBack(record.step, checkpoints_.Best().Decider().since);
}

std::vector<std::string> Recovery::Summary() const {
  std::vector<std::string> lines = {safeguards_.Summary(), ""};
  if (comparisons_ > 0) {
    lines.back() = fmt::format("replicas compared {}, in {:.1f} ms each",
                               report::Counted(comparisons_, "time"),
                               1e3 * comparison_seconds_ / static_cast<double>(comparisons_));
  }
  return lines;
}

}  // namespace trireme::tasks
