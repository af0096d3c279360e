// Energy of a training; prediction of a run's step and its comparison with the steps that ran.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/app/job.hpp"
#include "trireme/predict/calibrate.hpp"
#include "trireme/predict/machine.hpp"
#include "trireme/report/meter.hpp"
#include "trireme/report/summary.hpp"

namespace trireme::tasks {

// Energy of a training, per interval of its records and for the session.
class EnergyUse {
 public:
  using Numbers = std::vector<std::pair<std::string, double>>;

  explicit EnergyUse(const app::Ranks& ranks, const app::Device& device);  // collective
  void Begin();  // collective: drops what was counted so far
  void Count(std::int64_t tokens) { tokens_ += tokens; }  // adds a step's tokens, over all ranks
  // Collective. Members for the record of the interval that ends now; unknown ones are left out.
  Numbers EndInterval();
  report::Energy EndSession();  // collective: from Begin() until now

 private:
  report::Meter meter_;
  report::Sums session_;
  std::int64_t tokens_ = 0;    // targets in this interval
  double session_tokens_ = 0;  // sum over all intervals
};

// A session's energy in a line: "energy  1.20 MJ of memory, 412 W per node, ...", or why not.
std::string EnergyLine(const report::Energy& energy);

// The job's ranks as the subject of a calibration.
predict::Subject CalibrationSubject(const app::Job& job);

class StepPrediction {
 public:
  // Collective. World rank 0 reads the machine description that plan.machine names. AgreedError
  // (exit code 2) if it cannot be read. All arguments must outlive this.
  StepPrediction(const app::Job& job, const train::Plan& plan);

  // Collective, at the end of a session. If there is no description, calibrates the machine now,
  // provided that the run is `done`, on CPUs, took a minute or more, and a minute is left.
  void Calibrate(bool done, double seconds_left);

  // On world rank 0. means, steps: from Monitor::Means. waited: seconds of the session per group,
  // means over the ranks. The caller fills in the bytes.
  report::Comparison Compare(const report::Record& means, std::int64_t steps,
                             const comm::GroupSeconds& waited) const;

 private:
  const app::Job& job_;
  const train::Plan& plan_;
  std::optional<predict::Machine> machine_;  // on world rank 0
  std::string why_none_;
};

}  // namespace trireme::tasks
