// The support archive: facts about program and host, then the run's files; its list on the screen.
#include <archive.h>
#include <archive_entry.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <regex>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "entries.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/device/cores.hpp"
#include "trireme/tools/preflight.hpp"
#include "trireme/tools/watch.hpp"

namespace trireme::tools {

namespace {

namespace fs = std::filesystem;

// The path without "." and ".." and without a slash at its end.
fs::path PlainPath(const fs::path& path) {
  const fs::path plain = path.lexically_normal();
  return plain.has_filename() ? plain : plain.parent_path();
}

// Whether names of runs and files are made of such characters.
bool InName(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '.' ||
         c == '_' || c == '-';
}

// The last part of the run's path, in characters that every file system accepts.
std::string NameOf(const std::string& run) {
  std::error_code error;
  std::string name = PlainPath(fs::absolute(run, error)).filename().string();
  for (char& c : name) {
    if (!InName(c)) c = '_';
  }
  constexpr std::size_t kLongest = 100;
  return name.empty() ? "run" : name.substr(0, kLongest);
}

void RequireWritable() {
  if (access(".", W_OK | X_OK) == 0) return;
  throw InputError(
      "--support: the archive goes into the current directory, which cannot be written",
      "Change to a folder where you may write.");
}

void CheckRun(const std::string& run) {
  std::error_code error;
  const fs::file_status status = fs::status(run, error);
  std::string why;
  if (status.type() == fs::file_type::not_found) {
    // A job may have died before it made its run folder.
    fmt::print(stderr,
               "warning: --support: {}: there is no such folder: the archive has this host's facts "
               "and logs of batch jobs that name the run\n",
               run);
    return;
  }
  if (error) {
    why = error.message();
  } else if (!fs::is_directory(status)) {
    why = "not a folder";
  }
  if (why.empty()) return;
  throw InputError(fmt::format("--support: {}: {}", run, why), "Give the folder of a run.");
}

std::string Index(const Contents& contents, const std::string& run) {
  std::string text = fmt::format("trireme --support {}\n\n", run);
  for (const Entry& entry : contents.entries) {
    text += fmt::format("{:>12}  {}{}\n", entry.text.size(), entry.name,
                        entry.note.empty() ? "" : "  (" + entry.note + ")");
  }
  if (!contents.notes.empty()) text += "\nNot in it:\n";
  for (const std::string& note : contents.notes) text += "  " + note + "\n";
  text +=
      "\nLeft out on purpose: tokens, weights, samples, prompts, and what looks like a password or "
      "a key.\n";
  return text;
}

using Writer = std::unique_ptr<archive, decltype(&archive_write_free)>;
using Header = std::unique_ptr<archive_entry, decltype(&archive_entry_free)>;

constexpr int kFileMode = 0644;

[[noreturn]] void Fail(const std::string& path, const char* why) {
  throw InputError(
      fmt::format("{}: the archive cannot be written: {}", path, why == nullptr ? "failed" : why),
      "Call trireme --support in a folder where you may write.");
}

// Writes a .tar.gz with the entries in a folder `top`, all dated now. InputError if that fails.
void WriteArchive(const std::string& path, const std::string& top,
                  const std::vector<Entry>& entries) {
  const Writer writer(archive_write_new(), archive_write_free);
  archive_write_add_filter_gzip(writer.get());
  archive_write_set_format_pax_restricted(writer.get());
  const auto require = [&](bool done) {
    if (!done) Fail(path, archive_error_string(writer.get()));
  };
  require(archive_write_open_filename(writer.get(), path.c_str()) == ARCHIVE_OK);
  const std::time_t now = std::time(nullptr);
  for (const Entry& entry : entries) {
    const Header header(archive_entry_new(), archive_entry_free);
    archive_entry_set_pathname(header.get(), (top + "/" + entry.name).c_str());
    archive_entry_set_size(header.get(), std::ssize(entry.text));
    archive_entry_set_filetype(header.get(), AE_IFREG);
    archive_entry_set_perm(header.get(), kFileMode);
    archive_entry_set_mtime(header.get(), now, 0);
    require(archive_write_header(writer.get(), header.get()) == ARCHIVE_OK);
    require(archive_write_data(writer.get(), entry.text.data(), entry.text.size()) ==
            std::ssize(entry.text));
  }
  require(archive_write_close(writer.get()) == ARCHIVE_OK);
}

// Value after `key` in the first line of `path` that begins with it, unquoted; empty: none.
std::string ValueOf(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t start = line.find_first_not_of(" \t:=\"", key.size());
    if (start == std::string::npos) return {};
    return line.substr(start, line.find_last_not_of(" \t\"") + 1 - start);
  }
  return {};
}

void Add(std::string& text, const char* name, const std::string& value) {
  if (!value.empty()) text += fmt::format("{:<16}{}\n", name, value);
}

// Host, kernel, distribution, processors, memory and time; facts that cannot be read are left out.
std::string HostFacts() {
  std::string text;
  utsname system{};
  if (uname(&system) == 0) {
    Add(text, "host", system.nodename);
    Add(text, "kernel", fmt::format("{} {} {}", system.sysname, system.release, system.machine));
  }
  Add(text, "distribution", ValueOf("/etc/os-release", "PRETTY_NAME"));
  Add(text, "processor", ValueOf("/proc/cpuinfo", "model name"));
  Add(text, "cores online", FirstLine("/sys/devices/system/cpu/online"));
  Add(text, "cores usable", std::to_string(device::UsableNumbers().size()));
  Add(text, "instructions", ValueOf("/proc/cpuinfo", "flags"));
  Add(text, "memory", ValueOf("/proc/meminfo", "MemTotal"));
  Add(text, "memory free", ValueOf("/proc/meminfo", "MemAvailable"));
  Add(text, "swap", ValueOf("/proc/meminfo", "SwapTotal"));
  Add(text, "huge pages", ValueOf("/proc/meminfo", "HugePages_Total"));
  Add(text, "GPU driver", ValueOf("/proc/driver/nvidia/version", "NVRM version"));
  Add(text, "time", fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(std::time(nullptr))));
  return text;
}

