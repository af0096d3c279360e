// The folder of a run's event files: their names, and what of them a session keeps that begins at
// an earlier step than the last one ended.
#ifndef TRIREME_SRC_REPORT_EVENT_FILES_HPP_
#define TRIREME_SRC_REPORT_EVENT_FILES_HPP_

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::report {

// Paths of the folder's event files in the order in which TensorBoard reads them: by name.
std::vector<std::string> EventFiles(const std::string& folder);

// Path of a new event file, which TensorBoard reads after `files`, all that are there.
std::string NextEventFile(const std::string& folder, const std::vector<std::string>& files,
                          std::int64_t unix_seconds);

// Cuts all events after `step` off the folder's files, the end of the run (whatever its step), and
// what is torn or damaged with all that follows it; removes files of sessions that began at `step`
// or later. Files are cut in place: a reader that has read them already goes on to the next one.
// Returns the files that are left, as EventFiles does. Throws RunError that names the path.
std::vector<std::string> CutEvents(const std::string& folder, std::int64_t step);

}  // namespace trireme::report

#endif  // TRIREME_SRC_REPORT_EVENT_FILES_HPP_
