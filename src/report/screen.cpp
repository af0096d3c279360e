// Standard output as a terminal or as a batch log.
#include "screen.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>

namespace trireme::report {

namespace {

constexpr std::chrono::milliseconds kLiveInterval{200};
constexpr std::string_view kClear = "\r\x1b[K";
constexpr int kDefaultColumns = 80;

// The launcher's standard output: a terminal is named /dev/..., a pipe or a file is not.
bool LauncherHasTerminal() {
  const std::string link = fmt::format("/proc/{}/fd/1", getppid());
  std::array<char, 256> target{};
  const ssize_t length = readlink(link.c_str(), target.data(), target.size());
  if (length <= 0) return false;
  const std::string_view path(target.data(), static_cast<std::size_t>(length));
  if (!path.starts_with("/dev/pts/") && !path.starts_with("/dev/tty")) return false;
  const int file = open(link.c_str(), O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return false;
  const bool terminal = isatty(file) == 1;
  close(file);
  return terminal;
}

// A reader that went away raises SIGPIPE at the next write, which would end the run: held back
// while this lives, and taken off the list.
class WithoutPipeSignal {
 public:
  WithoutPipeSignal() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~WithoutPipeSignal() {
    const timespec now{};
    sigtimedwait(&pipe_, nullptr, &now);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutPipeSignal(const WithoutPipeSignal&) = delete;
  WithoutPipeSignal& operator=(const WithoutPipeSignal&) = delete;

 private:
  sigset_t pipe_{};
  sigset_t before_{};
};

std::size_t Columns() {
  winsize size{};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return static_cast<std::size_t>(known ? size.ws_col : kDefaultColumns);
}

}  // namespace

bool IsTerminal() {
  if (isatty(STDOUT_FILENO) != 1) return false;
  const char* kind = std::getenv("TERM");
  if (kind == nullptr || std::string_view(kind) == "dumb") return false;
  return std::getenv("OMPI_COMM_WORLD_RANK") == nullptr || LauncherHasTerminal();
}

Screen::~Screen() {
  if (live_) Put(kClear);
}

void Screen::Line(std::string_view text) {
  if (live_) Put(kClear);
  live_ = false;
  Put(std::string(text) + "\n");
}

bool Screen::WantsLive() {
  if (!terminal_) return false;
  const auto now = std::chrono::steady_clock::now();
  if (now - last_live_ < kLiveInterval) return false;
  last_live_ = now;
  return true;
}

void Screen::Live(std::string_view text) {
  Put(std::string(kClear) + std::string(text.substr(0, Columns() - 1)));
  live_ = true;
}

void Screen::Put(std::string_view text) {
  if (broken_) return;
  const WithoutPipeSignal guard;
  const bool ok = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (std::fflush(stdout) == 0 && ok) return;
  broken_ = true;
  std::clearerr(stdout);
}

}  // namespace trireme::report
