// The energy of a training: per interval of its records, and of the session.
#ifndef TRIREME_SRC_TASKS_ENERGY_USE_HPP_
#define TRIREME_SRC_TASKS_ENERGY_USE_HPP_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trireme/report/meter.hpp"
#include "trireme/app/job.hpp"
#include "trireme/report/summary.hpp"

namespace trireme::tasks {

class EnergyUse {
 public:
  using Numbers = std::vector<std::pair<std::string, double>>;

  explicit EnergyUse(const app::Job& job);  // collective
  void Begin();                             // collective: drops what was counted so far
  void Count(std::int64_t tokens) { tokens_ += tokens; }  // of a step of all ranks
  // Collective. Members of the record of the interval that ends now; unknown ones are left out.
  Numbers EndInterval();
  report::Energy EndSession();  // collective: from Begin() until now

 private:
  report::Meter meter_;
  report::Sums session_;
  std::int64_t tokens_ = 0;    // targets, of this interval
  double session_tokens_ = 0;  // of all intervals
};

// Energy of a session in a line: "energy  1.20 MJ, 412 W a node, ...", or why it is not known.
std::string EnergyLine(const report::Energy& energy);

}  // namespace trireme::tasks

#endif  // TRIREME_SRC_TASKS_ENERGY_USE_HPP_
