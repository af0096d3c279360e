// Files of a run folder: which are taken, and how much of each.
#include "run_files.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <regex>
#include <vector>

#include "redact.hpp"

namespace trireme::tools {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kKib = std::size_t{1} << 10, kMib = std::size_t{1} << 20;
constexpr Bounds kDeck = {.head = kMib}, kLog = {.head = 64 * kKib, .tail = kMib};
constexpr Bounds kRecords = {.head = 64 * kKib, .tail = 2 * kMib};
constexpr Bounds kWhole = {.head = 4 * kMib};  // of a JSON file, which is of no use in part
constexpr std::size_t kMostCheckpoints = 8, kMostHangFiles = 64, kMostJobLogs = 3;
constexpr std::size_t kMostListed = 2000;

using Filter = std::function<std::string(const std::string&)>;

void AddFile(const std::string& path, const std::string& name, Bounds bounds, const Filter& filter,
             Contents& contents) {
  std::optional<FileText> file = ReadBounded(path, bounds, true, contents);
  if (!file) return;
  contents.entries.push_back({"run/" + name, WithoutPasswords(filter(file->text)), file->note});
}

// A damaged JSON file is left out, with a note: its texts cannot be told apart.
void AddJson(const std::string& path, const std::string& name, Contents& contents) {
  const std::optional<FileText> file = ReadBounded(path, kWhole, false, contents);
  if (!file) return;
  const std::string clean = JsonWithoutTexts(file->text);
  if (clean.empty()) {
    contents.notes.push_back(fmt::format("{}: damaged: no JSON in its {} bytes{}", path,
                                         file->text.size(),
                                         file->note.empty() ? "" : " (" + file->note + ")"));
    return;
  }
  contents.entries.push_back({"run/" + name, clean, ""});
}

struct Found {
  std::string path, name;  // name: relative to the folder
  fs::file_time_type time;
};

// Files below `folder` that `wanted` accepts by their relative names, the newest first.
std::vector<Found> Below(const std::string& folder, bool deep,
                         const std::function<bool(const std::string&)>& wanted,
                         Contents& contents) {
  std::vector<Found> found;
  std::error_code error;
  if (!fs::is_directory(folder, error)) return found;
  auto each = fs::recursive_directory_iterator(
      folder, fs::directory_options::skip_permission_denied, error);
  if (error) contents.notes.push_back(fmt::format("{}: {}", folder, error.message()));
  for (; !error && each != fs::recursive_directory_iterator(); each.increment(error)) {
    if (!deep) each.disable_recursion_pending();
    const std::string name = each->path().lexically_relative(folder).string();
    std::error_code gone;
    if (wanted(name))
      found.push_back({each->path(), name, fs::last_write_time(each->path(), gone)});
  }
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    return a.time != b.time ? a.time > b.time : a.name < b.name;
  });
  return found;
}

void AddCheckpoints(const std::string& run, Contents& contents) {
  static const std::regex run_json(R"(step_[0-9]+/run\.json)");
  const auto found = Below(
      run + "/checkpoints", true,
      [](const std::string& name) { return std::regex_match(name, run_json); }, contents);
  for (std::size_t i = 0; i < std::min(found.size(), kMostCheckpoints); ++i) {
    AddJson(found[i].path, "checkpoints/" + found[i].name, contents);
  }
  if (found.size() > kMostCheckpoints) {
    contents.notes.push_back(
        fmt::format("{} older checkpoints were left out", found.size() - kMostCheckpoints));
  }
}

void AddHangs(const std::string& run, Contents& contents) {
  static const std::regex node(R"([0-9_]+/[A-Za-z_]+[0-9]*\.json)");
  const auto found = Below(
      run + "/hang", true, [](const std::string& name) { return std::regex_match(name, node); },
      contents);
  for (std::size_t i = 0; i < std::min(found.size(), kMostHangFiles); ++i) {
    AddJson(found[i].path, "hang/" + found[i].name, contents);
  }
}

// Logs of batch jobs lie where they were submitted: in the run folder, above it, or here.
void AddJobLogs(const std::string& run, Contents& contents) {
  static const std::regex log(
      R"((slurm|trireme)[-_.].*\.(out|log|err)|[^/]*[-.][0-9]+\.(out|err))");
  std::vector<std::string> folders = {run};
  std::error_code ignored;
  const fs::path absolute = PlainPath(fs::absolute(run, ignored));
  const fs::path above = absolute.parent_path(), here = fs::current_path(ignored);
  folders.push_back(above.string());
  if (!fs::equivalent(above, here, ignored) && !fs::equivalent(absolute, here, ignored)) {
    folders.emplace_back(".");
  }
  const std::string run_name = absolute.filename().string();
  std::size_t taken = 0;
  for (const std::string& folder : folders) {
    const auto found = Below(
        folder, false, [](const std::string& name) { return std::regex_match(name, log); },
        contents);
    for (const Found& each : found) {
      if (taken == kMostJobLogs) return;
      const std::optional<FileText> file = ReadBounded(each.path, kLog, false, contents);
      // Jobs of other runs may have written beside it.
      if (!file || (folder != run && file->text.find(run_name) == std::string::npos)) continue;
      contents.entries.push_back(
          {"job/" + each.name, WithoutPasswords(LogWithoutSamples(file->text)), file->note});
      ++taken;
    }
  }
}

void AddListing(const std::string& run, Contents& contents) {
  const auto found = Below(
      run, true, [](const std::string&) { return true; }, contents);
  std::string text;
  for (std::size_t i = 0; i < std::min(found.size(), kMostListed); ++i) {
    struct stat facts {};
    if (lstat(found[i].path.c_str(), &facts) != 0) continue;
    const char kind = S_ISDIR(facts.st_mode) ? 'd' : S_ISLNK(facts.st_mode) ? 'l' : '-';
    text +=
        fmt::format("{}{:03o} {:>6} {:>16} {:%Y-%m-%d %H:%M:%S} {}\n", kind, facts.st_mode & 07777U,
                    facts.st_uid, facts.st_size, fmt::gmtime(facts.st_mtime), found[i].name);
  }
  if (found.size() > kMostListed) text += fmt::format("{} more\n", found.size() - kMostListed);
  if (!text.empty()) contents.entries.push_back({"files.txt", text, ""});
}

}  // namespace

fs::path PlainPath(const fs::path& path) {
  const fs::path plain = path.lexically_normal();
  return plain.has_filename() ? plain : plain.parent_path();
}

void AddRun(const std::string& run, Contents& contents) {
  const Filter as_it_is = [](const std::string& text) { return text; };
  AddFile(run + "/deck.in", "deck.in", kDeck, DeckWithoutTexts, contents);
  AddFile(run + "/log.txt", "log.txt", kLog, LogWithoutSamples, contents);
  AddFile(run + "/metrics.jsonl", "metrics.jsonl", kRecords, as_it_is, contents);
  for (const char* const name : {"summary.json", "preflight.json", "restarts.json", "run.lock"}) {
    AddJson(run + "/" + name, name, contents);
  }
  AddCheckpoints(run, contents);
  AddHangs(run, contents);
  AddJobLogs(run, contents);
  AddListing(run, contents);
}

}  // namespace trireme::tools
