// SIGUSR1, SIGTERM and SIGINT ask a run to stop: finish the step, write a checkpoint, exit with
// code 3.
#ifndef TRIREME_DRIVER_SIGNALS_HPP_
#define TRIREME_DRIVER_SIGNALS_HPP_

namespace trireme::driver {

// Installs the handlers for its lifetime. A second SIGINT or SIGTERM ends the process at once.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  bool Received() const;      // on this rank
  static const char* Name();  // of the last one received: "SIGUSR1"
};

}  // namespace trireme::driver

#endif  // TRIREME_DRIVER_SIGNALS_HPP_
