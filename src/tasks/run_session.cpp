// RunSession: decides where a run begins or continues, and in which folder.
#include "run_session.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "root.hpp"
#include "trireme/app/batch_job.hpp"
#include "trireme/base/error.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/checkpoint/local.hpp"
#include "trireme/deck/json_text.hpp"
#include "trireme/hf/weights.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::tasks {

namespace {

namespace fs = std::filesystem;

// Run folder of a checkpoint: runs/a/checkpoints/step_00000100 -> runs/a; empty if there is none.
std::string RunFolderOf(const std::string& checkpoint) {
  const fs::path parent = fs::absolute(checkpoint).lexically_normal().parent_path();
  if (parent.filename() != "checkpoints") return {};
  const std::string folder = parent.parent_path().string();
  const std::string near = fs::path(folder).lexically_proximate(fs::current_path()).string();
  return near.starts_with("..") ? folder : near;  // the shorter form, for messages
}

bool SameFolder(const std::string& a, const std::string& b) {
  std::error_code error;
  return fs::equivalent(a, b, error) && !error;
}

std::string WithoutSlash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

// Restores the algorithms of the matrix products that the run began with (on the same kind of GPU)
// and the scales of fp8 products; other ones would round differently.
void ResumeProducts(const app::Device& device, const app::RunRecord& record) {
  if (device.libraries == nullptr) return;
  const bool scaled = device.libraries->SetScales(device.stream, record.fp8_scales);
  if (record.products.empty()) return;
  const bool taken = device.libraries->Adopt({record.products});
  if (taken && (scaled || !device.stream.fp8)) device.libraries->Seal();
}

// Prints below the watchdog's verdict from which step `folder` can be continued; nothing without a
// checkpoint. On the watchdog's thread.
void SayHowToGoOn(const std::string& folder) {
  std::string line;
  try {
    const std::vector<std::string> complete = checkpoint::Locate(folder).candidates;
    if (complete.empty()) return;
    const std::string name = fs::path(complete.front()).filename().string();  // step_00000300
    const std::int64_t step = std::stoll(name.substr(name.find_last_not_of("0123456789") + 1));
    line = fmt::format("  Go on from step {}: -r {}\n", report::WithThousands(step), folder);
  } catch (const std::exception&) {
    return;  // the verdict stands without it
  }
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace

RunSession::RunSession(app::Job& job)
    : request_(job.request),
      ranks_(job.ranks),
      world_(ranks_.World()),
      start_(job.start),
      folder_(request_.job.output) {
  world_.Together([&] {
    if (start_.weights_alone || request_.checkpoint.start_from.empty()) return;
    throw request_.deck.Complain("checkpoint.start_from", "begins a new run, but -r continues one",
                                 "Give one of them.");
  });
  if (!start_.candidates.empty()) checkpoint_ = start_.candidates.front();
  if (request_.line.resume.empty()) return;
  const std::string owner =
      Resumes() ? RunFolderOf(checkpoint_) : WithoutSlash(request_.line.resume);
  const bool branch = request_.job.output_given && !SameFolder(folder_, owner);
  continues_ = !owner.empty() && !branch;
  if (continues_) folder_ = owner;
}

bool RunSession::HasEnded(const Progress& progress) const {
  bool ended = false;  // whether the last record is there; in a branch, none is missing
  world_.Together([&] {
    if (progress.Finished() && world_.IsRoot()) ended = !continues_ || report::HasEnded(folder_);
  });
  ended = world_.Max(ended ? std::int64_t{1} : 0) == 1;
  if (!progress.Finished() || !ended) return false;
  if (world_.IsRoot()) {
    fmt::print("{}: step {} is the schedule's end already: nothing is left to do\n", checkpoint_,
               report::WithThousands(progress.step));
  }
  return true;
}

void RunSession::CheckRates(const train::Plan& plan) const {
  train::Schedule now = plan.training.options.schedule;
  const nlohmann::json keys = Record().json.value("schedule", nlohmann::json::object());
  if (now.decay != train::Decay::kWsd || !keys.is_object()) return;
  world_.Together([&] {
    std::string text = "[schedule]\n";
    for (const auto& [name, value] : keys.items()) {
      if (!value.is_string() || request_.schema->Find("schedule." + name) == nullptr) continue;
      text += fmt::format("{} = {}\n", name, value.get<std::string>());
    }
    const train::ScheduleOptions was = train::ReadSchedule(
        deck::Deck::Parse(*request_.schema, text, Record().path + ": schedule", {}));
    if (was.decay != train::Decay::kWsd) return;
    now.peak = 1;  // another peak is a change that is reported, and does not move the decay
    // Equal epochs are equal steps, although changed windows or samples left out count otherwise.
    const bool same = request_.schedule.steps == 0 && was.epochs == request_.schedule.epochs;
    // Checkpoints of older versions do not say how long their run was.
    const auto per_epoch = static_cast<double>(plan.StepsPerEpoch());
    const std::int64_t length =
        deck::WholeNumber(Record().json.value("schedule_steps", nlohmann::json()))
            .value_or(std::max(std::llround(was.epochs * per_epoch), 1LL));
    const train::Schedule then = train::MakeSchedule(was, 1, same ? now.steps : length);
    for (std::int64_t step = 1; step <= Record().step; ++step) {
      if (then.Rate(step) == now.Rate(step)) continue;
      throw InputError(
          fmt::format("{}: its step {} had {:.1f}% of the peak learning rate; in a run of {} with "
                      "this deck's [schedule] it would have had {:.1f}%",
                      checkpoint_, report::WithThousands(step), 100 * then.Rate(step),
                      report::Counted(now.steps, "step"), 100 * now.Rate(step)),
          fmt::format("With schedule.decay = wsd, name a checkpoint of step {} or before with -r, "
                      "or begin a new run with the weights (checkpoint.start_from).",
                      report::WithThousands(step - 1)));
    }
  });
}

void RunSession::CheckFolder() const {
  AtRoot(world_, [&] { report::CheckRunFolder(folder_, continues_); });
}

void RunSession::Lock() {
  AtRoot(world_, [&] { TakeLock(); });
}

void RunSession::TakeLock() {
  report::CheckRunFolder(folder_, continues_);
  std::error_code ignored;
  const bool is_new = !fs::exists(folder_, ignored);
  report::MakeRunFolder(folder_);
  lock_ = std::make_unique<app::RunLock>(folder_, app::ReadBatchJob(), is_new);
  // Another job may have written between the first look and the lock. PrepareRunFolder looks again.
  if (!continues_ || !Resumes()) return;
  const auto known = start_.damaged.size();
  const std::vector<std::string> now = checkpoint::Locate(request_.line.resume).candidates;
  if (now.size() > known && now[known] == checkpoint_) return;
  throw InputError(
      fmt::format("{}: another job has written or removed a checkpoint meanwhile", folder_),
      "Start again.");
}

// Refuses a canonical run with changed arithmetic: it could not give the promised bits.
void RunSession::CheckCanonical(const std::string& now) const {
  const std::string& recorded = Record().canonical;
  const std::string was = recorded.empty() ? "none" : recorded;
  if (was == now || was == "none" || now == "none") return;
  throw AgreedError(ExitCode::kBadInput,
                    fmt::format("{}: it was written by canonical arithmetic {}, this run has {}: "
                                "the bits would not be the same",
                                checkpoint_, was, now),
                    "Continue with the same run.canonical, run.canonical_leaf, run.precision and "
                    "instruction set, or with run.canonical = none.");
}

// Loads the state from the local checkpoint that the job starts from.
void RunSession::LoadLocal(train::TrainingState& state) {
  const nlohmann::json optimizer = Record().json.value("optimizer", nlohmann::json::object());
  const std::string average = deck::TextOf(optimizer, "average");
  const auto fill = [&](const char* file, const std::vector<kernels::StateBlock>& blocks) {
    bytes_from_afar_ += start_.local->Read({world_, ranks_.Hosts()}, file, blocks);
    app::StopIfAsked(ranks_);
  };
  try {
    state.Load(fill, std::strtod(average.c_str(), nullptr) > 0);
  } catch (const checkpoint::DamagedError& error) {
    const comm::ProcessGrid& grid = state.Grid();
    const std::string layout =
        app::LayoutChange(Record(), {{"ranks", world_.Size()},
                                     {"grid", comm::Describe(grid.Shape())},
                                     {"sharding", comm::NameOf(grid.Shards())}});
    throw checkpoint::DamagedError(
        error.Code(), layout.empty() ? error.what() : fmt::format("{} ({})", error.what(), layout));
  }
}

void RunSession::Load(const app::Device& device, const data::TokenFile& tokens,
                      const std::string& canonical, train::TrainingState& state) {
  const auto stop_if_asked = [&] { app::StopIfAsked(ranks_); };
  if (start_.record) {
    AtRoot(world_, [&] { app::CheckVocabulary(Record(), tokens); });
    if (StartsFromLocal()) {
      CheckCanonical(canonical);
      ResumeProducts(device, Record());
      LoadLocal(state);
    } else {
      checkpoint_ = app::ReadNewest(request_, world_, start_, [&](const std::string& checkpoint) {
        if (start_.weights_alone) {
          if (state.LoadWeights(checkpoint, stop_if_asked) && world_.IsRoot()) {
            SayAverages(checkpoint);
          }
          return;
        }
        CheckCanonical(canonical);
        ResumeProducts(device, Record());
        state.Load(checkpoint, stop_if_asked);
      });
    }
  }
  stop_if_asked();
}

void RunSession::RecordHangs(comm::Watchdog& watch) const {
  watch.WriteInto(folder_);
  watch.OnVerdict([folder = folder_](const comm::HangReport& report) {
    report::RecordEvent(folder, {.name = "hang",
                                 .step = report.step,
                                 .rank = report.rank,
                                 .host = report.host,
                                 .text = report.text});
    SayHowToGoOn(folder);
  });
}

void RunSession::Begin(std::int64_t step) {
  AtRoot(world_, [&] {
    for (std::size_t i = 0; continues_ && Resumes() && i < start_.damaged.size(); ++i) {
      const std::string& damaged = start_.damaged[i];
      start_.passed_over.push_back(
          fmt::format("{}: it is called {} now", damaged, checkpoint::SetAside(damaged)));
    }
    CountStart(step);
    report::PrepareRunFolder(folder_, continues_, request_.deck.Resolved());
    // Exporting a branch of an imported run takes the same files, so they are copied.
    if (!continues_ && Resumes()) hf::CopyRunPart(RunFolderOf(checkpoint_), folder_);
  });
}

// Counts starts at a step, so that a state which ends every session is not tried for ever. For a
// branch, the count also tells later sessions that it does not begin at step 0.
void RunSession::CountStart(std::int64_t step) {
  if (!continues_) {
    app::ForgetStarts(folder_);
    if (step > 0) app::CountStart(folder_, step);
    return;
  }
  const std::int64_t most = request_.checkpoint.max_restarts;
  starts_here_ = app::CountStart(folder_, step);
  if (most == 0 || starts_here_ <= most) return;
  throw RunError(
      fmt::format("{}: start {} in a row at step {}, without a checkpoint in between", folder_,
                  starts_here_, report::WithThousands(step)),
      "Find out what ends the run there. checkpoint.max_restarts = 0 sets no limit; removing "
      "restarts.json there begins the count anew.");
}

void RunSession::HoldLock(bool certain) const {
  if (lock_ == nullptr) return;
  std::string why;
  const app::RunLock::Standing standing = lock_->Look(&why);
  if (standing == app::RunLock::Standing::kMine) return;
  if (standing == app::RunLock::Standing::kUnknown) {
    if (!certain) return;
    throw RunError(why, "Nothing is written without it: another job may have taken the run over.");
  }
  std::error_code ignored;
  if (!fs::exists(folder_, ignored)) {
    throw RunError(folder_ + ": the run folder was removed or moved while the run went on",
                   "This job ends: its checkpoints were there. Put the folder back and continue "
                   "with -r, or begin anew.");
  }
  throw RunError(fmt::format("{}: its run.lock is not this job's any more", folder_),
                 "Another job has taken the run over, or someone has removed the lock. This job "
                 "ends, and writes no more into the folder.");
}

std::string RunSession::DescribeStart() const {
  if (!StartsFromLocal()) return checkpoint_;
  return fmt::format("the local checkpoint on the hosts, {} of it from other hosts,",
                     report::AsBytes(bytes_from_afar_));
}

}  // namespace trireme::tasks
