#include "trireme/driver/signals.hpp"

#include <csignal>
#include <initializer_list>

namespace trireme::driver {

namespace {

// A signal handler can reach nothing but static storage.
volatile std::sig_atomic_t received = 0;

extern "C" void Receive(int signal) {
  if (received != 0 && signal != SIGUSR1) std::signal(signal, SIG_DFL);
  received = signal;
}

}  // namespace

StopSignals::StopSignals() {
  received = 0;
  struct sigaction action = {};
  action.sa_handler = Receive;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (int signal : {SIGUSR1, SIGTERM, SIGINT}) sigaction(signal, &action, nullptr);
}

StopSignals::~StopSignals() {
  for (int signal : {SIGTERM, SIGINT}) std::signal(signal, SIG_DFL);
  std::signal(SIGUSR1, SIG_IGN);  // a late request must not kill a run that is ending
}

bool StopSignals::Received() const { return received != 0; }

const char* StopSignals::Name() {
  switch (received) {
    case SIGUSR1:
      return "SIGUSR1";
    case SIGTERM:
      return "SIGTERM";
    case SIGINT:
      return "SIGINT";
    default:
      return "no signal";
  }
}

}  // namespace trireme::driver
