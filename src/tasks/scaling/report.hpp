// Screen of a scaling study: what is measured, and what came of it.
#ifndef TRIREME_SRC_TASKS_SCALING_REPORT_HPP_
#define TRIREME_SRC_TASKS_SCALING_REPORT_HPP_

#include <string>
#include <vector>

#include "rows.hpp"
#include "trireme/app/job.hpp"

namespace trireme::tasks {

// Lines before the first step, without the last newline.
std::string Head(const app::Job& job, const Study& study);
// The tables of what was measured: speeds, and where the ranks' time went.
std::string Tables(const std::vector<Row>& rows);

}  // namespace trireme::tasks

#endif  // TRIREME_SRC_TASKS_SCALING_REPORT_HPP_
