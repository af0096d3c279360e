// Prediction of a run's step, and its comparison with the steps that ran.
#ifndef TRIREME_SRC_DRIVER_STEP_PREDICTION_HPP_
#define TRIREME_SRC_DRIVER_STEP_PREDICTION_HPP_

#include <optional>
#include <string>

#include "trireme/calibrate/calibrate.hpp"
#include "trireme/job/job.hpp"
#include "trireme/monitor/monitor.hpp"
#include "trireme/simulate/machine.hpp"

namespace trireme::driver {

// The ranks of a job, for a calibration.
calibrate::Subject CalibrationSubject(const job::Job& job);

class StepPrediction {
 public:
  // Collective. Reads the description that plan.machine names, on world rank 0. AgreedError (exit
  // code 2) for one that cannot be read. All must outlive this.
  StepPrediction(const job::Job& job, const plan::Plan& plan);

  // Collective, at the end of a session: without a description, and if `done`, a run of a minute or
  // more on CPUs is calibrated now.
  void Calibrate(bool done, double seconds_left);

  // On world rank 0. means, steps: of Monitor::Means. waited: seconds of the session by group,
  // means over the ranks. Leaves the bytes to the caller.
  monitor::Comparison Compare(const monitor::Record& means, std::int64_t steps,
                              const comm::GroupSeconds& waited) const;

 private:
  const job::Job& job_;
  const plan::Plan& plan_;
  std::optional<simulate::Machine> machine_;  // on world rank 0
  std::string why_none_;
};

}  // namespace trireme::driver

#endif  // TRIREME_SRC_DRIVER_STEP_PREDICTION_HPP_
