// metrics.jsonl as a sink: records are kept in memory for a short time and written together.
#ifndef TRIREME_SRC_REPORT_METRICS_SINK_HPP_
#define TRIREME_SRC_REPORT_METRICS_SINK_HPP_

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "metrics_file.hpp"
#include "trireme/report/append_file.hpp"
#include "trireme/report/sink.hpp"

namespace trireme::report {

// Writes what it has every 2 s, when 64 KiB have come together, and at once for evaluations,
// samples, events and the end. What cannot be written is tried again, up to 1 MiB of it; beyond
// that it is dropped, and an event "records lost" says so once the file can be written again.
class MetricsSink : public Sink {
 public:
  // Appends to the file, emptied first when `truncate`. Throws RunError as AppendFile does.
  MetricsSink(const std::string& path, bool truncate);
  ~MetricsSink() override;  // writes what is left, as well as that goes

  void Step(const Record& record) override;
  void Interval(const report::Interval& interval) override;
  void Evaluation(const Record& record) override;
  void Happened(const Event& event) override;
  std::string Renew() override;
  void Flush() override;
  void Sync() override;
  void Done(const Summary& summary) override;
  // As GoBack, by CutMetrics. After a RunError the file is as it was until the cut, which is tried
  // before anything is appended, succeeds.
  History CutTo(std::int64_t step, std::int64_t best_after);

 private:
  using Clock = std::chrono::steady_clock;

  // The caller holds the mutex, but for Write.
  void Write(const std::string& line, std::int64_t step);  // at once
  void WriteIfDue();
  void WriteAll();
  History CutFile();
  void DropOverflow();

  struct Cut {
    std::int64_t step = 0, best_after = 0;
  };

  std::mutex mutex_;                  // of all below
  std::shared_ptr<AppendFile> file_;  // shared with a Sync under way
  std::string buffer_;                // whole lines
  Clock::time_point flushed_;
  std::optional<Cut> cut_;  // still to be made in the file
  bool failing_ = false;    // the last attempt to write failed
  std::int64_t step_ = 0;   // last one taken
  std::int64_t lost_ = 0;   // records dropped that no event has told of
};

}  // namespace trireme::report

#endif  // TRIREME_SRC_REPORT_METRICS_SINK_HPP_
