// Stop signals: blocked everywhere, awaited by one thread.
#include "trireme/device/signals.hpp"

#include <csignal>
#include <ctime>
#include <utility>

#include "trireme/device/cores.hpp"

namespace trireme::device {

namespace {

// A blocked signal counts even if it is ignored: what nohup has set is left out.
bool IsIgnored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

sigset_t StopSet() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGUSR1, SIGTERM, SIGINT, SIGHUP}) {
    if (signal != SIGHUP || !IsIgnored(signal)) sigaddset(&set, signal);
  }
  return set;
}

}  // namespace

StopSignals::StopSignals() : usable_(device::UsableNumbers()) {
  const sigset_t set = StopSet();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

StopSignals::~StopSignals() = default;  // the thread is asked to stop, and joined

void StopSignals::Watch(std::function<void(int)> announce) {
  announce_ = std::move(announce);
  watcher_ = std::jthread([this](const std::stop_token& stop) { Wait(stop); });
}

void StopSignals::Release() {
  const sigset_t set = StopSet();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

void StopSignals::Wait(const std::stop_token& stop) {
  device::BindThisThread(usable_);               // not where the thread that began it is pinned
  constexpr timespec kPause = {0, 200'000'000};  // how soon the thread sees that it is to end
  const sigset_t set = StopSet();
  bool asked_to_end = false;  // SIGINT, SIGTERM or SIGHUP before: the next one means now
  while (!stop.stop_requested()) {
    const int signal = sigtimedwait(&set, nullptr, &kPause);
    if (signal < 0) continue;  // nothing came
    if (!received_.exchange(true) && announce_) announce_(signal);
    if (signal == SIGUSR1) continue;
    if (std::exchange(asked_to_end, true)) {
      std::signal(signal, SIG_DFL);
      Release();
      std::raise(signal);
    }
  }
}

}  // namespace trireme::device
