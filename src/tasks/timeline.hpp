// Timeline: records the steps of monitor.trace_steps on all ranks, converts their times to one
// clock, and writes trace.json.gz in the run folder.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "run_session.hpp"
#include "training.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/device/recorder.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::tasks {

// Limits per file, so that viewers can show it; kernels have the same limits as slices.
inline constexpr int kMostTracedRanks = 64;
inline constexpr std::int64_t kMostSlices = std::int64_t{1} << 20;
inline constexpr std::int64_t kMostSlicesOfARank = std::int64_t{1} << 17;

// Ranks of a grid to record, ascending: all, or `most` of them. Takes one pipeline after the other,
// first over the tensor ranks, then over the context ranks, then over the replicas.
std::vector<int> TracedRanks(const comm::GridShape& shape, int most = kMostTracedRanks);

// World rank at the other end of a message in one of the grid's groups; -1: not known.
int PeerOf(const device::Slice& message, int rank, const comm::GridShape& shape);

class TimelineFile;

class Timeline {
 public:
  // Collective if there is a window (monitor.trace_steps). Says so if none of its steps will run.
  // `loop` must outlive it.
  explicit Timeline(LoopParts& loop);
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Collective. `step` (from 1) begins, or has ended completely. The window's last writes the file.
  void BeginStep(std::int64_t step);
  void EndStep(std::int64_t step);
  // Collective, when the run goes back. Writes the window's steps so far; an unbegun window waits.
  void Interrupt() {
    if (seen_ > 0) End("the run went back");
  }
  // Collective. No step of the window will follow: writes those recorded. why: "the run ended".
  void End(const std::string& why);
  bool Written() const { return written_; }  // on rank 0: this session wrote the file

 private:
  void Begin(std::int64_t step);
  device::MaybeActivities TellKernels() const;
  void Send(const comm::ClockComparison& last) const;
  void Receive(int rank, TimelineFile& file) const;
  void Write(const std::string& why);
  void Collect(const comm::ClockComparison& last, const std::string& why);
  void Say(const TimelineFile& file, const std::string& why, double seconds);
  // Warns of ranks without room for slices or kernels. ranks: objects with rank and from_step.
  void WarnOfLeftOut(const nlohmann::json& ranks, const char* what) const;
  bool Mine() const;
  std::int64_t MostSlices() const;  // per rank

  const report::StepWindow& Window() const { return loop_.job.request.monitor.trace_steps; }
  const comm::ProcessGrid& Grid() const { return loop_.state.Grid(); }
  const device::Stream& Stream() const { return loop_.job.device.stream; }
  std::string Path() const { return loop_.session->Folder() + "/trace.json.gz"; }

  LoopParts& loop_;
  comm::Communicator group_;  // all ranks, for this class's own messages
  std::vector<int> ranks_;    // those recorded
  std::unique_ptr<device::Recorder> recorder_;
  std::string no_kernels_;  // why GPU kernels are not recorded one by one; empty: they are
  comm::ClockComparison first_;
  double origin_ = 0;                     // reading of rank 0's clock that is the file's time zero
  std::int64_t begun_at_ = 0, seen_ = 0;  // first and last step recorded; 0: none
  bool done_ = false, written_ = false;
};

}  // namespace trireme::tasks
