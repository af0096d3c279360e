// metrics.jsonl: one JSON object per record; a resumed run cuts the records after its checkpoint.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/report/append_file.hpp"
#include "trireme/report/records.hpp"
#include "trireme/report/summary.hpp"

namespace trireme::report {

inline constexpr std::int64_t kMaxLineBytes = std::int64_t{64} << 10;  // longest record

const char* NameOf(Record::Kind kind);  // the kind in a record: "step", "valid", ...

// exp(loss), held below the largest double: JSON knows no infinity.
double Perplexity(double loss);

// Appends the line of a step, with its newline. Losses, rates and norms are written in the shortest
// form that reads back to the same double; measured times and speeds, to the same float. Numbers
// that are not finite become null.
void AppendStepLine(const Record& record, std::string& text);
// The line of a record of any kind, with its newline. Except in step lines, all doubles read back
// to the same bits. Invalid UTF-8 is replaced.
std::string ToJsonLine(const Record& record);
std::string ToJsonLine(const Interval& interval);  // {"kind": "interval", ...}
std::string ToJsonLine(const Event& event);        // {"kind": "event", ...}

// Reads a line exactly as AppendStepLine writes it, without its newline; nullopt for any other
// line, even if it is a valid record. Much faster than a JSON parser.
struct StepFacts {
  std::int64_t step = 0;
  std::optional<double> loss;  // nullopt: null in the line
};
std::optional<StepFacts> ReadStepLine(std::string_view line);

// What the kept records of earlier sessions say; the losses are for the closing summary.
struct History {
  std::optional<double> first_loss;  // in the first step record
  std::optional<double> best_valid;
  std::int64_t best_valid_step = 0;
  std::int64_t next_step = 1;  // the step after the last step record
  // Ranges of steps up to resume_step without a record: (first, last), both included.
  std::vector<std::pair<std::int64_t, std::int64_t>> missing;
};

// Cuts from the file the records beyond `resume_step`, "done" records (the run goes on) and lines
// that are no record (a torn last line, a line longer than kMaxLineBytes, a step that is no
// integer). Needs memory for one record only. The file is replaced in one move, and only if
// something is cut; a missing file stays missing. Throws RunError.
// best_after: only validations after this step can be the best.
History CutMetrics(const std::string& path, std::int64_t resume_step, std::int64_t best_after = 0);

// MetricsSink: writes metrics.jsonl, several records at a time.

// Writes its buffer every 2 s, when it holds 64 KiB, and at once for evaluations, events and the
// end. After a failure it keeps up to 1 MiB and tries again; records beyond that are dropped, and
// an event "records lost" counts them once the file can be written again.
class MetricsSink : public Sink {
 public:
  // Appends to the file; truncate: empties it first. Throws RunError as AppendFile does.
  MetricsSink(const std::string& path, bool truncate);
  ~MetricsSink() override;  // writes what is left and ignores failures

  void Step(const Record& record) override;
  void Interval(const report::Interval& interval) override;
  void Evaluation(const Record& record) override;
  void Happened(const Event& event) override;
  std::string Renew() override;
  void Flush() override;
  void Sync() override;
  void Done(const Summary& summary) override;
  // Cuts the file as CutMetrics does, for Monitor::GoBack. If it throws RunError, the file is
  // unchanged, and the cut is tried again before anything is appended.
  History CutTo(std::int64_t step, std::int64_t best_after);

 private:
  using Clock = std::chrono::steady_clock;

  // Write locks the mutex; for the other functions, the caller holds it.
  void Write(const std::string& line, std::int64_t step);  // writes at once
  void WriteIfDue();
  void WriteAll();
  History CutFile();
  void DropOverflow();

  struct Cut {
    std::int64_t step = 0, best_after = 0;
  };

  std::mutex mutex_;                  // guards all members below
  std::shared_ptr<AppendFile> file_;  // shared with a Sync in progress
  std::string buffer_;                // whole lines, not yet written
  Clock::time_point flushed_;
  std::optional<Cut> cut_;  // a cut that the file still needs
  bool failing_ = false;    // the last attempt to write failed
  std::int64_t step_ = 0;   // last step recorded
  std::int64_t lost_ = 0;   // dropped records that no event has reported yet
};

// summary.json: one object about a training session, written at its end.

// The text of summary.json. Numbers that are not finite and unknown losses are null; invalid UTF-8
// is replaced. Files inside `folder` are named relative to it.
std::string ToJson(const Summary& summary, const std::string& folder);

// If there are more than 1,024 ranks, keeps only the 64 that use most memory, followed by the 64
// that use least. Ranks with equal use keep their order.
void LeaveOutRanks(Summary& summary);

class SummaryFile : public Sink {
 public:
  // Removes the folder's summary.json; fresh: also an earlier run's trace and report.
  SummaryFile(const std::string& folder, bool fresh);
  void Done(const Summary& summary) override;

 private:
  std::string folder_;
};

}  // namespace trireme::report
