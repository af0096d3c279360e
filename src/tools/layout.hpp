// The view of several runs as lines of text, for any size of a terminal.
#ifndef TRIREME_SRC_TOOLS_LAYOUT_HPP_
#define TRIREME_SRC_TOOLS_LAYOUT_HPP_

#include <cstdint>
#include <string>
#include <vector>

#include "followed_run.hpp"

namespace trireme::tools {

inline constexpr std::int64_t kQuiet = 60;  // seconds without a record after which it is said

struct Row {
  std::string text;     // printable UTF-8, perhaps wider than the terminal
  bool strong = false;  // a heading
};

struct Frame {
  int rows = 24, columns = 80;
  std::int64_t first = 0;  // run at the top, of those that do not fit at once
  std::int64_t now = 0;    // seconds since 1970
  bool blocks = true;      // Unicode's block elements can be shown
};

// At most frame.rows rows. Each run has equally many; those with few show what matters most.
std::vector<Row> LayOut(const std::vector<const FollowedRun*>& runs, const Frame& frame);
// Runs that one frame of so many rows shows.
std::int64_t RunsThatFit(std::int64_t runs, int rows);

}  // namespace trireme::tools

#endif  // TRIREME_SRC_TOOLS_LAYOUT_HPP_
