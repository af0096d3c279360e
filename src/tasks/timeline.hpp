// Timeline: the steps of monitor.trace_steps on all ranks, recorded, brought to one clock, and
// written to trace.json.gz of the run folder.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/json.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/comm/runtime.hpp"
#include "trireme/device/recorder.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::tasks {

// Bounds of one file, so that tools still open it: ranks, slices of all of them, slices of a rank;
// as many kernels again.
inline constexpr int kMostTracedRanks = 64;
inline constexpr std::int64_t kMostSlices = std::int64_t{1} << 20;
inline constexpr std::int64_t kMostSlicesOfARank = std::int64_t{1} << 17;

// Ranks of a grid whose timelines are recorded, ascending: all, or at most `most`: whole pipelines,
// those of the first tensor ranks, then context ranks, then replicas.
std::vector<int> TracedRanks(const comm::GridShape& shape, int most = kMostTracedRanks);

// World rank of the other end of a message in a group of the grid; -1: not known. rank: one end.
int PeerOf(const device::Slice& message, int rank, const comm::GridShape& shape);

class TimelineFile;

class Timeline {
 public:
  // All must outlive it.
  struct Setup {
    const comm::Runtime& runtime;
    const comm::ProcessGrid& grid;
    report::Monitor& monitor;
    device::Stream stream;
    report::StepWindow window;    // none: nothing is recorded
    bool kernels = true;          // of a GPU are told apart, if they can be
    std::int64_t step = 0;        // done before this session
    std::int64_t total = 0;       // steps of the schedule
    std::string path;             // of the file
    nlohmann::json facts;         // for otherData
    std::function<void()> watch;  // sets the bound for the time that writing takes
  };
  // Collective if there is a window. Says if no step of it will be seen.
  explicit Timeline(const Setup& setup);
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Collective. `step` (counted from 1) begins, or has ended with all that follows it. The last of
  // the window writes the file.
  void BeginStep(std::int64_t step);
  void EndStep(std::int64_t step);
  // Collective. The run goes back: what there is of the window is written, one that has not begun
  // waits.
  void Interrupt() {
    if (seen_ > 0) End("the run went back");
  }
  // Collective. No step of the window follows: writes what there is. why: "the run ended".
  void End(const std::string& why);
  bool Written() const { return written_; }  // on rank 0: the file is this session's

 private:
  void Begin(std::int64_t step);
  device::MaybeActivities TellKernels() const;
  void Send(const comm::ClockComparison& last) const;
  void Receive(int rank, TimelineFile& file) const;
  void Write(const std::string& why);
  void Collect(const comm::ClockComparison& last, const std::string& why);
  void Say(const TimelineFile& file, const std::string& why, double seconds);
  // Warns of ranks whose slices or kernels had no room: of the members rank and from_step.
  void WarnOfLeftOut(const nlohmann::json& ranks, const char* what) const;
  bool Mine() const;
  std::int64_t MostSlices() const;  // of a rank

  const Setup setup_;
  comm::Communicator group_;  // of all ranks, for the messages of this class
  std::vector<int> ranks_;    // recorded ones
  std::unique_ptr<device::Recorder> recorder_;
  std::string no_kernels_;  // why a GPU's are not told apart; empty: they are
  comm::ClockComparison first_;
  double origin_ = 0;                     // of rank 0's clock: the file's time zero
  std::int64_t begun_at_ = 0, seen_ = 0;  // first and last step recorded; 0: none
  bool done_ = false, written_ = false;
};

}  // namespace trireme::tasks
