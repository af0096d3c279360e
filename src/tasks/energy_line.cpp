// EnergyLine: the closing line about energy.
#include <fmt/format.h>

#include <cmath>

#include "energy_use.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::tasks {

std::string EnergyLine(const report::Energy& energy) {
  if (!energy.not_available.empty()) return "energy  not available: " + energy.not_available;
  const auto number = [&energy](std::string_view name) {
    for (const auto& [key, value] : energy.numbers) {
      if (key == name) return value;
    }
    return std::nan("");
  };
  const auto text = [&energy](std::string_view name) {
    for (const auto& [key, value] : energy.texts) {
      if (key == name) return value;
    }
    return std::string();
  };
  std::string line =
      fmt::format("energy  {} of {}, {} a node", report::WithUnit(number("joules"), "J"),
                  text("covers"), report::WithUnit(number("watts_per_node"), "W"));
  if (const double each = number("joules_per_token"); !std::isnan(each)) {
    line += fmt::format(", {:.3g} J a token", each);
  }
  if (const double busy = number("gpu_utilisation"); !std::isnan(busy)) {
    line += fmt::format("; GPUs {:.0f}% busy, {} of the fullest in use", 100 * busy,
                        report::AsBytes(std::llround(number("gpu_memory_bytes"))));
  }
  constexpr double kSaid = 0.5;  // seconds
  if (const double lost = number("seconds_lost"); lost >= kSaid) {
    line += fmt::format("; no readings for {} of {}", report::AsClock(lost),
                        report::AsClock(lost + number("seconds")));
  }
  const std::string leaves_out = text("leaves_out");
  if (!leaves_out.empty()) line += "\n        without " + leaves_out;
  return line;
}

}  // namespace trireme::tasks
