// Timeline: its window, the comparison of clocks at both ends, and the way of the slices to rank 0,
// one rank's at a time.
#include "timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "trireme/base/clock.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/trace/trace_file.hpp"

namespace trireme::driver {

namespace {

constexpr double kMicro = 1e6;
constexpr int kSummaryTag = 1, kSlicesTag = 2;

// Of one rank, ahead of its slices.
struct Summary {
  comm::ClockComparison first, last;
  double gpu_clock_error = 0;
  std::int64_t slices = 0, left_out = 0, first_step_left_out = 0;
};

Summary SummaryOf(const trace::Recorder& recorder, const comm::ClockComparison& first,
                  const comm::ClockComparison& last) {
  return {first,
          last,
          recorder.GpuClockError(),
          std::ssize(recorder.Slices()),
          recorder.LeftOut(),
          recorder.FirstStepLeftOut()};
}

std::string Steps(std::int64_t first, std::int64_t last) {
  return first == last ? fmt::format("step {}", monitor::WithThousands(first))
                       : fmt::format("steps {} to {}", monitor::WithThousands(first),
                                     monitor::WithThousands(last));
}

}  // namespace

// Rank 0's side: the file, and what is said of it.
class Timeline::File {
 public:
  File(const Setup& setup, double origin) : setup_(setup), origin_(origin), file_(setup.path) {}

  void Add(int rank, const Summary& summary, std::vector<trace::Slice> slices) {
    count_ += summary.slices;
    const double error = std::max(summary.first.error, summary.last.error);
    clock_error_ = std::max(clock_error_, error);
    gpu_clock_error_ = std::max(gpu_clock_error_, summary.gpu_clock_error);
    clocks_.push_back({{"rank", rank},
                       {"offset_us", kMicro * summary.first.offset},
                       {"drift_us_per_second", kMicro * comm::Drift(summary.first, summary.last)},
                       {"error_us", kMicro * error}});
    if (summary.left_out > 0) {
      left_out_.push_back({{"rank", rank},
                           {"slices", summary.left_out},
                           {"from_step", summary.first_step_left_out}});
    }
    const comm::GridShape& shape = setup_.grid.Shape();
    file_.Add({.rank = rank,
               .host = setup_.runtime.Hosts().Of(static_cast<int>(rank)),
               .group = [](int group) { return NameOf(static_cast<comm::Group>(group)); },
               .transfer = [](int each) { return NameOf(static_cast<comm::Transfer>(each)); },
               .peer = [&](const trace::Slice& slice) { return PeerOf(slice, rank, shape); },
               .aligned =
                   [&](double seconds) {
                     return comm::Aligned(seconds, summary.first, summary.last) - origin_;
                   }},
              std::move(slices));
  }

  std::error_code Place(nlohmann::json other) {
    other["clock_error_us"] = kMicro * clock_error_;
    if (setup_.stream.OnGpu()) other["gpu_clock_error_us"] = kMicro * gpu_clock_error_;
    other["clocks"] = clocks_;
    other["slices"] = count_;
    other["slices_left_out"] = left_out_;
    return file_.Place(other);
  }

  std::int64_t Count() const { return count_; }
  double ClockError() const { return clock_error_; }
  const nlohmann::json& LeftOut() const { return left_out_; }

 private:
  const Setup& setup_;
  double origin_;
  trace::TraceFile file_;
  std::int64_t count_ = 0;
  double clock_error_ = 0, gpu_clock_error_ = 0;
  nlohmann::json clocks_ = nlohmann::json::array(), left_out_ = nlohmann::json::array();
};

Timeline::Timeline(const Setup& setup) : setup_(setup) {
  const monitor::StepWindow& window = setup_.window;
  if (window.None()) {
    done_ = true;
    return;
  }
  const std::string key = fmt::format("monitor.trace_steps = {}-{}", window.first, window.last);
  if (window.first > setup_.total) {
    setup_.monitor.Warn(fmt::format("{} lies beyond the last step, {}: there will be no timeline",
                                    key, monitor::WithThousands(setup_.total)));
    done_ = true;
  } else if (window.last <= setup_.step) {
    setup_.monitor.Line(fmt::format("{} lies before step {}: no new timeline", key,
                                    monitor::WithThousands(setup_.step + 1)));
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
                  monitor::WithThousands(setup_.window.first)));
}

