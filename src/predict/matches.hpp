// Matches: transfers of several stages' tapes that belong together.
#ifndef TRIREME_SRC_PREDICT_MATCHES_HPP_
#define TRIREME_SRC_PREDICT_MATCHES_HPP_

#include <vector>

#include "tape.hpp"

namespace trireme::predict {

// A transfer of a tape.
struct Place {
  static constexpr int kNone = -1;
  int stage = kNone, transfer = kNone;
};
using Places = std::vector<std::vector<Place>>;                    // [stage][transfer]
using JointPlaces = std::vector<std::vector<std::vector<Place>>>;  // [stage][transfer]: all places

bool IsReceive(const device::LoggedTransfer& what);

// The other end of each message; kNone: not a message between stages. Those of one tag between two
// stages arrive in the order of their sends. RunError for one that nobody takes.
Places MatchMessages(const std::vector<Tape>& tapes);

// All stages' places of each transfer that several stages take part in; empty: of one stage alone.
JointPlaces MatchJoint(const std::vector<Tape>& tapes);

}  // namespace trireme::predict

#endif  // TRIREME_SRC_PREDICT_MATCHES_HPP_
