// NCCL's log: a file in memory that NCCL opens through /proc, and the few words of it that matter.
#include "log.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string_view>

#include "make_channel.hpp"

namespace trireme::comm::nccl {

namespace {

constexpr std::int64_t kMostBytes = std::int64_t{1} << 20;
constexpr const char* kOwnVariables[] = {"NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"};

// NCCL has one log a process, which it opens once.
struct Kept {
  bool decided = false;
  int file = -1;  // of the memory; -1: the log is not kept
  bool sealed = false;
  std::size_t named = 0;  // bytes that belong to a communicator
  std::vector<std::pair<std::string, std::string>> communicators;
};

Kept& TheLog() {
  static Kept kept;
  return kept;
}

std::int64_t Size(int file) {
  struct stat facts {};
  return fstat(file, &facts) == 0 ? facts.st_size : 0;
}

std::string Text() {
  const int file = TheLog().file;
  std::string text(static_cast<std::size_t>(file < 0 ? 0 : Size(file)), '\0');
  const ssize_t read = text.empty() ? 0 : pread(file, text.data(), text.size(), 0);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, read)));
  return text;
}

// What stands behind `mark` in a line, up to the next blank; "" if it is not there.
std::string WordBehind(const std::string& line, std::string_view mark) {
  const std::size_t at = line.find(mark);
  if (at == std::string::npos) return "";
  const std::size_t begin = at + mark.size();
  return line.substr(begin, line.find(' ', begin) - begin);
}

template <typename Body>
void ForLines(const std::string& lines, Body&& body) {
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line);) body(line);
}

}  // namespace

void KeepLog() {
  Kept& log = TheLog();
  if (log.decided) return;
  log.decided = true;
  for (const char* const name : kOwnVariables) {
    if (std::getenv(name) != nullptr) return;
  }
  const int file = memfd_create("nccl_log", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return;
  const std::string path = fmt::format("/proc/self/fd/{}", file);
  // NCCL would write to standard output if it could not open the file.
  const int again = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (again < 0) {
    close(file);
    return;
  }
  close(again);
  setenv("NCCL_DEBUG", "INFO", 1);
  setenv("NCCL_DEBUG_SUBSYS", "INIT,GRAPH,TUNING", 1);
  setenv("NCCL_DEBUG_FILE", path.c_str(), 1);
  log.file = file;
}

void NameLog(const std::string& name) {
  Kept& log = TheLog();
  if (log.file < 0) return;
  const std::string text = Text();
  if (text.size() > log.named) {
    log.communicators.emplace_back(name, DescribeCommunicator(text.substr(log.named)));
  }
  log.named = text.size();
}

void BoundLog() {
  Kept& log = TheLog();
  if (log.file < 0 || log.sealed || Size(log.file) < kMostBytes) return;
  log.sealed = true;
  fcntl(log.file, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW);
}

std::vector<std::pair<std::string, std::string>> DescribeLog() {
  const Kept& log = TheLog();
  std::vector<std::pair<std::string, std::string>> facts = {{"library", Library()}};
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string_view variable = *each;
    const std::size_t equals = variable.find('=');
    const std::string name(variable.substr(0, equals));
    const bool own = log.file >= 0 && std::ranges::count(kOwnVariables, name) > 0;
    if (!name.starts_with("NCCL_") || equals == std::string_view::npos || own) continue;
    facts.emplace_back(name, variable.substr(equals + 1));
  }
  if (log.file < 0) {
    facts.emplace_back("taken", "not known: NCCL's log is not kept (NCCL_DEBUG is set)");
    return facts;
  }
  facts.insert(facts.end(), log.communicators.begin(), log.communicators.end());
  const std::string algorithms = DescribeAlgorithms(Text());
  if (!algorithms.empty()) facts.emplace_back("algorithms", algorithms);
  return facts;
}

std::string DescribeCommunicator(const std::string& lines) {
  std::set<std::string> ways;
  std::string channels, shape;
  ForLines(lines, [&](const std::string& line) {
    const std::string way = WordBehind(line, " via ");
    if (!way.empty() && line.find("Channel") != std::string::npos) ways.insert(way);
    if (const std::size_t at = line.find(" coll channels"); at != std::string::npos) {
      channels = line.substr(line.rfind(' ', at - 1) + 1, at - line.rfind(' ', at - 1) - 1);
    }
    for (const char* const mark : {"NCCL INFO Ring ", "NCCL INFO Trees "}) {
      const std::size_t at = line.find(mark);
      if (at != std::string::npos) shape += line.substr(at) + "\n";
    }
  });
  std::vector<std::string> facts;
  if (!ways.empty()) facts.push_back(fmt::format("{}", fmt::join(ways, ", ")));
  if (!channels.empty()) facts.push_back(channels + " channels");
  if (!shape.empty()) {
    constexpr std::size_t kShown = 0xffffffff;
    facts.push_back(fmt::format("rings and trees {:08x}", std::hash<std::string>{}(shape)&kShown));
  }
  return fmt::format("{}", fmt::join(facts, "; "));
}

// "NCCL INFO AllReduce: 4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}", since NCCL 2.24;
// before, numbers, some without the transfer's name.
std::string DescribeAlgorithms(const std::string& lines) {
  std::map<std::string, std::set<std::string>> taken;
  ForLines(lines, [&](const std::string& line) {
    const std::string algorithm = WordBehind(line, "Bytes -> Algo ");
    if (algorithm.empty()) return;
    std::string transfer = WordBehind(line, "NCCL INFO ");
    if (transfer.ends_with(':')) {
      transfer.pop_back();
    } else {
      transfer = "collectives";
    }
    taken[transfer].insert(fmt::format("{}/{}", algorithm, WordBehind(line, " proto ")));
  });
  std::vector<std::string> parts;
  for (const auto& [transfer, ways] : taken) {
    parts.push_back(fmt::format("{} {}", transfer, fmt::join(ways, ", ")));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace trireme::comm::nccl