void Timeline::Begin(std::int64_t step) {
  begun_at_ = step;
  group_.Barrier();  // so that none is held up by another's last step
  origin_ = Seconds();
  first_ = comm::CompareClocks(group_, ranks_, Seconds);
  group_.Barrier();
  if (!Mine()) return;
  recorder_ = std::make_unique<trace::Recorder>(MostSlices(), setup_.stream);
  setup_.grid.TraceInto(recorder_.get());
}

void Timeline::Write(const std::string& why) {
  done_ = true;
  setup_.watch();
  device::Synchronise(setup_.stream);
  setup_.grid.TraceInto(nullptr);
  if (recorder_) recorder_->Settle();
  group_.Barrier();
  const comm::ClockComparison last = comm::CompareClocks(group_, ranks_, Seconds);
  if (group_.IsRoot()) {
    Collect(last, why);
  } else if (recorder_) {
    const Summary mine = SummaryOf(*recorder_, first_, last);
    const auto slices = recorder_->Slices();
    MPI_Send(&mine, sizeof(mine), MPI_BYTE, 0, kSummaryTag, group_.Handle());
    MPI_Send(slices.data(), static_cast<int>(slices.size_bytes()), MPI_BYTE, 0, kSlicesTag,
             group_.Handle());
  }
  recorder_.reset();
  group_.Barrier();  // the next step's time is not that of writing
}

// Rank 0. A failure to write is told, and training goes on.
void Timeline::Collect(const comm::ClockComparison& last, const std::string& why) {
  const double start = Seconds();
  File file(setup_, origin_);
  for (const int rank : ranks_) {
    if (rank == 0) {
      const auto slices = recorder_->Slices();
      file.Add(0, SummaryOf(*recorder_, first_, last), {slices.begin(), slices.end()});
      continue;
    }
    Summary summary;
    MPI_Recv(&summary, sizeof(summary), MPI_BYTE, rank, kSummaryTag, group_.Handle(),
             MPI_STATUS_IGNORE);
    std::vector<trace::Slice> slices(static_cast<std::size_t>(summary.slices));
    const auto bytes = static_cast<int>(std::span(slices).size_bytes());
    MPI_Recv(slices.data(), bytes, MPI_BYTE, rank, kSlicesTag, group_.Handle(), MPI_STATUS_IGNORE);
    file.Add(rank, summary, std::move(slices));
  }
  nlohmann::json other = setup_.facts;
  other["asked"] = {setup_.window.first, setup_.window.last};
  other["steps"] = {begun_at_, seen_};
  other["ranks"] = group_.Size();
  other["ranks_recorded"] = ranks_;
  if (!why.empty()) other["ended_early"] = why;
  Say(file, file.Place(other), why, Seconds() - start);
}

void Timeline::Say(const File& file, const std::error_code& error, const std::string& why,
                   double seconds) {
  monitor::Monitor& monitor = setup_.monitor;
  const std::string steps = Steps(begun_at_, seen_);
  if (error) {
    monitor.Warn(fmt::format("the timeline of {} was not written: {}: {}; training goes on", steps,
                             setup_.path, error.message()));
    return;
  }
  written_ = true;
  std::string text = fmt::format(
      "timeline {} of {}{}: {}, {} slices in {:.1f} s; clocks within {:.1f} us", steps,
      monitor::Counted(std::ssize(ranks_), "rank"),
      std::ssize(ranks_) < group_.Size() ? fmt::format(" out of {}", group_.Size()) : "",
      setup_.path, monitor::WithThousands(file.Count()), seconds, kMicro * file.ClockError());
  if (!why.empty()) {
    text += fmt::format("; {} before step {}, the last of monitor.trace_steps", why,
                        monitor::WithThousands(setup_.window.last));
  }
  monitor.Line(text);
  monitor.Happened({.name = "timeline",
                    .step = seen_,
                    .rank = 0,
                    .host = setup_.runtime.Hosts().First(),
                    .text = text,
                    .numbers = {{"clock_error_us", kMicro * file.ClockError()}}});
  if (file.LeftOut().empty()) return;
  const auto& first = file.LeftOut().front();
  monitor.Warn(fmt::format(
      "the timeline is not whole: {} had more slices than the {} that there is room for, rank {} "
      "from step {} on. Record fewer steps.",
      monitor::Counted(std::ssize(file.LeftOut()), "rank"), monitor::WithThousands(MostSlices()),
      first.at("rank").get<int>(), first.at("from_step").get<std::int64_t>()));
}

}  // namespace trireme::driver
