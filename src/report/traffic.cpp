// The table of transfers between ranks in the closing summary.
#include <fmt/format.h>

#include <cmath>
#include <string>
#include <vector>

#include "table.hpp"

namespace trireme::report {

namespace {

std::string CallsField(double calls) {
  return calls < 9999.95 ? fmt::format("{:.1f}", calls) : WithThousands(std::llround(calls));
}

// A receive sends nothing.
std::string BytesField(double bytes) {
  return bytes > 0 ? AsBytes(std::llround(bytes)) : std::string("-");
}

std::string TrafficSeconds(double seconds) {
  const int decimals = seconds < 9.9995 ? 3 : seconds < 99.995 ? 2 : seconds < 9999.95 ? 1 : 0;
  return fmt::format("{:.{}f}", seconds, decimals);
}

}  // namespace

std::string TrafficTable(const std::vector<TrafficRow>& rows, std::int64_t steps, double seconds) {
  if (rows.empty() || steps == 0) return {};
  std::string text = fmt::format("{:<8}{:<11}{:<14}{:>12}{:>10}{:>10}{:>9}{:>7}{:>9}{:>9}",
                                 "traffic", "group", "transfer", "calls/step", "sent/step", "sent",
                                 "waited", "share", "longest", "hidden");
  for (const TrafficRow& row : rows) {
    const double rank_steps = row.ranks * static_cast<double>(steps);
    const std::string share =
        seconds > 0 ? fmt::format("{:.1f}%", 100 * row.seconds_waited / seconds) : "-";
    text += fmt::format("\n{:<8}{:<11}{:<14}{:>12}{:>10}{:>10}{:>9}{:>7}{:>9}{:>9}", "", row.group,
                        row.transfer, CallsField(row.calls / rank_steps),
                        BytesField(row.bytes / rank_steps), BytesField(row.bytes),
                        TrafficSeconds(row.seconds_waited), share, TrafficSeconds(row.longest_waited),
                        TrafficSeconds(row.seconds_hidden));
  }
  return text +
         "\n        training steps only; calls and bytes a step: of a rank that takes part; sent: "
         "by "
         "all ranks;"
         "\n        seconds waited, share of the steps' time, hidden: means over the ranks; "
         "longest: of "
         "one rank";
}

}  // namespace trireme::report
