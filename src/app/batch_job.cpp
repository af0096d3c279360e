// Slurm's environment of a job.
#include "trireme/app/batch_job.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <string_view>

namespace trireme::app {

namespace {

constexpr std::size_t kLongestName = 128;  // of a cluster; Slurm's own limit is 40

std::string_view Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

// The whole text as a number; none if anything else stands in it.
template <typename Number>
std::optional<Number> ParseNumber(std::string_view text) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// A field of a time: digits of text[at, at + length).
std::optional<int> Field(std::string_view text, std::size_t at, std::size_t length) {
  const std::string_view digits = text.substr(at, length);
  if (digits.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  return ParseNumber<int>(digits);
}

// Unix seconds of 2026-11-22T15:04:05, local time.
std::optional<double> ParseLocalTime(std::string_view text) {
  constexpr std::string_view kForm = "YYYY-MM-DDTHH:MM:SS";
  if (text.size() != kForm.size()) return std::nullopt;
  for (const std::size_t at : {4U, 7U, 10U, 13U, 16U}) {
    if (text[at] != kForm[at]) return std::nullopt;
  }
  const auto year = Field(text, 0, 4), month = Field(text, 5, 2), day = Field(text, 8, 2);
  const auto hour = Field(text, 11, 2), minute = Field(text, 14, 2), second = Field(text, 17, 2);
  if (!year || !month || !day || !hour || !minute || !second) return std::nullopt;
  if (*month < 1 || *month > 12 || *day < 1 || *hour > 23 || *minute > 59 || *second > 60) {
    return std::nullopt;
  }
  std::tm local = {};
  local.tm_year = *year - 1900;
  local.tm_mon = *month - 1;
  local.tm_mday = *day;
  local.tm_hour = *hour;
  local.tm_min = *minute;
  local.tm_sec = *second;
  local.tm_isdst = -1;  // summer time as the place has it on that day
  const std::time_t seconds = std::mktime(&local);
  // mktime moves the 31st of a shorter month into the next one.
  if (seconds == -1 || local.tm_mon != *month - 1) return std::nullopt;
  return static_cast<double>(seconds);
}

std::optional<double> ParseEnd(std::string_view text) {
  const std::optional<double> end = text.find_first_not_of("0123456789.") == std::string_view::npos
                                        ? ParseNumber<double>(text)
                                        : ParseLocalTime(text);
  // 0: Slurm's "unknown".
  return end && std::isfinite(*end) && *end > 0 ? end : std::nullopt;
}

}  // namespace

BatchJob ReadBatchJob() {
  BatchJob job;
  const std::string_view id = Variable("SLURM_JOB_ID");
  if (ParseNumber<std::uint64_t>(id)) job.id = id;
  const std::string_view cluster = Variable("SLURM_CLUSTER_NAME");
  const bool printable =
      std::all_of(cluster.begin(), cluster.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (printable && cluster.size() <= kLongestName) job.cluster = cluster;
  job.restarts = std::max(ParseNumber<int>(Variable("SLURM_RESTART_COUNT")).value_or(0), 0);
  job.end_unix_seconds = ParseEnd(Variable("SLURM_JOB_END_TIME"));
  if (!job.end_unix_seconds) job.end_unix_seconds = ParseEnd(Variable("TRIREME_JOB_END_TIME"));
  return job;
}

}  // namespace trireme::app
