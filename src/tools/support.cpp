// The archive: facts of program and host, then the run; the list of it on the screen.
#include "trireme/tools/support.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <filesystem>
#include <system_error>

#include "archive.hpp"
#include "entries.hpp"
#include "environment.hpp"
#include "host_facts.hpp"
#include "run_files.hpp"
#include "trireme/base/error.hpp"

namespace trireme::tools {

namespace {

namespace fs = std::filesystem;

// Last part of the run's path, of characters that suit every file system.
std::string NameOf(const std::string& run) {
  std::error_code error;
  std::string name = PlainPath(fs::absolute(run, error)).filename().string();
  for (char& c : name) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                       c == '.' || c == '_' || c == '-';
    if (!plain) c = '_';
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
    why = "there is no such folder";
  } else if (error) {
    why = error.message();
  } else if (!fs::is_directory(status)) {
    why = "not a folder";
  }
  if (why.empty()) return;
  throw InputError(fmt::format("--support: {}: {}", run, why),
                   "Give the folder of a run; an empty one makes an archive of this host alone.");
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
  const std::string path = top + ".tar.gz";
  WriteArchive(path, top, contents.entries);
  std::error_code error;
  fmt::print("{}: {} bytes; look into it before you send it: tar -tzf {}\n", path,
             fs::file_size(path, error), path);
  std::fflush(stdout);
}

}  // namespace trireme::tools
