// Timeline: its window of steps, the comparison of clocks before and after it, and sending the
// slices to rank 0, one rank's at a time.
#include "timeline.hpp"

#include <fmt/format.h>
#include <algorithm>

#include "trireme/base/clock.hpp"
#include "trireme/base/program.hpp"
#include "trireme/device/activities.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/device/trace_file.hpp"

namespace trireme::tasks {

namespace {

constexpr double kMicro = 1e6;
constexpr int kSummaryTag = 1, kSlicesTag = 2, kKernelsTag = 3, kTextsTag = 4;

std::string Steps(std::int64_t first, std::int64_t last) {
  return first == last ? fmt::format("step {}", report::WithThousands(first))
                       : fmt::format("steps {} to {}", report::WithThousands(first),
                                     report::WithThousands(last));
}

constexpr std::size_t kWhy = 0, kLibrary = 1, kFirstName = 2;  // indices into RankTexts

// What a rank sends before its slices, as raw bytes.
struct RankSummary {
  comm::ClockComparison first, last;
  double gpu_clock_error = 0;
  std::int64_t slices = 0, left_out = 0, first_step_left_out = 0;
  double kernel_clock_error = 0;
  std::int64_t kernels = 0, kernels_left_out = 0, kernels_first_step_left_out = 0;
};

RankSummary SummaryOf(const device::Recorder& recorder, const comm::ClockComparison& first,
                      const comm::ClockComparison& last) {
  const device::Recorder::Kernels& kernels = recorder.AllKernels();
  return {first,
          last,
          recorder.GpuClockError(),
          std::ssize(recorder.Slices()),
          recorder.LeftOut(),
          recorder.FirstStepLeftOut(),
          kernels.clock_error,
          std::ssize(kernels.all),
          kernels.left_out,
          kernels.first_step_left_out};
}

// A rank's texts: why its kernels are not told apart (empty: they are), library, kernel names.
using RankTexts = std::vector<std::string>;

RankTexts TextsOf(const device::Recorder& recorder, const std::string& why) {
  const device::Recorder::Kernels& kernels = recorder.AllKernels();
  RankTexts texts = {why, kernels.library};
  texts.insert(texts.end(), kernels.names.begin(), kernels.names.end());
  return texts;
}

}  // namespace

// Rank 0's part of a timeline: the file, and facts about each rank besides its slices.
class TimelineFile {
 public:
  // origin: reading of rank 0's clock that is the file's time zero.
  TimelineFile(const LoopParts& loop, const std::string& path, double origin)
      : loop_(loop), origin_(origin), file_(path) {}

  // Adds everything that one rank recorded.
  void Add(int rank, const RankSummary& summary, std::vector<device::Slice> slices,
           std::vector<device::Kernel> kernels, const RankTexts& texts) {
    const double error_here = std::max(summary.first.error, summary.last.error);
    count += summary.slices;
    kernel_count += summary.kernels;
    clock_error = std::max(clock_error, error_here);
    gpu_clock_error_ = std::max(gpu_clock_error_, summary.gpu_clock_error);
    kernel_clock_error_ = std::max(kernel_clock_error_, summary.kernel_clock_error);
    if (why_no_kernels.empty() && !texts[kWhy].empty()) {
      why_no_kernels = fmt::format("rank {}: {}", rank, texts[kWhy]);
    }
    if (library_.empty()) library_ = texts[kLibrary];
    clocks_.push_back({{"rank", rank},
                       {"offset_us", kMicro * summary.first.offset},
                       {"drift_us_per_second", kMicro * comm::Drift(summary.first, summary.last)},
                       {"error_us", kMicro * error_here}});
    if (summary.left_out > 0) {
      left_out.push_back({{"rank", rank},
                          {"slices", summary.left_out},
                          {"from_step", summary.first_step_left_out}});
    }
    if (summary.kernels_left_out > 0) {
      kernels_left_out.push_back({{"rank", rank},
                                  {"kernels", summary.kernels_left_out},
                                  {"from_step", summary.kernels_first_step_left_out}});
    }
    const comm::GridShape& shape = loop_.state.Grid().Shape();
    const device::RankFacts facts = {
        .rank = rank,
        .host = loop_.job.ranks.Hosts().Of(rank),
        .group = [](int group) { return NameOf(static_cast<comm::Group>(group)); },
        .transfer = [](int each) { return NameOf(static_cast<comm::Transfer>(each)); },
        .peer = [&](const device::Slice& slice) { return PeerOf(slice, rank, shape); },
        .aligned =
            [&](double seconds) {
              return comm::Aligned(seconds, summary.first, summary.last) - origin_;
            }};
    file_.Add(facts, std::move(slices));
    file_.Add(facts, std::move(kernels), {texts.begin() + kFirstName, texts.end()});
  }

