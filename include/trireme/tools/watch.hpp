// A live look at runs: follows the records of jobs that run elsewhere. Needs no MPI.
#ifndef TRIREME_TOOLS_WATCH_HPP_
#define TRIREME_TOOLS_WATCH_HPP_

#include <string>
#include <vector>

namespace trireme::tools {

// Follows the metrics.jsonl of run folders (or files given as such). On a terminal: a view of all
// runs until q, Ctrl-C or the terminal's end. Elsewhere: a line on standard output per record, from
// the first one on, until every run is done or a signal comes. Throws InputError for a run that is
// not there, RunError if standard output cannot be written.
void Watch(const std::vector<std::string>& runs);

}  // namespace trireme::tools

#endif  // TRIREME_TOOLS_WATCH_HPP_
