// The lines of the screen in columns: one function per kind of line.
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

// Minimum, maximum and mean of the values added; values that are not finite are ignored.
class Range {
 public:
  void Add(double value);
  Spread Of() const;

 private:
  double min_ = NAN, max_ = NAN, sum_ = 0;
  std::int64_t count_ = 0;
};

// Sums over the steps added, from which means are computed.
struct Tally {
  std::int64_t steps = 0;
  double seconds = 0;  // duration of the steps
  double tokens = 0;
  double operations = 0;    // floating-point operations of all ranks
  double roof_seconds = 0;  // roof_fraction x seconds
  double compute = 0, communication = 0, bubble = 0, data = 0, checkpoint = 0;  // seconds
  double validation = 0;    // seconds, not part of the steps
  std::int64_t memory = 0;  // bytes, maximum over the steps
  Range loss_range, norm_range, seconds_range, speed_range;

  void Add(const Record& record);
  // Returns `record` with its times and speeds replaced by means over the steps added.
  Record Mean(Record record) const;
  // The interval that consists of the steps added. record: the last of them.
  Interval Since(const Record& record) const;
  TimeFacts Times(double elapsed) const;
};

// The losses that the closing summary prints.
struct Losses {
  History history;  // first step loss and best validation over all sessions
  double last_step = NAN, last_valid = NAN, test = NAN;

  void Add(const Record& record);
  LossFacts Facts() const;
};

// The closing lines, without the last newline. how: "done" or "stopped". elapsed: seconds.
std::string SummaryText(const char* how, const Record& record, const Tally& session,
                        const Losses& losses, double elapsed,
                        const std::vector<std::pair<std::string, std::string>>& files,
                        const std::vector<TrafficRow>& traffic = {}, const Gathers& gathers = {});

// These return lines without a newline. has_stages: with a column for the pipeline's bubble.
std::string TableHeader(bool has_stages = false);
std::string ShortTableHeader();  // only the columns that an evaluation line fills
// elapsed, left: seconds; a negative `left` is unknown and printed as "-".
std::string StepLine(const Record& record, double elapsed, double left, bool has_stages = false);
std::string EvaluationLine(const Record& record);
std::string LiveLine(const Record& record, std::int64_t total_steps, double left);

// The table of transfers, with a header line; empty without rows. steps, seconds: number and total
// duration of this session's steps.
std::string TrafficTable(const std::vector<TrafficRow>& rows, std::int64_t steps, double seconds);

// Standard output as a terminal or as a batch log.

// True if standard output is a terminal that a person watches. Open MPI gives each rank a
// pseudo-terminal of its own, so under mpirun the launcher's output decides.
bool IsTerminal();

class Screen {
 public:
  explicit Screen(bool terminal) : terminal_(terminal) {}
  ~Screen();

  bool Terminal() const { return terminal_; }
  void Line(std::string_view text);  // prints one or more lines; clears a live line first
  // Whether to make a text for Live now: on a terminal, at most every 0.2 s.
  bool WantsLive();
  void Live(std::string_view text);

 private:
  void Put(std::string_view text);

  bool terminal_;
  bool live_ = false;    // the screen shows a live line
  bool broken_ = false;  // the reader has gone: nothing is printed any more, log.txt has everything
  std::chrono::steady_clock::time_point last_live_{};
};

}  // namespace trireme::report
