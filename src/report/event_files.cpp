// The folder of a run's event files.
#include "event_files.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "event.pb.h"
#include "messages.hpp"
#include "record.hpp"
#include "trireme/base/error.hpp"

namespace trireme::report {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "events.out.tfevents.";

// Seconds in a file's name; 0 for a name of another form.
std::int64_t TimeIn(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  std::int64_t seconds = 0;
  const char* const begin = name.data() + std::min(kPrefix.size(), name.size());
  std::from_chars(begin, name.data() + name.size(), seconds);
  return seconds;
}

std::string HostName() {
  constexpr std::size_t kMost = 256;
  std::string name(kMost, '\0');
  if (gethostname(name.data(), name.size() - 1) != 0) return "host";
  name.resize(name.find('\0'));
  std::ranges::replace(name, '/', '_');
  return name;
}

// Bytes of a file that are kept; none: its session began at `step` or later.
std::int64_t KeptBytes(const std::string& path, std::int64_t step) {
  RecordReader reader(path);
  std::int64_t kept = 0;
  while (const auto payload = reader.Next()) {
    proto::Event event;
    if (!event.ParseFromString(*payload)) break;
    if (event.has_session_log() && event.step() > step) return 0;
    if (event.step() > step || EndsRun(event)) break;
    kept = reader.End();
  }
  if (reader.Failed()) throw RunError(path + ": cannot be read");
  return kept;
}

}  // namespace

std::vector<std::string> EventFiles(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error, ignored;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (!entry->path().filename().string().starts_with(kPrefix)) continue;
    if (entry->is_regular_file(ignored)) files.push_back(entry->path().string());
  }
  std::ranges::sort(files);
  return files;
}

std::string NextEventFile(const std::string& folder, const std::vector<std::string>& files,
                          std::int64_t unix_seconds) {
  // Files of one second, and of hosts whose clocks differ, would be sorted by host.
  if (!files.empty()) unix_seconds = std::max(unix_seconds, TimeIn(files.back()) + 1);
  return fmt::format("{}/{}{:010}.{}.{}.0", folder, kPrefix, unix_seconds, HostName(), getpid());
}

std::vector<std::string> CutEvents(const std::string& folder, std::int64_t step) {
  std::vector<std::string> left;
  for (const std::string& path : EventFiles(folder)) {
    const std::int64_t kept = step == 0 ? 0 : KeptBytes(path, step);
    std::error_code error;
    if (kept == 0) {
      fs::remove(path, error);
    } else if (static_cast<std::int64_t>(fs::file_size(path, error)) > kept && !error) {
      fs::resize_file(path, static_cast<std::uintmax_t>(kept), error);
    }
    if (error) {
      throw RunError(fmt::format("{}: cannot be cut to step {}: {}", path, step, error.message()));
    }
    if (kept > 0) left.push_back(path);
  }
  return left;
}

}  // namespace trireme::report
