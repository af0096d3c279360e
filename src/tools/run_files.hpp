// Files of a run folder that go into a support archive: by name, so that no data, weights or texts
// do.
#ifndef TRIREME_SRC_TOOLS_RUN_FILES_HPP_
#define TRIREME_SRC_TOOLS_RUN_FILES_HPP_

#include <filesystem>
#include <string>

#include "entries.hpp"

namespace trireme::tools {

// The path without dots within it and without a slash at its end.
std::filesystem::path PlainPath(const std::filesystem::path& path);

// Adds deck, log, records, the run.json of checkpoints, what nodes wrote about a rank that hung,
// logs of batch jobs beside the run, and a list of all files with their sizes.
void AddRun(const std::string& run, Contents& contents);

}  // namespace trireme::tools

#endif  // TRIREME_SRC_TOOLS_RUN_FILES_HPP_