// Shared libraries loaded in this process, with their paths and sizes.
std::string LoadedLibraries() {
  std::string text;
  for (const std::string& name : LoadedObjects()) {
    if (name.empty()) continue;  // the program itself
    std::error_code error;
    const fs::path real = fs::canonical(name, error);
    const std::uintmax_t bytes = error ? 0 : fs::file_size(real, error);
    text += error ? name + "\n"
                  : fmt::format("{} ({}, {} bytes)\n", name, real.filename().string(), bytes);
  }
  return text;
}

// Type, size and free space of the file systems of `run`, the current directory, $TMPDIR and
// /dev/shm.
std::string FileSystems(const std::string& run) {
  const char* const temporary = std::getenv("TMPDIR");
  const std::vector<std::pair<std::string, std::string>> places = {
      {"run", run},
      {"here", "."},
      {"$TMPDIR", temporary == nullptr ? "/tmp" : temporary},
      {"memory", "/dev/shm"}};
  std::string text;
  for (const auto& [name, path] : places) {
    struct statfs facts {};
    if (statfs(path.c_str(), &facts) != 0) continue;
    const double block = static_cast<double>(facts.f_bsize);
    constexpr double kGib = 1 << 30;
    text += fmt::format("{:<9}{:<10}{:>12.1f} GiB, {:>12.1f} GiB free, {:>12} files free  {}\n",
                        name, NameOfFileSystem(FileSystemNumber(facts.f_type)),
                        static_cast<double>(facts.f_blocks) * block / kGib,
                        static_cast<double>(facts.f_bavail) * block / kGib,
                        static_cast<std::uint64_t>(facts.f_ffree), path);
  }
  return text;
}

// Files of a run folder are chosen by name, so that no data, weights or texts enter the archive.

constexpr std::size_t kKib = std::size_t{1} << 10, kMib = std::size_t{1} << 20;
constexpr Bounds kDeck = {.head = kMib}, kLog = {.head = 64 * kKib, .tail = kMib};
constexpr Bounds kRecords = {.head = 64 * kKib, .tail = 2 * kMib};
constexpr Bounds kWhole = {.head = 4 * kMib};  // for JSON files: a cut one is useless
constexpr std::size_t kMostCheckpoints = 8, kMostHangFiles = 64, kMostJobLogs = 3;
constexpr std::size_t kMostListed = 2000;

using Filter = std::function<std::string(const std::string&)>;

void AddFile(const std::string& path, const std::string& name, Bounds bounds, const Filter& filter,
             Contents& contents) {
  std::optional<FileText> file = ReadBounded(path, bounds, true, contents);
  if (!file) return;
  contents.entries.push_back({"run/" + name, WithoutPasswords(filter(file->text)), file->note});
}

// Adds a JSON file without its texts; for a damaged file, only a note about it.
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

// Files and folders below `folder` whose relative names `wanted` accepts, newest first.
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

// Adds the `most` newest JSON files of run/folder whose names match. If there are more
// and `what` is given, a note counts those left out and calls them `what`.
void AddNewest(const std::string& run, const std::string& folder, const std::regex& names,
               std::size_t most, const char* what, Contents& contents) {
  const auto found = Below(
      run + "/" + folder, true,
      [&](const std::string& name) { return std::regex_match(name, names); }, contents);
  for (std::size_t i = 0; i < std::min(found.size(), most); ++i) {
    AddJson(found[i].path, folder + "/" + found[i].name, contents);
  }
  if (found.size() <= most || what == nullptr) return;
  contents.notes.push_back(fmt::format("{} older {} were left out", found.size() - most, what));
}

