// Timeline: its window, the comparison of clocks at both ends, and the way of the slices to rank 0,
// one rank's at a time.
#include "timeline.hpp"

#include <fmt/format.h>
#include <algorithm>

#include "trireme/base/clock.hpp"
#include "trireme/device/activities.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::tasks {

namespace {

constexpr double kMicro = 1e6;
constexpr int kSummaryTag = 1, kSlicesTag = 2, kKernelsTag = 3, kTextsTag = 4;

std::string Steps(std::int64_t first, std::int64_t last) {
  return first == last ? fmt::format("step {}", report::WithThousands(first))
                       : fmt::format("steps {} to {}", report::WithThousands(first),
                                     report::WithThousands(last));
}

}  // namespace

Timeline::Timeline(const Setup& setup) : setup_(setup) {
  const report::StepWindow& window = setup_.window;
  if (window.None()) {
    done_ = true;
    return;
  }
  const std::string key = fmt::format("monitor.trace_steps = {}-{}", window.first, window.last);
  if (window.first > setup_.total) {
    setup_.monitor.Warn(fmt::format("{} lies beyond the last step, {}: there will be no timeline",
                                    key, report::WithThousands(setup_.total)));
    done_ = true;
  } else if (window.last <= setup_.step) {
    setup_.monitor.Line(fmt::format("{} lies before step {}: no new timeline", key,
                                    report::WithThousands(setup_.step + 1)));
    done_ = true;
  }
  if (done_) return;
  group_ = setup_.runtime.World().Duplicate();
  ranks_ = TracedRanks(setup_.grid.Shape());
}

Timeline::~Timeline() { setup_.grid.Traffic().TraceInto(nullptr); }

bool Timeline::Mine() const { return std::ranges::binary_search(ranks_, group_.Rank()); }

std::int64_t Timeline::MostSlices() const {
  return std::min(kMostSlicesOfARank, kMostSlices / std::ssize(ranks_));
}

void Timeline::BeginStep(std::int64_t step) {
  if (done_ || step < setup_.window.first) return;
  if (seen_ == 0) Begin(step);
  seen_ = step;
}

void Timeline::EndStep(std::int64_t step) {
  if (!done_ && seen_ > 0 && step >= setup_.window.last) Write({});
}

void Timeline::End(const std::string& why) {
  if (done_) return;
  if (seen_ > 0) return Write(why);
  done_ = true;
  setup_.monitor.Line(
      fmt::format("no timeline: {} before step {}, the first of monitor.trace_steps", why,
                  report::WithThousands(setup_.window.first)));
}

device::MaybeActivities Timeline::TellKernels() const {
  if (!Mine() || !setup_.stream.OnGpu()) return {};
  if (!setup_.kernels) return {nullptr, "monitor.trace_kernels = no"};
  device::Synchronise(setup_.stream);
  return device::RecordActivities(setup_.stream, MostSlices());
}

void Timeline::Begin(std::int64_t step) {
  begun_at_ = step;
  device::MaybeActivities kernels = TellKernels();
  no_kernels_ = kernels.why;
  group_.Barrier();  // so that none is held up by another's last step
  origin_ = Seconds();
  first_ = comm::CompareClocks(group_, ranks_, Seconds);
  group_.Barrier();
  if (!Mine()) return;
  recorder_ = std::make_unique<device::Recorder>(MostSlices(), setup_.stream,
                                                 std::move(kernels.activities));
  setup_.grid.TraceInto(recorder_.get());
}

void Timeline::Write(const std::string& why) {
  done_ = true;
  setup_.watch();
  device::Synchronise(setup_.stream);
  setup_.grid.TraceInto(nullptr);
  if (recorder_) recorder_->Finish();
  group_.Barrier();
  const comm::ClockComparison last = comm::CompareClocks(group_, ranks_, Seconds);
  if (group_.IsRoot()) {
    Collect(last, why);
  } else if (recorder_) {
    Send(last);
  }
  recorder_.reset();
  group_.Barrier();  // the next step's time is not that of writing
}

void Timeline::Send(const comm::ClockComparison& last) const {
  RankSummary mine = SummaryOf(*recorder_, first_, last);
  const std::string texts = JoinedTexts(TextsOf(*recorder_, no_kernels_));
  mine.text_bytes = std::ssize(texts);
  const auto send = [&](const auto& list, int tag) {
    const auto bytes = std::as_bytes(std::span(list));
    MPI_Send(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, 0, tag, group_.Handle());
  };
  send(std::span(&mine, 1), kSummaryTag);
  send(recorder_->Slices(), kSlicesTag);
  send(recorder_->AllKernels().all, kKernelsTag);
  send(texts, kTextsTag);
}

