// Young's and Daly's interval between checkpoints.
#include "trireme/checkpoint/interval.hpp"

#include <fmt/format.h>

#include <cmath>

#include "trireme/base/error.hpp"

namespace trireme::checkpoint {

double YoungDaly(double cost_seconds, double mtbf_seconds) {
  for (const double value : {cost_seconds, mtbf_seconds}) {
    if (!std::isfinite(value) || value <= 0) {
      throw RunError(
          fmt::format("interval between checkpoints: a checkpoint of {} s and a failure each {} s "
                      "give none",
                      cost_seconds, mtbf_seconds),
          "Both must be positive: see run.mtbf_hours.");
    }
  }
  const double ratio = cost_seconds / (2 * mtbf_seconds);
  if (ratio >= 1) return mtbf_seconds;
  const double young = std::sqrt(2 * cost_seconds * mtbf_seconds);
  return young * (1 + std::sqrt(ratio) / 3 + ratio / 9) - cost_seconds;
}

}  // namespace trireme::checkpoint