// Whether a log names the run as a path ("into runs/first", "first/log.txt", "job.output=first"):
// a name alone may be a word of a sentence.
bool NamesRun(const std::string& text, const std::string& name) {
  for (std::size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
    const std::size_t end = at + name.size();
    const char before = at > 0 ? text[at - 1] : '\n', after = end < text.size() ? text[end] : '\n';
    // A full stop after the name may end a sentence.
    const bool stop = after == '.' && (end + 1 >= text.size() || !InName(text[end + 1]));
    if (InName(before) || (InName(after) && !stop)) continue;
    if (before == '/' || before == '=' || before == '\'' || before == '"' || after == '/' ||
        std::string_view(text).substr(0, at).ends_with(" into ")) {
      return true;
    }
  }
  return false;
}

// Adds logs of batch jobs. Looks where jobs are submitted: in the run folder, the two folders above
// it and the current directory.
void AddJobLogs(const std::string& run, Contents& contents) {
  static const std::regex log(
      R"((slurm|trireme)[-_.].*\.(out|log|err)|[^/]*[-.][0-9]+\.(out|err))");
  std::error_code ignored;
  const fs::path absolute = PlainPath(fs::absolute(run, ignored));
  const fs::path above = absolute.parent_path(), here = fs::current_path(ignored);
  std::vector<std::string> folders;
  for (const fs::path& folder : {absolute, above, above.parent_path(), here}) {
    const bool known = std::ranges::any_of(folders, [&](const std::string& other) {
      return folder == other || fs::equivalent(folder, other, ignored);
    });
    if (!known) folders.push_back(folder.string());
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
      // Logs beside the run folder may belong to other runs.
      if (!file || (folder != folders.front() && !NamesRun(file->text, run_name))) continue;
      contents.entries.push_back(
          {"job/" + each.name, WithoutPasswords(LogWithoutSamples(file->text)), file->note});
      ++taken;
    }
  }
  if (taken > 0) return;
  contents.notes.push_back(fmt::format(
      "no log of a batch job (slurm-*.out, trireme-*.log and the like) that names {} in {}",
      run_name, fmt::join(folders, ", ")));
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

// Adds deck, log, records, deaths of jobs, the checkpoints' run.json, nodes' reports about hung
// ranks, logs of batch jobs beside the run, and a list of all files with their sizes.
void AddRun(const std::string& run, Contents& contents) {
  const Filter as_it_is = [](const std::string& text) { return text; };
  AddFile(run + "/deck.in", "deck.in", kDeck, DeckWithoutTexts, contents);
  AddFile(run + "/log.txt", "log.txt", kLog, LogWithoutSamples, contents);
  AddFile(run + "/metrics.jsonl", "metrics.jsonl", kRecords, as_it_is, contents);
  for (const char* const name : {"summary.json", "preflight.json", "restarts.json", "run.lock"}) {
    AddJson(run + "/" + name, name, contents);
  }
  for (const Found& each : Below(
           run, false, [](const std::string& name) { return name.starts_with("deaths."); },
           contents)) {
    AddFile(each.path, each.name, kDeck, as_it_is, contents);
  }
  AddNewest(run, "checkpoints", std::regex(R"(step_[0-9]+/run\.json)"), kMostCheckpoints,
            "checkpoints", contents);
  AddNewest(run, "hang", std::regex(R"([0-9_]+/[A-Za-z_]+[0-9]*\.json)"), kMostHangFiles, nullptr,
            contents);
  AddJobLogs(run, contents);
  AddListing(run, contents);
}

}  // namespace

void MakeArchive(const std::string& given, const std::string& version) {
  RequireWritable();
  const std::string run = PlainPath(given).string();
  CheckRun(run);
  Contents contents;
  contents.entries = {{"version.txt", version, ""},
                      {"libraries.txt", LoadedLibraries(), ""},
                      {"host.txt", HostFacts(), ""},
                      {"limits.txt", LimitsText(), ""},
                      {"file_systems.txt", FileSystems(run), ""},
                      {"environment.txt", RelevantEnvironment(OwnEnvironment()), ""}};
  AddRun(run, contents);

  const std::string index = Index(contents, run);
  std::size_t bytes = index.size();
  for (const Entry& entry : contents.entries) bytes += entry.text.size();
  fmt::print("{}\n{} bytes in {} files, before compression\n", index, bytes,
             contents.entries.size() + 1);
  std::fflush(stdout);
  contents.entries.insert(contents.entries.begin(), {"contents.txt", index, ""});

  const std::string top =
      fmt::format("{}_{:%Y%m%d_%H%M%S}", NameOf(run), fmt::gmtime(std::time(nullptr)));
  const std::string path = top + ".tar.gz", partial = NewNameBeside(path);
  std::error_code error;
  try {
    WriteArchive(partial, top, contents.entries);
    fs::rename(partial, path, error);
    if (error) Fail(path, error.message().c_str());
  } catch (const Error&) {
    fs::remove(partial, error);
    throw;
  }
  fmt::print("{}: {} bytes; look into it before you send it: tar -tzf {}\n", path,
             fs::file_size(path, error), path);
  std::fflush(stdout);
}

}  // namespace trireme::tools
