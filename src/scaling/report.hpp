// Screen of a scaling study: what is measured, and what came of it.
#ifndef TRIREME_SRC_SCALING_REPORT_HPP_
#define TRIREME_SRC_SCALING_REPORT_HPP_

#include <string>
#include <vector>

#include "rows.hpp"
#include "trireme/job/job.hpp"

namespace trireme::scaling {

// Lines before the first step, without the last newline.
std::string Head(const job::Job& job, const Study& study);
// The tables of what was measured: speeds, and where the ranks' time went.
std::string Tables(const std::vector<Row>& rows);

}  // namespace trireme::scaling

#endif  // TRIREME_SRC_SCALING_REPORT_HPP_
