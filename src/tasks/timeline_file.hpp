// TimelineFile: rank 0's side of a timeline, the file and what is told of each rank beside its
// slices; and what the other ranks send for it.
#ifndef TRIREME_SRC_TASKS_TIMELINE_FILE_HPP_
#define TRIREME_SRC_TASKS_TIMELINE_FILE_HPP_

#include <cstdint>
#include <string>
#include <system_error>
#include <vector>

#include "trireme/base/json.hpp"
#include "trireme/comm/clock_comparison.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/comm/runtime.hpp"
#include "trireme/device/recorder.hpp"
#include "trireme/device/trace_file.hpp"

namespace trireme::tasks {

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
RankTexts Split(const std::string& joined);

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

#endif  // TRIREME_SRC_TASKS_TIMELINE_FILE_HPP_
