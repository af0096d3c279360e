// The columns of the screen: one function a kind of line, all of one width.
#ifndef TRIREME_SRC_MONITOR_TABLE_HPP_
#define TRIREME_SRC_MONITOR_TABLE_HPP_

#include <cstdint>
#include <string>

#include "trireme/monitor/monitor.hpp"

namespace trireme::monitor {

// Lines without a newline.
std::string TableHeader();
std::string ShortTableHeader();  // the columns that an evaluation line fills
// `elapsed` and `left` in seconds; a negative `left` is unknown and prints as "-".
std::string StepLine(const Record& record, double elapsed, double left);
std::string EvaluationLine(const Record& record);
std::string LiveLine(const Record& record, std::int64_t total_steps, double left);

std::string BannerText(const BannerFacts& facts);  // several lines, without the last newline

}  // namespace trireme::monitor

#endif  // TRIREME_SRC_MONITOR_TABLE_HPP_
