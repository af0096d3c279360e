// The waiting process: reads the folder's path, then the end of the pipe, which comes with the end
// of the other process.
#include "trireme/tasks/cleaner.hpp"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <system_error>

#include "trireme/base/descriptor.hpp"

namespace trireme::tasks {

namespace {

[[noreturn]] void WaitAndClean(int pipe_end) {
  setsid();
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE}) {
    std::signal(signal, SIG_IGN);
  }
  // A launcher waits until nobody holds the streams that it reads.
  const int null = open("/dev/null", O_RDWR);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (null >= 0) dup2(null, stream);
  }
  std::string path;
  std::array<char, 4096> part{};
  while (true) {
    const ssize_t got = Retry([&] { return read(pipe_end, part.data(), part.size()); });
    if (got <= 0) break;
    path.append(part.data(), static_cast<std::size_t>(got));
  }
  // Other ranks may be about to write their last files.
  constexpr int kTries = 20;
  constexpr useconds_t kPause = 100'000;
  std::error_code error;
  for (int i = 0; i < kTries && !path.empty() && std::filesystem::exists(path, error); ++i) {
    if (i > 0) usleep(kPause);
    std::filesystem::remove_all(path, error);
  }
  _exit(0);
}

}  // namespace

Cleaner::Cleaner() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return;
  child_ = fork();
  if (child_ == 0) {
    close(ends[1]);
    WaitAndClean(ends[0]);
  }
  close(ends[0]);
  if (child_ < 0) {
    close(ends[1]);
    return;
  }
  to_child_ = ends[1];
}

Cleaner::~Cleaner() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  if (to_child_ >= 0) close(to_child_);
  if (child_ > 0) Retry([&] { return waitpid(child_, nullptr, 0); });
}

void Cleaner::Folder(const std::string& path) {
  path_ = path;
  if (to_child_ < 0) return;
  // Shorter than what a pipe takes at once.
  if (Retry([&] { return write(to_child_, path.data(), path.size()); }) < 0) return;
}

}  // namespace trireme::tasks
