// Stop signals: blocked in all threads; one thread waits for them.
#include "trireme/device/signals.hpp"

#include <csignal>
#include <ctime>
#include <utility>

#include "trireme/device/cores.hpp"

namespace trireme::device {

namespace {

// sigtimedwait also returns signals that are ignored, so leave out SIGHUP if nohup ignores it.
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

StopSignals::~StopSignals() = default;  // jthread asks the thread to stop and joins it

void StopSignals::Watch(std::function<void(int)> announce) {
  announce_ = std::move(announce);
  watcher_ = std::jthread([this](const std::stop_token& stop) { Wait(stop); });
}

void StopSignals::Release() {
  const sigset_t set = StopSet();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

void StopSignals::Wait(const std::stop_token& stop) {
  device::BindThisThread(usable_);               // undoes its starter's pinning
  constexpr timespec kPause = {0, 200'000'000};  // how soon the thread notices that it must end
  const sigset_t set = StopSet();
  bool asked_to_end = false;  // after SIGINT, SIGTERM or SIGHUP the next one ends the process
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
