// Report of the task preflight: a bounded number of lines for people, an object for programs.
#ifndef TRIREME_TOOLS_REPORT_HPP_
#define TRIREME_TOOLS_REPORT_HPP_

#include <string>
#include <vector>

#include "trireme/comm/hosts.hpp"
#include "trireme/tools/measure.hpp"
#include "trireme/tools/preflight.hpp"

namespace trireme::tools {

struct Report {
  std::string program;  // "Trireme 0.1.0 (3f2a9c1)"
  int ranks = 1;
  comm::Hosts hosts;
  Findings findings = {};
  Measured measured = {};  // no units: nothing was measured
};

// Lines for the screen: facts, extremes of what was measured, slow nodes, warnings. Their number
// does not grow with that of the nodes.
std::vector<std::string> LinesOf(const Report& report);

// preflight.json. Values of each node as long as there are no more than 1,024.
std::string JsonOf(const Report& report);

// Sentences on slow nodes and wrong products, the worst first, at most `most`; then their number.
std::vector<std::string> SlowSentences(const Report& report, std::size_t most);

}  // namespace trireme::tools

#endif  // TRIREME_TOOLS_REPORT_HPP_
