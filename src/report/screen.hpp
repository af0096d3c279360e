// Standard output as a terminal or as a batch log.
#ifndef TRIREME_SRC_REPORT_SCREEN_HPP_
#define TRIREME_SRC_REPORT_SCREEN_HPP_

#include <chrono>
#include <string>
#include <string_view>

namespace trireme::report {

// True if a person watches standard output. Open MPI gives each rank a pseudo-terminal of its own,
// so under mpirun the launcher's output decides.
bool IsTerminal();

class Screen {
 public:
  explicit Screen(bool terminal) : terminal_(terminal) {}
  ~Screen();

  bool Terminal() const { return terminal_; }
  void Line(std::string_view text);  // a line, or several; clears a live line first
  // WantsLive is true at most every 0.2 s, on a terminal only, and is asked before the text is
  // made; Live shows `text` until the next line.
  bool WantsLive();
  void Live(std::string_view text);

 private:
  void Put(std::string_view text);

  bool terminal_;
  bool live_ = false;    // a live line stands on the screen
  bool broken_ = false;  // the reader went away: the run goes on, log.txt has all
  std::chrono::steady_clock::time_point last_live_{};
};

}  // namespace trireme::report

#endif  // TRIREME_SRC_REPORT_SCREEN_HPP_
