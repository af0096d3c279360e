// The energy of a training: per interval of its records, and of the session.
#ifndef TRIREME_SRC_DRIVER_ENERGY_USE_HPP_
#define TRIREME_SRC_DRIVER_ENERGY_USE_HPP_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trireme/energy/meter.hpp"
#include "trireme/job/job.hpp"
#include "trireme/monitor/summary.hpp"

namespace trireme::driver {

class EnergyUse {
 public:
  using Numbers = std::vector<std::pair<std::string, double>>;

  explicit EnergyUse(const job::Job& job);  // collective
  void Begin();                             // collective: drops what was counted so far
  void Count(std::int64_t tokens) { tokens_ += tokens; }  // of a step of all ranks
  // Collective. Members of the record of the interval that ends now; unknown ones are left out.
  Numbers EndInterval();
  monitor::Energy EndSession();  // collective: from Begin() until now

 private:
  energy::Meter meter_;
  energy::Sums session_;
  std::int64_t tokens_ = 0;    // targets, of this interval
  double session_tokens_ = 0;  // of all intervals
};

// Energy of a session in a line: "energy  1.20 MJ, 412 W a node, ...", or why it is not known.
std::string EnergyLine(const monitor::Energy& energy);

}  // namespace trireme::driver

#endif  // TRIREME_SRC_DRIVER_ENERGY_USE_HPP_
