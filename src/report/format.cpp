// Formats numbers for screens and logs: thousands, suffixes, clocks, bytes, dates.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <string>

#include "trireme/report/monitor.hpp"

namespace trireme::report {

namespace {

// Three significant digits of a value in [0, 1000).
std::string ThreeDigits(double value) {
  if (value < 9.995) return fmt::format("{:.2f}", value);
  if (value < 99.95) return fmt::format("{:.1f}", value);
  return fmt::format("{:.0f}", value);
}

}  // namespace

std::string WithThousands(std::int64_t value) {
  std::string text = std::to_string(value);
  const int first_digit = value < 0 ? 1 : 0;
  for (int at = static_cast<int>(text.size()) - 3; at > first_digit; at -= 3) {
    text.insert(static_cast<std::size_t>(at), ",");
  }
  return text;
}

std::string Counted(std::int64_t count, const std::string& noun, const char* ending) {
  return fmt::format("{} {}{}", WithThousands(count), noun, count == 1 ? "" : ending);
}

std::string WithSuffix(double value) {
  if (!std::isfinite(value)) return fmt::format("{}", value);
  if (value < 0) return "-" + WithSuffix(-value);
  if (value < 999.5) {
    return value == std::floor(value) ? fmt::format("{:.0f}", value) : ThreeDigits(value);
  }
  constexpr std::array<char, 5> kSuffixes = {'k', 'M', 'G', 'T', 'P'};
  std::size_t suffix = 0;
  value /= 1000;
  while (value >= 999.5 && suffix + 1 < kSuffixes.size()) {
    value /= 1000;
    ++suffix;
  }
  return fmt::format("{} {}", ThreeDigits(value), kSuffixes[suffix]);
}

std::string WithUnit(double value, const std::string& unit) {
  const std::string text = WithSuffix(value);
  return text.find(' ') == std::string::npos ? text + " " + unit : text + unit;
}

std::string AsClock(double seconds) {
  constexpr double kLongest = 999.0 * 86400;  // longer times say nothing
  if (!(seconds >= 0) || seconds > kLongest) return "-";
  const std::int64_t total = std::llround(seconds);
  const std::int64_t hours = total / 3600, minutes = total / 60 % 60;
  if (hours >= 240) return fmt::format("{}d {:02}h", hours / 24, hours % 24);
  if (hours >= 100) return fmt::format("{}d {:02}:{:02}", hours / 24, hours % 24, minutes);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, total % 60);
  return fmt::format("{}:{:02}", minutes, total % 60);
}

std::string AsBytes(std::int64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  constexpr std::array<const char*, 5> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  double value = static_cast<double>(bytes) / 1024;
  while (value >= 1023.5 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return value < 9.95 ? fmt::format("{:.1f} {}", value, kUnits[unit])
                      : fmt::format("{:.0f} {}", value, kUnits[unit]);
}

std::string UtcNow() { return fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr))); }

}  // namespace trireme::report
