// Sums over step records, for the means of the next line and the totals of the closing summary.
#ifndef TRIREME_SRC_REPORT_TALLY_HPP_
#define TRIREME_SRC_REPORT_TALLY_HPP_

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "metrics_file.hpp"
#include "trireme/report/records.hpp"
#include "trireme/report/summary.hpp"

namespace trireme::report {

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

}  // namespace trireme::report

#endif  // TRIREME_SRC_REPORT_TALLY_HPP_
