// Timeline: the steps of monitor.trace_steps on all ranks, recorded, brought to one clock, and
// written to trace.json.gz of the run folder.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "trireme/base/json.hpp"
#include "trireme/comm/hosts.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/comm/runtime.hpp"
#include "trireme/device/recorder.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/device/trace_file.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::tasks {

class TimelineFile;

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
  void Say(const TimelineFile& file, const std::error_code& error, const std::string& why,
           double seconds);
  void SayOfKernels(const TimelineFile& file);
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

// TimelineFile: rank 0's side of a timeline, the file and what is told of each rank beside its
// slices; and what the other ranks send for it.

// Of one rank, ahead of its slices; travels as it is.
struct RankSummary {
  comm::ClockComparison first, last;
  double gpu_clock_error = 0;
  std::int64_t slices = 0, left_out = 0, first_step_left_out = 0;
  double kernel_clock_error = 0;
  std::int64_t kernels = 0, kernels_left_out = 0, kernels_first_step_left_out = 0;
  std::int64_t text_bytes = 0;
};
RankSummary SummaryOf(const device::Recorder& recorder, const comm::ClockComparison& first,
                      const comm::ClockComparison& last);

// Of one rank: why its kernels are not told apart (else empty), the library, names of kernels.
using RankTexts = std::vector<std::string>;
RankTexts TextsOf(const device::Recorder& recorder, const std::string& why);
std::string JoinedTexts(const RankTexts& texts);
RankTexts SplitTexts(const std::string& joined);

class TimelineFile {
 public:
  struct Setup {
    std::string path;
    const comm::Runtime& runtime;  // outlives the file
    comm::GridShape shape;
    double origin = 0;  // of rank 0's clock: the file's time zero
    bool on_gpu = false;
  };
  explicit TimelineFile(const Setup& setup) : setup_(setup), file_(setup.path) {}

  // One rank, with all that it has recorded.
  void Add(int rank, const RankSummary& summary, std::vector<device::Slice> slices,
           std::vector<device::Kernel> kernels, const RankTexts& texts);
  // Ends the file with these members of otherData, and its own. The first failure of all.
  std::error_code Place(nlohmann::json other);

  std::int64_t Count() const { return count_; }
  double ClockError() const { return clock_error_; }
  const nlohmann::json& LeftOut() const { return left_out_; }  // ranks with slices left out
  std::int64_t KernelCount() const { return kernel_count_; }
  const std::string& WhyNoKernels() const { return why_; }
  const nlohmann::json& KernelsLeftOut() const { return kernels_left_out_; }

 private:
  void AddKernels(int rank, const RankSummary& summary, const RankTexts& texts);
  nlohmann::json Kernels() const;

  Setup setup_;
  device::TraceFile file_;
  std::int64_t count_ = 0;
  double clock_error_ = 0, gpu_clock_error_ = 0;
  nlohmann::json clocks_ = nlohmann::json::array(), left_out_ = nlohmann::json::array();
  std::int64_t kernel_count_ = 0;
  double kernel_clock_error_ = 0;
  std::string why_, library_;
  nlohmann::json kernels_left_out_ = nlohmann::json::array();
};

}  // namespace trireme::tasks
