// The columns of the screen: one function per kind of line, all of one width.
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "metrics_file.hpp"
#include "trireme/report/monitor.hpp"
#include "trireme/report/records.hpp"
#include "trireme/report/summary.hpp"

namespace trireme::report {

// Sums over step records, for the means of the next line and the totals of the closing summary.

// Range and mean of the finite ones among the values added.
class Range {
 public:
  void Add(double value);
  Spread Of() const;

 private:
  double min_ = NAN, max_ = NAN, sum_ = 0;
  std::int64_t count_ = 0;
};

// Sums over the steps added; seconds, tokens and operations, from which means follow.
struct Tally {
  std::int64_t steps = 0;
  double seconds = 0;  // of the steps themselves
  double tokens = 0;
  double operations = 0;    // floating-point, of all ranks
  double roof_seconds = 0;  // roof_fraction x seconds
  double compute = 0, communication = 0, bubble = 0, data = 0, checkpoint = 0;  // seconds
  double validation = 0;    // seconds, beside the steps
  std::int64_t memory = 0;  // bytes, the largest seen
  Range loss_range, norm_range, seconds_range, speed_range;

  void Add(const Record& record);
  // `record` with its times and speeds replaced by the means over the steps added.
  Record Mean(Record record) const;
  // The steps added, of which `record` is the last.
  Interval Since(const Record& record) const;
  TimeFacts Times(double elapsed) const;
};

// The losses that the summary names.
struct Losses {
  History history;  // first step loss and best validation, of all sessions
  double last_step = NAN, last_valid = NAN, test = NAN;

  void Add(const Record& record);
  LossFacts Facts() const;
};

// The closing lines, without the last newline. `how`: "done" or "stopped"; `elapsed`: seconds of
// this session.
std::string SummaryText(const char* how, const Record& record, const Tally& session,
                        const Losses& losses, double elapsed,
                        const std::vector<std::pair<std::string, std::string>>& files,
                        const std::vector<TrafficRow>& traffic = {}, const Gathers& gathers = {});

// Lines without a newline. has_stages: with a column for the pipeline's bubble.
std::string TableHeader(bool has_stages = false);
std::string ShortTableHeader();  // the columns that an evaluation line fills
// `elapsed` and `left` in seconds; a negative `left` is unknown and prints as "-".
std::string StepLine(const Record& record, double elapsed, double left, bool has_stages = false);
std::string EvaluationLine(const Record& record);
std::string LiveLine(const Record& record, std::int64_t total_steps, double left);

// Several lines, the first with the names of the columns; `steps` and `seconds` of the session's
// steps. Empty without rows.
std::string TrafficTable(const std::vector<TrafficRow>& rows, std::int64_t steps, double seconds);

// Standard output as a terminal or as a batch log.

// True if a person watches standard output. Open MPI gives each rank a pseudo-terminal of its own,
// so under mpirun the launcher's output decides.
bool IsTerminal();

class Screen {
 public:
  explicit Screen(bool terminal) : terminal_(terminal) {}
  ~Screen();

  bool Terminal() const { return terminal_; }
  void Line(std::string_view text);  // a line, or several; clears a live line first
  // WantsLive is true at most every 0.2 s, on a terminal only, and is asked before the text is
  // made; Live shows `text` until the next line.
  bool WantsLive();
  void Live(std::string_view text);

 private:
  void Put(std::string_view text);

  bool terminal_;
  bool live_ = false;    // a live line stands on the screen
  bool broken_ = false;  // the reader went away: the run goes on, log.txt has all
  std::chrono::steady_clock::time_point last_live_{};
};

}  // namespace trireme::report
