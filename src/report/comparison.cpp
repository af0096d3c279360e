// ComparisonText: predicted and actual times of a step, term by term.
#include <fmt/format.h>

#include <algorithm>

#include "trireme/report/monitor.hpp"

namespace trireme::report {

namespace {

std::string SecondsField(double seconds) {
  return seconds < 1 ? fmt::format("{:.3g} ms", 1e3 * seconds) : fmt::format("{:.4g} s", seconds);
}

std::string RatioField(double predicted, double actual) {
  return actual > 0 && predicted > 0 ? fmt::format("{:.2f}", predicted / actual) : "-";
}

}  // namespace

std::string ComparisonText(const Comparison& comparison) {
  if (!comparison.not_available.empty()) {
    return fmt::format("{:<8}{}", "predict", "not compared: " + comparison.not_available);
  }
  constexpr double kShown = 0.002;  // of a step
  std::string text = fmt::format("{:<8}by {}\n{:<8}{:<22}{:>12}{:>12}{:>8}", "predict",
                                 comparison.machine, "", "a step", "predicted", "actual", "ratio");
  double step = 0;
  for (const Comparison::Term& term : comparison.terms) step = std::max(step, term.actual);
  for (const Comparison::Term& term : comparison.terms) {
    if (std::max(term.predicted, term.actual) < kShown * step) continue;
    text +=
        fmt::format("\n{:<8}{:<22}{:>12}{:>12}{:>8}", "", term.name, SecondsField(term.predicted),
                    SecondsField(term.actual), RatioField(term.predicted, term.actual));
  }
  return text + fmt::format("\n{:<8}{:<22}{:>12}{:>12}{:>8}", "", "memory, largest rank",
                            AsBytes(comparison.planned_bytes), AsBytes(comparison.used_bytes),
                            RatioField(static_cast<double>(comparison.planned_bytes),
                                       static_cast<double>(comparison.used_bytes)));
}

}  // namespace trireme::report
