// metrics.jsonl: one JSON object per record; a resumed run cuts the records after its checkpoint.
#ifndef TRIREME_SRC_REPORT_METRICS_FILE_HPP_
#define TRIREME_SRC_REPORT_METRICS_FILE_HPP_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/report/records.hpp"

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

// Of a line exactly as AppendStepLine writes it, without its newline; none for any other, which may
// be a record all the same. Much faster than a parser.
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

}  // namespace trireme::report

#endif  // TRIREME_SRC_REPORT_METRICS_FILE_HPP_