  // Completes the file with otherData: `other` and more members. Sets `error` to the first failure.
  void Place(nlohmann::json other) {
    other["clock_error_us"] = kMicro * clock_error;
    if (loop_.job.device.stream.OnGpu()) {
      other["gpu_clock_error_us"] = kMicro * gpu_clock_error_;
      nlohmann::json& kernels = other["kernels"];
      kernels = {{"count", kernel_count}, {"left_out", kernels_left_out}};
      if (!why_no_kernels.empty()) kernels["why_not"] = why_no_kernels;
      if (!library_.empty()) {
        kernels["library"] = library_;
        kernels["clock_error_us"] = kMicro * kernel_clock_error_;
      }
    }
    other["clocks"] = clocks_;
    other["slices"] = count;
    other["slices_left_out"] = left_out;
    error = file_.Place(other);
  }

  std::error_code error;
  std::int64_t count = 0, kernel_count = 0;
  double clock_error = 0;
  std::string why_no_kernels;  // reason, with a rank's number; empty: they are recorded
  // Ranks that ran out of room for slices or for kernels.
  nlohmann::json left_out = nlohmann::json::array(), kernels_left_out = nlohmann::json::array();

 private:
  const LoopParts& loop_;
  double origin_;
  device::TraceFile file_;
  double gpu_clock_error_ = 0, kernel_clock_error_ = 0;
  nlohmann::json clocks_ = nlohmann::json::array();
  std::string library_;
};

Timeline::Timeline(LoopParts& loop) : loop_(loop) {
  const report::StepWindow& window = Window();
  const std::int64_t step = loop.progress.step, total = loop.progress.last;
  const bool beyond = window.first > total, before = window.last <= step;
  done_ = window.None() || beyond || before;
  const std::string key = fmt::format("monitor.trace_steps = {}-{}", window.first, window.last);
  if (!window.None() && beyond) {
    loop_.monitor->Warn(fmt::format("{} lies beyond the last step, {}: there will be no timeline",
                                    key, report::WithThousands(total)));
  } else if (!window.None() && before) {
    loop_.monitor->Line(fmt::format("{} lies before step {}: no new timeline", key,
                                    report::WithThousands(step + 1)));
  }
  if (done_) return;
  group_ = loop.job.ranks.World().Duplicate();
  ranks_ = TracedRanks(Grid().Shape());
}

Timeline::~Timeline() { Grid().Traffic().TraceInto(nullptr); }

bool Timeline::Mine() const { return std::ranges::binary_search(ranks_, group_.Rank()); }

std::int64_t Timeline::MostSlices() const {
  return std::min(kMostSlicesOfARank, kMostSlices / std::ssize(ranks_));
}

void Timeline::BeginStep(std::int64_t step) {
  if (done_ || step < Window().first) return;
  if (seen_ == 0) Begin(step);
  seen_ = step;
}

void Timeline::EndStep(std::int64_t step) {
  if (!done_ && seen_ > 0 && step >= Window().last) Write({});
}

void Timeline::End(const std::string& why) {
  if (done_) return;
  if (seen_ > 0) return Write(why);
  done_ = true;
  loop_.monitor->Line(
      fmt::format("no timeline: {} before step {}, the first of monitor.trace_steps", why,
                  report::WithThousands(Window().first)));
}

device::MaybeActivities Timeline::TellKernels() const {
  if (!Mine() || !Stream().OnGpu()) return {};
  if (!loop_.job.request.monitor.trace_kernels) return {nullptr, "monitor.trace_kernels = no"};
  device::Synchronise(Stream());
  return device::RecordActivities(Stream(), MostSlices());
}

void Timeline::Begin(std::int64_t step) {
  begun_at_ = step;
  device::MaybeActivities kernels = TellKernels();
  no_kernels_ = kernels.why;
  group_.Barrier();  // so that no rank's first step includes another's last one
  origin_ = Seconds();
  first_ = comm::CompareClocks(group_, ranks_, Seconds);
  group_.Barrier();
  if (!Mine()) return;
  recorder_ =
      std::make_unique<device::Recorder>(MostSlices(), Stream(), std::move(kernels.activities));
  Grid().TraceInto(recorder_.get());
}

void Timeline::Write(const std::string& why) {
  done_ = true;
  loop_.progress.watch(comm::Phase::kCheckpoint);
  device::Synchronise(Stream());
  Grid().TraceInto(nullptr);
  if (recorder_) recorder_->Finish();
  group_.Barrier();
  const comm::ClockComparison last = comm::CompareClocks(group_, ranks_, Seconds);
  if (group_.IsRoot()) {
    Collect(last, why);
  } else if (recorder_) {
    Send(last);
  }
  recorder_.reset();
  group_.Barrier();  // so that the next step does not include the writing
}

void Timeline::Send(const comm::ClockComparison& last) const {
  const RankSummary mine = SummaryOf(*recorder_, first_, last);
  const auto send = [&](const auto& list, int tag) {
    const auto bytes = std::as_bytes(std::span(list));
    MPI_Send(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, 0, tag, group_.Handle());
  };
  send(std::span(&mine, 1), kSummaryTag);
  send(recorder_->Slices(), kSlicesTag);
  send(recorder_->AllKernels().all, kKernelsTag);
  // MessagePack takes any bytes, as a library's message may have; JSON takes UTF-8 alone.
  send(nlohmann::json::to_msgpack(TextsOf(*recorder_, no_kernels_)), kTextsTag);
}

void Timeline::Receive(int rank, TimelineFile& file) const {
  const auto receive = [&]<typename List>(List list, int tag) {
    MPI_Status status;
    int bytes = 0;
    MPI_Probe(rank, tag, group_.Handle(), &status);
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    list.resize(static_cast<std::size_t>(bytes) / sizeof(typename List::value_type));
    MPI_Recv(list.data(), bytes, MPI_BYTE, rank, tag, group_.Handle(), MPI_STATUS_IGNORE);
    return list;
  };
  const RankSummary summary = receive(std::vector<RankSummary>(), kSummaryTag).front();
  auto slices = receive(std::vector<device::Slice>(), kSlicesTag);
  auto kernels = receive(std::vector<device::Kernel>(), kKernelsTag);
  file.Add(rank, summary, std::move(slices), std::move(kernels),
           nlohmann::json::from_msgpack(receive(std::vector<std::uint8_t>(), kTextsTag))
               .get<RankTexts>());
}

// On rank 0. If writing fails, this is reported and training goes on.
void Timeline::Collect(const comm::ClockComparison& last, const std::string& why) {
  const double start = Seconds();
  TimelineFile file(loop_, Path(), origin_);
  for (const int rank : ranks_) {
    if (rank == 0) {
      const auto slices = recorder_->Slices();
      file.Add(0, SummaryOf(*recorder_, first_, last), {slices.begin(), slices.end()},
               recorder_->AllKernels().all, TextsOf(*recorder_, no_kernels_));
      continue;
    }
    Receive(rank, file);
  }
  const parallel::PipelineShape& stages = loop_.state.Net().Tasks().Stages().Shape();
  nlohmann::json other = {{"program", "Trireme " + Version()},
                          {"grid", comm::Describe(Grid().Shape())},
                          {"stages", stages.stages},
                          {"schedule", parallel::NameOf(stages.kind)},
                          {"chunks", stages.chunks},
                          {"micro_batches", stages.micro_batches},
                          {"device", device::NameOf(Stream().Where())}};
  if (Stream().OnGpu()) {
    other["gpu"] =
        "slices of the thread GPU are times between events in its queue; the steps of a recorded "
        "graph (run.graphs) are one slice each";
  }
  other["asked"] = {Window().first, Window().last};
  other["steps"] = {begun_at_, seen_};
  other["ranks"] = group_.Size();
  other["ranks_recorded"] = ranks_;
  if (!why.empty()) other["ended_early"] = why;
  file.Place(std::move(other));
  Say(file, why, Seconds() - start);
}

void Timeline::Say(const TimelineFile& file, const std::string& why, double seconds) {
  report::Monitor& monitor = *loop_.monitor;
  const std::string steps = Steps(begun_at_, seen_);
  if (file.error) {
    monitor.Warn(fmt::format("the timeline of {} was not written: {}: {}; training goes on", steps,
                             Path(), file.error.message()));
    return;
  }
  written_ = true;
  std::string text = fmt::format(
      "timeline {} of {}{}: {}, {} slices in {:.1f} s; clocks within {:.1f} us", steps,
      report::Counted(std::ssize(ranks_), "rank"),
      std::ssize(ranks_) < group_.Size() ? fmt::format(" out of {}", group_.Size()) : "", Path(),
      report::WithThousands(file.count), seconds, kMicro * file.clock_error);
  if (file.kernel_count > 0) {
    text += fmt::format("; {} kernels and copies", report::WithThousands(file.kernel_count));
  }
  if (!why.empty()) {
    text += fmt::format("; {} before step {}, the last of monitor.trace_steps", why,
                        report::WithThousands(Window().last));
  }
  monitor.Line(text);
  monitor.Happened({.name = "timeline",
                    .step = seen_,
                    .text = text,
                    .numbers = {{"clock_error_us", kMicro * file.clock_error}}});
  if (loop_.job.request.monitor.trace_kernels && !file.why_no_kernels.empty()) {
    monitor.Line("the timeline does not tell kernels apart: " + file.why_no_kernels);
  }
  WarnOfLeftOut(file.kernels_left_out, "lacks kernels: {} had more than");
  WarnOfLeftOut(file.left_out, "is not whole: {} had more slices than");
}

void Timeline::WarnOfLeftOut(const nlohmann::json& ranks, const char* what) const {
  if (ranks.empty()) return;
  loop_.monitor->Warn(fmt::format(
      "the timeline {} the {} that there is room for, rank {} from step {} on. Record fewer steps.",
      fmt::format(fmt::runtime(what), report::Counted(std::ssize(ranks), "rank")),
      report::WithThousands(MostSlices()), ranks.front().at("rank").get<int>(),
      ranks.front().at("from_step").get<std::int64_t>()));
}

std::vector<int> TracedRanks(const comm::GridShape& shape, int most) {
  std::vector<int> ranks;
  comm::GridShape at;
  for (at.data = 0; at.data < shape.data; ++at.data) {
    for (at.context = 0; at.context < shape.context; ++at.context) {
      for (at.tensor = 0; at.tensor < shape.tensor; ++at.tensor) {
        for (at.pipeline = 0; at.pipeline < shape.pipeline; ++at.pipeline) {
          if (static_cast<int>(ranks.size()) == most) break;
          ranks.push_back(comm::RankAt(at, shape));
        }
      }
    }
  }
  std::ranges::sort(ranks);
  return ranks;
}

int PeerOf(const device::Slice& message, int rank, const comm::GridShape& shape) {
  const auto group = static_cast<comm::Group>(message.group);
  if (group != comm::Group::kPipeline && group != comm::Group::kContext) return -1;
  comm::GridShape at = comm::Locate(rank, shape);
  (group == comm::Group::kPipeline ? at.pipeline : at.context) = message.peer;
  return comm::RankAt(at, shape);
}

}  // namespace trireme::tasks
