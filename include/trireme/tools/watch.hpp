// A live look at runs: follows the records of jobs that run elsewhere. Needs no MPI.
#pragma once

#include <string>
#include <vector>

namespace trireme::tools {

// Follows the metrics.jsonl of run folders (or files given as such). On a terminal: a view of all
// runs until q, Ctrl-C or the terminal's end. Elsewhere: a line on standard output per record, from
// the first one on, until every run is done or a signal comes. Throws InputError for a run that is
// not there, RunError if standard output cannot be written.
void Watch(const std::vector<std::string>& runs);

// trireme --support RUN: one archive for a ticket, with what a supporter asks for first, and
// without data, weights or anybody's text.

// Prints what goes into the archive with its bytes, and writes it as <name of the
// run>_<date>.tar.gz into the current directory, under another name until it is complete.
// `version`: text of --version. `run` may be damaged, unreadable or missing: what it lacks is said.
// Reads no file of unbounded size whole and writes nothing into the run folder. Starts no MPI.
// Throws InputError if nothing can be written here.
void MakeArchive(const std::string& run, const std::string& version);

}  // namespace trireme::tools
