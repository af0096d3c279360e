// A run that is watched: its folder, the file of its records, and what they say.
#ifndef TRIREME_SRC_TOOLS_FOLLOWED_RUN_HPP_
#define TRIREME_SRC_TOOLS_FOLLOWED_RUN_HPP_

#include <string>

#include "followed_file.hpp"
#include "run_state.hpp"

namespace trireme::tools {

struct FollowedRun {
  // path: a run folder, or the file itself. Throws InputError if it is not there.
  explicit FollowedRun(const std::string& path);

  // Reads on, at most for `seconds`. True if more is there to be read.
  bool ReadOn(double seconds);

  std::string name;    // printable
  std::string folder;  // with deck.in
  FollowedFile file;
  FollowedFile::State condition = FollowedFile::State::kMissing;
  RunState state;
  Schedule schedule;

 private:
  void ReadDeck();
  std::int64_t deck_date_ = -1;  // modification of the deck that was read, nanoseconds
};

}  // namespace trireme::tools

#endif  // TRIREME_SRC_TOOLS_FOLLOWED_RUN_HPP_
