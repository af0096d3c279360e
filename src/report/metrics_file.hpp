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

inline constexpr std::int64_t kMaxLineBytes = std::int64_t{64} << 10;  // of a record

const char* NameOf(Record::Kind kind);  // "step", "valid", "test", "done"

// exp(loss), held below the largest double: JSON knows no infinity.
double Perplexity(double loss);

// Appends the line of a step, with its newline. Losses, rates and norms in the shortest form that
// reads back to the same double; times and speeds, which are measured, to the same float. null for
// what is not a finite number.
void AppendStepLine(const Record& record, std::string& text);
// One line with its newline, of any kind; of the others than steps all doubles read back to the
// same bits. Text that is not UTF-8 is made so.
std::string ToJsonLine(const Record& record);
std::string ToJsonLine(const Interval& interval);  // {"kind": "interval", ...}
std::string ToJsonLine(const Event& event);        // {"kind": "event", ...}

// Reads a line exactly as AppendStepLine writes it, without its newline; none for any other, which
// may be a record all the same. Much faster than a parser.
struct StepFacts {
  std::int64_t step = 0;
  std::optional<double> loss;  // none: null
};
std::optional<StepFacts> ReadStepLine(std::string_view line);

// Losses in the kept records of an earlier session, for the closing summary.
struct History {
  std::optional<double> first_loss;  // of the first step record
  std::optional<double> best_valid;
  std::int64_t best_valid_step = 0;
  std::int64_t next_step = 1;  // after the last step record
  // First and last step of those up to resume_step that have no record.
  std::vector<std::pair<std::int64_t, std::int64_t>> missing;
};

// Drops lines of `text` (whole ones) that CutMetrics would cut at this step.
void KeepLines(std::string& text, std::int64_t resume_step);

// Cuts records beyond `resume_step`, "done" records (the run goes on) and lines that are no record
// (a torn last line; longer than kMaxLineBytes; a step that is no integer). Takes memory for one
// record, whatever the file holds. The file is replaced in one move, and only when something is
// cut; a missing one is left missing. Throws RunError.
// best_after: validations after this step alone can be the best.
History CutMetrics(const std::string& path, std::int64_t resume_step, std::int64_t best_after = 0);

// metrics.jsonl as a sink: records are kept in memory for a short time and written together.

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

// summary.json: a session of training in one object, written at its end.

// The text of summary.json. Numbers that are not finite and losses that are not known are null;
// text that is not UTF-8 is made so. Files inside of `folder` are named relative to it.
std::string ToJson(const Summary& summary, const std::string& folder);

// If there are more than 1,024 ranks, keeps the 64 that use most memory, then the 64 that use
// least; the lowest rank comes first among equal ones.
void LeaveOutRanks(Summary& summary);

class SummaryFile : public Sink {
 public:
  // The folder's file is written by replacement; that of an earlier run is removed if `fresh`.
  SummaryFile(const std::string& folder, bool fresh);
  void Done(const Summary& summary) override;

 private:
  std::string folder_;
};

}  // namespace trireme::report
