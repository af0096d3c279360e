// CompareLosses: strong scaling trains on the same batches, so its losses agree.
#include "losses.hpp"

#include <fmt/format.h>

#include <cmath>

#include "trireme/report/monitor.hpp"

namespace trireme::tasks {

std::vector<std::string> CompareLosses(const std::vector<Row>& rows, double tolerance) {
  std::vector<std::string> faults;
  const Row* base = nullptr;
  for (const Row& row : rows) {
    const std::string ranks = report::Counted(row.point->size.ranks, "rank");
    for (const Round& round : row.point->rounds) {
      const double first = row.point->rounds.front().loss;
      if (round.loss == first) continue;
      faults.push_back(fmt::format(
          "the loss on {} is {:.9g} in one round and {:.9g} in another: the same steps gave other "
          "bits",
          ranks, first, round.loss));
      break;
    }
    if (row.kind != ScalingKind::kStrong) continue;
    if (base == nullptr) base = &row;
    const double difference = std::abs(row.loss - base->loss) / std::abs(base->loss);
    if (difference <= tolerance) continue;
    faults.push_back(fmt::format(
        "the loss on {} is {:.9g}, on {} {:.9g}: they differ by {:.1e}, allowed is {:.0e}; the "
        "study compares different computations. Find out which with job.task = verify",
        ranks, row.loss, report::Counted(base->point->size.ranks, "rank"), base->loss, difference,
        tolerance));
  }
  return faults;
}

}  // namespace trireme::tasks