void Timeline::Receive(int rank, TimelineFile& file) const {
  const auto receive = [&](auto list, int tag) {
    const auto bytes = std::as_writable_bytes(list);
    MPI_Recv(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, rank, tag, group_.Handle(),
             MPI_STATUS_IGNORE);
  };
  RankSummary summary;
  receive(std::span(&summary, 1), kSummaryTag);
  std::vector<device::Slice> slices(static_cast<std::size_t>(summary.slices));
  receive(std::span(slices), kSlicesTag);
  std::vector<device::Kernel> kernels(static_cast<std::size_t>(summary.kernels));
  receive(std::span(kernels), kKernelsTag);
  std::string texts(static_cast<std::size_t>(summary.text_bytes), '\0');
  receive(std::span(texts), kTextsTag);
  file.Add(rank, summary, std::move(slices), std::move(kernels), SplitTexts(texts));
}

// Rank 0. A failure to write is told, and training goes on.
void Timeline::Collect(const comm::ClockComparison& last, const std::string& why) {
  const double start = Seconds();
  TimelineFile file({.path = setup_.path,
                     .runtime = setup_.runtime,
                     .shape = setup_.grid.Shape(),
                     .origin = origin_,
                     .on_gpu = setup_.stream.OnGpu()});
  for (const int rank : ranks_) {
    if (rank == 0) {
      const auto slices = recorder_->Slices();
      file.Add(0, SummaryOf(*recorder_, first_, last), {slices.begin(), slices.end()},
               recorder_->AllKernels().all, TextsOf(*recorder_, no_kernels_));
      continue;
    }
    Receive(rank, file);
  }
  nlohmann::json other = setup_.facts;
  other["asked"] = {setup_.window.first, setup_.window.last};
  other["steps"] = {begun_at_, seen_};
  other["ranks"] = group_.Size();
  other["ranks_recorded"] = ranks_;
  if (!why.empty()) other["ended_early"] = why;
  Say(file, file.Place(other), why, Seconds() - start);
}

void Timeline::Say(const TimelineFile& file, const std::error_code& error, const std::string& why,
                   double seconds) {
  report::Monitor& monitor = setup_.monitor;
  const std::string steps = Steps(begun_at_, seen_);
  if (error) {
    monitor.Warn(fmt::format("the timeline of {} was not written: {}: {}; training goes on", steps,
                             setup_.path, error.message()));
    return;
  }
  written_ = true;
  std::string text = fmt::format(
      "timeline {} of {}{}: {}, {} slices in {:.1f} s; clocks within {:.1f} us", steps,
      report::Counted(std::ssize(ranks_), "rank"),
      std::ssize(ranks_) < group_.Size() ? fmt::format(" out of {}", group_.Size()) : "",
      setup_.path, report::WithThousands(file.Count()), seconds, kMicro * file.ClockError());
  if (file.KernelCount() > 0) {
    text += fmt::format("; {} kernels and copies", report::WithThousands(file.KernelCount()));
  }
  if (!why.empty()) {
    text += fmt::format("; {} before step {}, the last of monitor.trace_steps", why,
                        report::WithThousands(setup_.window.last));
  }
  monitor.Line(text);
  monitor.Happened({.name = "timeline",
                    .step = seen_,
                    .text = text,
                    .numbers = {{"clock_error_us", kMicro * file.ClockError()}}});
  SayOfKernels(file);
  if (file.LeftOut().empty()) return;
  const auto& first = file.LeftOut().front();
  monitor.Warn(fmt::format(
      "the timeline is not whole: {} had more slices than the {} that there is room for, rank {} "
      "from step {} on. Record fewer steps.",
      report::Counted(std::ssize(file.LeftOut()), "rank"), report::WithThousands(MostSlices()),
      first.at("rank").get<int>(), first.at("from_step").get<std::int64_t>()));
}

void Timeline::SayOfKernels(const TimelineFile& file) {
  report::Monitor& monitor = setup_.monitor;
  if (setup_.kernels && !file.WhyNoKernels().empty()) {
    monitor.Line("the timeline does not tell kernels apart: " + file.WhyNoKernels());
  }
  if (file.KernelsLeftOut().empty()) return;
  const auto& first = file.KernelsLeftOut().front();
  monitor.Warn(fmt::format(
      "the timeline lacks kernels: {} had more than the {} that there is room for, rank {} from "
      "step {} on. Record fewer steps.",
      report::Counted(std::ssize(file.KernelsLeftOut()), "rank"),
      report::WithThousands(MostSlices()), first.at("rank").get<int>(),
      first.at("from_step").get<std::int64_t>()));
}

// TimelineFile: slices and kernels of one rank after another, and the members of otherData.

namespace {
constexpr std::size_t kWhy = 0, kLibrary = 1, kFirstName = 2;  // of RankTexts
}  // namespace

