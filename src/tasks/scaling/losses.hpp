// Check that all numbers of ranks computed the same: a study that does not is worthless.
#ifndef TRIREME_SRC_TASKS_SCALING_LOSSES_HPP_
#define TRIREME_SRC_TASKS_SCALING_LOSSES_HPP_

#include <string>
#include <vector>

#include "rows.hpp"

namespace trireme::tasks {

// Largest relative difference between losses of layouts (doc/numerics.md, rule 4), and with
// products in bf16 or fp8.
inline constexpr double kSameLoss = 1e-5, kSameLossHalf = 1e-3;

// Sentences about strong scaling whose losses differ by more than `tolerance` from the baseline's;
// and about a point whose rounds differ in a single bit. Empty: none.
std::vector<std::string> CompareLosses(const std::vector<Row>& rows, double tolerance);

}  // namespace trireme::tasks

#endif  // TRIREME_SRC_TASKS_SCALING_LOSSES_HPP_
