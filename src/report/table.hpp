// The columns of the screen: one function per kind of line, all of one width.
#ifndef TRIREME_SRC_REPORT_TABLE_HPP_
#define TRIREME_SRC_REPORT_TABLE_HPP_

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/report/monitor.hpp"

namespace trireme::report {

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

}  // namespace trireme::report

#endif  // TRIREME_SRC_REPORT_TABLE_HPP_
