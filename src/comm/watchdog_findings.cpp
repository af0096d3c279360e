// Files of an alarm: one a node, and the verdict.
#include "watchdog_findings.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <sstream>
#include <thread>
#include <utility>

#include "trireme/base/clock.hpp"

namespace trireme::comm {

namespace {

namespace fs = std::filesystem;

constexpr double kForFiles = 3;    // seconds in which other nodes write theirs
constexpr double kForVerdict = 4;  // and in which a lower node judges
constexpr double kForDisk = 2;     // a file system that answers at all
constexpr double kPause = 0.05;

void Pause() { std::this_thread::sleep_for(std::chrono::duration<double>(kPause)); }

std::string FileOf(const Round& round, int node) {
  return fmt::format("{}/node_{}.json", round.place, node);
}

// Whole or not at all.
bool WriteFile(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".tmp";
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  std::error_code error;
  if (!file) return false;
  fs::rename(temporary, path, error);
  return !error;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Runs `body` on a thread of its own and waits for it for some seconds: a call may never return.
// `body` owns what it touches.
void Within(double seconds, std::function<void()> body) {
  struct State {
    std::mutex mutex;
    std::condition_variable done;
    bool is_done = false;
  };
  const auto state = std::make_shared<State>();
  std::thread([state, body = std::move(body)] {
    body();
    const std::lock_guard lock(state->mutex);
    state->is_done = true;
    state->done.notify_all();
  }).detach();
  std::unique_lock lock(state->mutex);
  state->done.wait_for(lock, std::chrono::duration<double>(seconds),
                       [&] { return state->is_done; });
}

struct Shared {
  Round round;
  std::mutex mutex;
  Outcome outcome;
};

bool AllHeard(const Outcome& outcome) {
  return std::find(outcome.heard.begin(), outcome.heard.end(), false) == outcome.heard.end();
}

void ReadOthers(Shared& shared) {
  for (int node = 0; node < shared.round.nodes; ++node) {
    if (shared.outcome.heard[static_cast<std::size_t>(node)]) continue;
    const auto tables = FromText(ReadFile(FileOf(shared.round, node)));
    if (!tables) continue;
    const std::lock_guard lock(shared.mutex);
    shared.outcome.heard[static_cast<std::size_t>(node)] = true;
    shared.outcome.ranks.insert(shared.outcome.ranks.end(), tables->begin(), tables->end());
  }
}

bool LowerIsHeard(const Shared& shared) {
  const auto begin = shared.outcome.heard.begin();
  const auto end = begin + std::min(shared.round.node, shared.round.nodes);
  return std::find(begin, end, true) != end;
}

void Meet(Shared& shared) {
  std::error_code error;
  fs::create_directories(shared.round.place, error);
  const std::string text = ToText(shared.round.node, shared.round.reason, shared.round.own);
  const bool written = WriteFile(FileOf(shared.round, shared.round.node), text);
  {
    const std::lock_guard lock(shared.mutex);
    shared.outcome.written = written;
  }
  const double start = Seconds();
  while (!AllHeard(shared.outcome) && Seconds() - start < kForFiles) {
    ReadOthers(shared);
    if (LowerIsHeard(shared)) break;
    if (!AllHeard(shared.outcome)) Pause();
  }
  if (!LowerIsHeard(shared)) return;
  const double since = Seconds();
  while (!fs::exists(shared.round.place + "/verdict.txt", error) &&
         Seconds() - since < kForFiles + kForVerdict) {
    Pause();
  }
  const std::lock_guard lock(shared.mutex);
  shared.outcome.judged_elsewhere = fs::exists(shared.round.place + "/verdict.txt", error);
}

}  // namespace

bool FolderExists(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

Outcome Consult(const Round& round) {
  const auto shared = std::make_shared<Shared>();
  shared->round = round;
  shared->outcome.ranks = round.own;
  shared->outcome.heard.assign(static_cast<std::size_t>(round.nodes), false);
  const std::size_t own = round.nodes > 1 ? static_cast<std::size_t>(round.node) : 0;
  shared->outcome.heard[own] = true;
  if (round.nodes == 1) shared->round.nodes = 0;  // none to wait for
  const double patience = round.nodes == 1 ? kForDisk : kForFiles + kForVerdict;
  Within(patience, [shared] { Meet(*shared); });
  const std::lock_guard lock(shared->mutex);
  return shared->outcome;
}

std::vector<SilentNode> SilentOf(const Round& round, const Outcome& outcome, const Hosts& hosts,
                                 const std::vector<int>& nodes) {
  std::vector<SilentNode> silent;
  for (int node = 0; round.nodes > 1 && node < round.nodes; ++node) {
    if (outcome.heard[static_cast<std::size_t>(node)]) continue;
    SilentNode& lost = silent.emplace_back();
    for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
      if (nodes[rank] != node) continue;
      lost.host = hosts.Of(static_cast<int>(rank));
      lost.ranks.push_back(static_cast<int>(rank));
    }
  }
  return silent;
}

void SayVerdict(const Round& round, const Outcome& outcome, const std::vector<SilentNode>& silent,
                const std::function<void(const HangReport&)>& told) {
  const Verdict verdict = Judge(outcome.ranks, silent);
  std::string text = fmt::format("{}: {}{}", verdict.where, round.reason, verdict.text);
  text += outcome.written ? fmt::format("\n  Last calls and stacks of all ranks: {}", round.place)
                          : fmt::format("\n  {} could not be written.", round.place);
  const std::string line = "trireme: error: " + text + "\n";
  for (std::size_t at = 0; at < line.size();) {
    const auto written = ::write(STDERR_FILENO, line.data() + at, line.size() - at);
    if (written <= 0) break;
    at += static_cast<std::size_t>(written);
  }
  HangReport report = {.rank = -1, .host = {}, .step = verdict.step, .text = text};
  if (!verdict.culprits.empty()) {
    report.rank = verdict.culprits.front().rank;
    report.host = verdict.culprits.front().host;
  }
  Within(kForDisk, [report, told, place = round.place, line] {
    if (told) told(report);
    WriteFile(place + "/verdict.txt", line);
  });
}

}  // namespace trireme::comm