RankTexts TextsOf(const device::Recorder& recorder, const std::string& why) {
  const device::Recorder::Kernels& kernels = recorder.AllKernels();
  RankTexts texts = {why, kernels.library};
  texts.insert(texts.end(), kernels.names.begin(), kernels.names.end());
  return texts;
}

// RankTexts that end with a zero byte each.
std::string JoinedTexts(const RankTexts& texts) {
  std::string all;
  for (const std::string& text : texts) all += text + '\0';
  return all;
}

RankTexts SplitTexts(const std::string& joined) {
  RankTexts texts;
  for (std::size_t begin = 0; begin < joined.size(); begin += texts.back().size() + 1) {
    texts.push_back(joined.substr(begin, joined.find('\0', begin) - begin));
  }
  return texts;
}

RankSummary SummaryOf(const device::Recorder& recorder, const comm::ClockComparison& first,
                      const comm::ClockComparison& last) {
  return {first,
          last,
          recorder.GpuClockError(),
          std::ssize(recorder.Slices()),
          recorder.LeftOut(),
          recorder.FirstStepLeftOut(),
          recorder.AllKernels().clock_error,
          std::ssize(recorder.AllKernels().all),
          recorder.AllKernels().left_out,
          recorder.AllKernels().first_step_left_out};
}

void TimelineFile::Add(int rank, const RankSummary& summary, std::vector<device::Slice> slices,
                       std::vector<device::Kernel> kernels, const RankTexts& texts) {
  count_ += summary.slices;
  AddKernels(rank, summary, texts);
  const double error = std::max(summary.first.error, summary.last.error);
  clock_error_ = std::max(clock_error_, error);
  gpu_clock_error_ = std::max(gpu_clock_error_, summary.gpu_clock_error);
  clocks_.push_back({{"rank", rank},
                     {"offset_us", kMicro * summary.first.offset},
                     {"drift_us_per_second", kMicro * comm::Drift(summary.first, summary.last)},
                     {"error_us", kMicro * error}});
  if (summary.left_out > 0) {
    left_out_.push_back(
        {{"rank", rank}, {"slices", summary.left_out}, {"from_step", summary.first_step_left_out}});
  }
  const device::RankFacts facts = {
      .rank = rank,
      .host = setup_.runtime.Hosts().Of(rank),
      .group = [](int group) { return NameOf(static_cast<comm::Group>(group)); },
      .transfer = [](int each) { return NameOf(static_cast<comm::Transfer>(each)); },
      .peer = [&](const device::Slice& slice) { return PeerOf(slice, rank, setup_.shape); },
      .aligned =
          [&](double seconds) {
            return comm::Aligned(seconds, summary.first, summary.last) - setup_.origin;
          }};
  file_.Add(facts, std::move(slices));
  file_.Add(facts, std::move(kernels), {texts.begin() + kFirstName, texts.end()});
}

std::error_code TimelineFile::Place(nlohmann::json other) {
  other["clock_error_us"] = kMicro * clock_error_;
  if (setup_.on_gpu) other["gpu_clock_error_us"] = kMicro * gpu_clock_error_;
  if (setup_.on_gpu) other["kernels"] = Kernels();
  other["clocks"] = clocks_;
  other["slices"] = count_;
  other["slices_left_out"] = left_out_;
  return file_.Place(other);
}

void TimelineFile::AddKernels(int rank, const RankSummary& summary, const RankTexts& texts) {
  kernel_count_ += summary.kernels;
  kernel_clock_error_ = std::max(kernel_clock_error_, summary.kernel_clock_error);
  if (why_.empty() && !texts[kWhy].empty()) why_ = fmt::format("rank {}: {}", rank, texts[kWhy]);
  if (library_.empty()) library_ = texts[kLibrary];
  if (summary.kernels_left_out == 0) return;
  kernels_left_out_.push_back({{"rank", rank},
                               {"kernels", summary.kernels_left_out},
                               {"from_step", summary.kernels_first_step_left_out}});
}
nlohmann::json TimelineFile::Kernels() const {
  nlohmann::json kernels = {{"count", kernel_count_}, {"left_out", kernels_left_out_}};
  if (!why_.empty()) kernels["why_not"] = why_;
  if (library_.empty()) return kernels;
  kernels["library"] = library_;
  kernels["clock_error_us"] = kMicro * kernel_clock_error_;
  return kernels;
}

// Timeline: which ranks are recorded, and which rank a message came from.

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
  comm::GridShape at = comm::Locate(rank, shape);
  switch (static_cast<comm::Group>(message.group)) {
    case comm::Group::kPipeline:
      at.pipeline = message.peer;
      break;
    case comm::Group::kContext:
      at.context = message.peer;
      break;
    default:
      return -1;
  }
  return comm::RankAt(at, shape);
}

}  // namespace trireme::tasks
