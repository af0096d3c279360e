// Environment variables and limits that change how a job runs.
#ifndef TRIREME_SRC_TOOLS_ENVIRONMENT_HPP_
#define TRIREME_SRC_TOOLS_ENVIRONMENT_HPP_

#include <string>
#include <vector>

namespace trireme::tools {

// "NAME=value" of the variables that concern a job, sorted; of one that looks like a secret the
// name alone. `environment`: as of the process, each "NAME=value".
std::string RelevantEnvironment(const std::vector<std::string>& environment);

// The process's own.
std::vector<std::string> OwnEnvironment();

// Soft and hard limits of the process, a line each.
std::string LimitsText();

}  // namespace trireme::tools

#endif  // TRIREME_SRC_TOOLS_ENVIRONMENT_HPP_
