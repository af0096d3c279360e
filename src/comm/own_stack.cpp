// A signal handler that notes the frames; names are found by the thread that asked.
#include "own_stack.hpp"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <fmt/format.h>
#include <signal.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>

#include "flight_memory.hpp"

namespace trireme::comm {

namespace {

constexpr std::size_t kStackBytes = 65536;
constexpr int kHandlersOwn = 2;  // frames: the handler and the system's return from it

std::array<void*, kMostFrames> frames;
std::atomic<int> frame_count{-1};
alignas(64) std::array<char, kStackBytes> signal_stack;

int Signal() { return SIGRTMIN + 6; }

void NoteFrames(int) {
  const int error = errno;
  frame_count.store(::backtrace(frames.data(), kMostFrames), std::memory_order_release);
  errno = error;
}

std::string NameOf(void* frame) {
  Dl_info info{};
  if (::dladdr(frame, &info) == 0 || info.dli_fname == nullptr) return fmt::format("{}", frame);
  const auto offset = [&](const void* base) {
    return static_cast<const char*>(frame) - static_cast<const char*>(base);
  };
  if (info.dli_sname == nullptr) {
    return fmt::format("{} +{:#x}", info.dli_fname, offset(info.dli_fbase));
  }
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> plain(
      abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status), &std::free);
  return fmt::format("{} +{:#x}  {}", status == 0 ? plain.get() : info.dli_sname,
                     offset(info.dli_saddr), info.dli_fname);
}

}  // namespace

void PrepareOwnStack() {
  // The first call loads a library, which no handler may do.
  ::backtrace(frames.data(), kMostFrames);
  stack_t now{};
  ::sigaltstack(nullptr, &now);
  if ((now.ss_flags & SS_DISABLE) != 0) {
    stack_t own{};
    own.ss_sp = signal_stack.data();
    own.ss_size = signal_stack.size();
    ::sigaltstack(&own, nullptr);
  }
  struct sigaction action {};
  action.sa_handler = NoteFrames;
  action.sa_flags = SA_ONSTACK | SA_RESTART;
  sigemptyset(&action.sa_mask);
  ::sigaction(Signal(), &action, nullptr);
}

std::string TakeStack(pthread_t thread) {
  using std::chrono::milliseconds;
  frame_count.store(-1);
  ::pthread_kill(thread, Signal());
  for (int i = 0; i < 50 && frame_count.load(std::memory_order_acquire) < 0; ++i) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  const int count = frame_count.load(std::memory_order_acquire);
  if (count < 0) return "the thread does not answer: it is within a call of the system";
  std::string text;
  for (int i = kHandlersOwn; i < count; ++i) {
    text += NameOf(frames[static_cast<std::size_t>(i)]) + "\n";
  }
  return text;
}

}  // namespace trireme::comm
