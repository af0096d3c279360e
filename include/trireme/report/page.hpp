// The page of a run: vis/report.py, started by the program after its last word to MPI.
#ifndef TRIREME_REPORT_PAGE_HPP_
#define TRIREME_REPORT_PAGE_HPP_

#include <functional>
#include <string>
#include <vector>

namespace trireme::report {

// A page to make, and how long that may take.
struct PageOrder {
  std::string folder;  // of the run
  double seconds = 0;  // bound; 0: no time is left, the user is told how to make it
};

// The command that makes the page of a folder: Python, the script, the folder.
struct PageCommand {
  std::string python, script, folder;
  bool Complete() const { return !python.empty() && !script.empty(); }
  std::string Text() const;  // for a shell; of what is missing, the usual names
};

// Finds Python in TRIREME_PYTHON, in a virtual environment `venv` beside the program, or on the
// path; the script in share/trireme of the prefix that holds the program in bin, in the source tree
// that holds the program's build folder, or in `source`. Missing ones are empty.
PageCommand FindPageCommand(const std::string& folder, const std::string& program,
                            const std::string& source);

// The same for this program, for a shell.
std::string PageCommandText(const std::string& folder);

// Makes the page and prints one line: its path, or why there is none and the command for it. Never
// throws, waits no longer than the order's bound, and ends the script at once when `stop` says so.
// The script gets no signal of the terminal and none of this program's blocked ones.
void MakePage(const PageOrder& order, const std::function<bool()>& stop) noexcept;

}  // namespace trireme::report

#endif  // TRIREME_REPORT_PAGE_HPP_
