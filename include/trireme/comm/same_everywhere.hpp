// Question whether all ranks have the same text, without gathering the texts.
#ifndef TRIREME_COMM_SAME_EVERYWHERE_HPP_
#define TRIREME_COMM_SAME_EVERYWHERE_HPP_

#include <string>

#include "trireme/comm/communicator.hpp"

namespace trireme::comm {

// Collective. A broadcast of rank 0's text, and a reduction of one number.
inline bool SameEverywhere(const Communicator& group, const std::string& mine) {
  const bool same = group.Broadcast(mine) == mine;
  return group.Min(std::int64_t{same ? 1 : 0}) == 1;
}

}  // namespace trireme::comm

#endif  // TRIREME_COMM_SAME_EVERYWHERE_HPP_
