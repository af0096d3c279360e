// Table of a scaling study: scaling.csv, whose columns doc/scaling.md explains.
#ifndef TRIREME_SRC_TASKS_SCALING_TABLE_HPP_
#define TRIREME_SRC_TASKS_SCALING_TABLE_HPP_

#include <string>
#include <vector>

#include "rows.hpp"

namespace trireme::tasks {

// A line of names, then one for each row. What is not known is left empty.
std::string Csv(const std::vector<Row>& rows, const Study& study);

}  // namespace trireme::tasks

#endif  // TRIREME_SRC_TASKS_SCALING_TABLE_HPP_
