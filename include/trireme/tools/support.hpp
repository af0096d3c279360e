// trireme --support RUN: one archive for a ticket, with what a supporter asks for first, and
// without data, weights or anybody's text.
#ifndef TRIREME_TOOLS_SUPPORT_HPP_
#define TRIREME_TOOLS_SUPPORT_HPP_

#include <string>

namespace trireme::tools {

// Prints what goes into the archive with its bytes, and writes it as <name of the
// run>_<date>.tar.gz into the current directory, under another name until it is complete.
// `version`: text of --version. `run` may be damaged, unreadable or missing: what it lacks is said.
// Reads no file of unbounded size whole and writes nothing into the run folder. Starts no MPI.
// Throws InputError if nothing can be written here.
void MakeArchive(const std::string& run, const std::string& version);

}  // namespace trireme::tools

#endif  // TRIREME_TOOLS_SUPPORT_HPP_
