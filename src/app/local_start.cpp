// Start of a training job from a local checkpoint.
#include "local_start.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/checkpoint/local.hpp"
#include "trireme/deck/json_text.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::app {

namespace {

std::string Instead(const RunRecord& record, std::int64_t local_step) {
  const std::int64_t lost = local_step - record.step;
  return fmt::format("; the run folder's of step {} is taken{}", record.step,
                     lost > 0
                         ? fmt::format(", {} {} lost", lost, lost == 1 ? "step is" : "steps are")
                         : std::string());
}

// Collective. A local checkpoint that the records tell of and of which no file is left.
void SayLost(Job& job) {
  std::int64_t told = 0;
  job.World().Together([&] {
    if (!job.World().IsRoot()) return;
    told = report::LastCheckpoint(job.line->resume, "local checkpoint").value_or(0);
  });
  told = job.World().Max(told);
  if (told <= job.start.record->step) return;
  job.start.passed_over.push_back(
      fmt::format("the local checkpoint of step {}: it is on none of these hosts{}", told,
                  Instead(*job.start.record, told)));
}

}  // namespace

bool IsFirst(const Job& job, const std::string& path) {
  std::error_code error;
  const bool first = job.World().IsRoot() &&
                     std::filesystem::equivalent(path, job.start.candidates.front(), error) &&
                     !error;
  return job.World().Max(std::int64_t{first}) == 1;
}

RunRecord ReadFirst(const Job& job) {
  const std::string& path = job.start.candidates.front();
  const nlohmann::json run = checkpoint::ReadRun(job.World(), path);
  RunRecord record;
  job.World().Together([&] { record = ParseRunRecord(run, path + "/run.json"); });
  return record;
}

void LookForLocal(Job& job) {
  Start& start = job.start;
  const std::string& folder = job.options.checkpoint.local;
  if (job.options.job.task != Task::kTrain || folder.empty() || start.weights_alone ||
      !start.record) {
    return;
  }
  const nlohmann::json& newest = start.record->json;
  const std::string id = deck::TextOf(newest, kRunName);
  if (id.empty() || IsFirst(job, job.line->resume)) return;
  const checkpoint::LocalSearch search = checkpoint::FindLocal(
      {job.World(), job.runtime->Hosts()}, {.folder = folder, .id = id, .session = {}},
      {.step = start.record->step,
       .sequence = deck::WholeNumber(newest.value("sequence", nlohmann::json())).value_or(0),
       .session = deck::TextOf(newest, kSessionName)});
  for (const auto& [step, why] : search.passed_over) {
    start.passed_over.push_back(
        why + (search.found == nullptr && step > 0 ? Instead(*start.record, step) : ""));
  }
  if (search.found == nullptr && search.passed_over.empty()) SayLost(job);
  if (search.found == nullptr) return;
  job.World().Together([&] {
    RunRecord record = ParseRunRecord(
        search.found->Run(),
        fmt::format("the local checkpoint of step {}: run.json", search.found->Step()));
    RequireSameModel(*start.record, record);
    start.record = std::move(record);
  });
  start.local = search.found;
}

void LeaveLocal(Job& job, const std::string& why) {
  Start& start = job.start;
  const std::int64_t step = start.local->Step();
  start.local.reset();
  start.record = ReadFirst(job);
  start.passed_over.push_back(why + Instead(*start.record, step));
}

}  // namespace trireme::app
