// Runs vis/report.py in a process of its own, with a time limit.
#include "trireme/report/monitor.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <system_error>

#include "trireme/base/clock.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/program.hpp"

extern char** environ;  // NOLINT(readability-redundant-declaration): not in every <unistd.h>

namespace trireme::report {

namespace {

namespace fs = std::filesystem;

constexpr int kPollMilliseconds = 50;           // interval between checks for an end or a stop
constexpr std::size_t kLongestComplaint = 400;  // bytes of the script's message that are kept

std::string FirstThatExists(std::initializer_list<fs::path> places) {
  for (const fs::path& place : places) {
    std::error_code ignored;
    if (fs::exists(place, ignored)) return place.lexically_normal().string();
  }
  return {};
}

bool IsProgram(const fs::path& path) { return access(path.c_str(), X_OK) == 0; }

std::string OnThePath(std::string_view name) {
  const char* const path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "/usr/bin:/bin" : path;
  while (!rest.empty()) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(rest.size(), folder.size() + 1));
    const fs::path candidate = fs::path(folder) / name;
    if (!folder.empty() && IsProgram(candidate)) return candidate.string();
  }
  return {};
}

// `word` quoted for a shell where needed.
std::string Quoted(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./+,:@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

// A started script: its process group and the read end of its standard error.
struct Script {
  pid_t process = -1;
  Descriptor errors;
};

// Starts `words` as a process group of its own, without blocked or ignored signals. errors: file
// descriptor for its standard error; the other streams are /dev/null. Returns 0 or an errno.
int Start(const std::vector<std::string>& words, int errors, pid_t& process) {
  posix_spawn_file_actions_t actions = {};
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, errors, STDERR_FILENO);
  posix_spawnattr_t attributes = {};
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const int error =
      posix_spawnp(&process, arguments[0], &actions, &attributes, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return error;
}

// Starts the script; on failure returns nullopt and sets `error` to an errno.
std::optional<Script> StartScript(const PageCommand& command, double seconds, int& error) {
  std::array<int, 2> ends{};
  error = pipe2(ends.data(), O_CLOEXEC) == 0 ? 0 : errno;
  if (error != 0) return std::nullopt;
  Script script{.errors = Descriptor(ends[0])};
  const Descriptor written(ends[1]);
  // The script gets the time limit, too, in case it outlives this program.
  const auto bound = std::to_string(static_cast<long>(std::ceil(seconds)) + 1);
  error = Start({command.python, command.script, "--seconds", bound, "--", command.folder},
                written.Get(), script.process);
  return error == 0 ? std::optional(std::move(script)) : std::nullopt;
}

// Waits for at most kPollMilliseconds and appends what the pipe delivers to `text`; drops it once
// `text` holds kLongestComplaint bytes.
void ReadSome(const Script& script, std::string& text) {
  pollfd ready = {.fd = script.errors.Get(), .events = POLLIN, .revents = 0};
  if (poll(&ready, 1, kPollMilliseconds) <= 0) return;
  std::array<char, 4096> buffer{};
  const ssize_t count = read(ready.fd, buffer.data(), buffer.size());
  if (count > 0 && text.size() < kLongestComplaint) {
    text.append(buffer.data(), static_cast<std::size_t>(count));
  } else if (count <= 0) {
    usleep(kPollMilliseconds * 1000);  // the pipe is closed: the process is about to end
  }
}

void End(const Script& script) {
  kill(-script.process, SIGKILL);
  int ignored = 0;
  Retry([&] { return waitpid(script.process, &ignored, 0); });
}

// Runs the script. Returns why there is no page, or an empty string if there is one.
std::string RunScript(const PageCommand& command, double seconds,
                      const std::function<bool()>& stop) {
  int error = 0;
  const double deadline = Seconds() + seconds;
  const std::optional<Script> script = StartScript(command, seconds, error);
  if (!script) return command.python + ": " + ErrorText(error);
  std::string text;
  while (true) {
    ReadSome(*script, text);
    int status = 0;
    const pid_t ended = waitpid(script->process, &status, WNOHANG);
    if (ended == script->process && WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
    if (ended == script->process) {
      ReadSome(*script, text);
      const std::string line = text.substr(0, std::min(text.find('\n'), kLongestComplaint));
      return line.empty() ? command.script + " failed" : line;
    }
    if (ended < 0 && errno != EINTR) return "its process was lost";
    if (stop()) {
      End(*script);
      return "a signal came";
    }
    if (Seconds() > deadline) {
      End(*script);
      return fmt::format("it took longer than {:.0f} s", seconds);
    }
  }
}

std::string WhyNot(const PageOrder& order, const PageCommand& command,
                   const std::function<bool()>& stop) {
  if (order.seconds <= 0) return "the job's time ends";
  if (command.script.empty()) return "vis/report.py is not there";
  if (command.python.empty()) return "there is no python3";
  if (stop()) return "a signal came";
  return RunScript(command, order.seconds, stop);
}

}  // namespace

std::string PageCommand::Text() const {
  return fmt::format("{} {} {}", python.empty() ? "python3" : Quoted(python),
                     script.empty() ? "vis/report.py" : Quoted(script), Quoted(folder));
}

PageCommand FindPageCommand(const std::string& folder, const std::string& program,
                            const std::string& source) {
  PageCommand command;
  command.folder = folder;
  const fs::path beside = fs::path(program).parent_path();
  command.script =
      FirstThatExists({beside / "../share/trireme/vis/report.py", beside / "../vis/report.py",
                       fs::path(source) / "vis/report.py"});
  const char* const given = std::getenv("TRIREME_PYTHON");
  if (given != nullptr) command.python = given;
  for (const fs::path& place :
       {beside / "venv/bin/python3", beside / "../share/trireme/venv/bin/python3"}) {
    if (command.python.empty() && IsProgram(place)) {
      command.python = place.lexically_normal().string();
    }
  }
  if (command.python.empty()) command.python = OnThePath("python3");
  return command;
}

std::string PageCommandText(const std::string& folder) {
  return FindPageCommand(folder, ProgramFile(), TRIREME_SOURCE_FOLDER).Text();
}

void MakePage(const PageOrder& order, const std::function<bool()>& stop) noexcept {
  try {
    const PageCommand command = FindPageCommand(order.folder, ProgramFile(), TRIREME_SOURCE_FOLDER);
    const std::string reason = WhyNot(order, command, stop);
    if (reason.empty()) {
      fmt::print("page    {}/report.html\n", order.folder);
    } else {
      fmt::print("page    not made: {}; by hand: {}\n", reason, command.Text());
    }
    std::fflush(stdout);
  } catch (...) {  // the run has succeeded; a failure here must not change that
  }
}

}  // namespace trireme::report
