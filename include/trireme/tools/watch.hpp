// Watch: a live view of runs that other jobs compute. MakeArchive: a support archive. No MPI.
#pragma once

#include <string>
#include <vector>

namespace trireme::tools {

// Follows the metrics.jsonl of run folders (or such files themselves). On a terminal: shows a view
// of all runs until q, Ctrl-C or the terminal closes. Otherwise: prints a line per record, from the
// first one on, until every run is done or stopped, or a signal comes. Throws InputError if a run
// does not exist, RunError if standard output cannot be written.
void Watch(const std::vector<std::string>& runs);

// trireme --support RUN: makes one archive for a ticket, with what a supporter asks for first and
// without data, weights or anybody's texts.

// Prints the archive's contents with sizes and writes it as <name of the run>_<date>.tar.gz in the
// current directory, under a temporary name until it is complete. version: text of --version. run:
// may be damaged, unreadable or missing; gaps are noted. Reads only bounded parts of large files,
// writes nothing into the run folder, starts no MPI. InputError if nothing can be written here.
void MakeArchive(const std::string& run, const std::string& version);

}  // namespace trireme::tools
