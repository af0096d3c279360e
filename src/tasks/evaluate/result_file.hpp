// A text file of results, complete or not there.
#ifndef TRIREME_SRC_TASKS_EVALUATE_RESULT_FILE_HPP_
#define TRIREME_SRC_TASKS_EVALUATE_RESULT_FILE_HPP_

#include <string>
#include <string_view>

namespace trireme::tasks {

// Writes `text` by way of a temporary name beside `path`, synced. Serial. Throws RunError with path
// and reason.
void WriteResult(const std::string& path, std::string_view text);

}  // namespace trireme::tasks

#endif  // TRIREME_SRC_TASKS_EVALUATE_RESULT_FILE_HPP_
