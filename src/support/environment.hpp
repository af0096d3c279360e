// Environment variables and limits that change how a job runs.
#ifndef TRIREME_SRC_SUPPORT_ENVIRONMENT_HPP_
#define TRIREME_SRC_SUPPORT_ENVIRONMENT_HPP_

#include <string>
#include <vector>

namespace trireme::support {

// "NAME=value" of the variables that concern a job, sorted; of one that looks like a secret the
// name alone. `environment`: as of the process, each "NAME=value".
std::string RelevantEnvironment(const std::vector<std::string>& environment);

// The process's own.
std::vector<std::string> OwnEnvironment();

// Soft and hard limits of the process, a line each.
std::string Limits();

}  // namespace trireme::support

#endif  // TRIREME_SRC_SUPPORT_ENVIRONMENT_HPP_
