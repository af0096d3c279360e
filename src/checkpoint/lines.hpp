// Lines of text, such as warnings, from rank 0 to all ranks.
#ifndef TRIREME_SRC_CHECKPOINT_LINES_HPP_
#define TRIREME_SRC_CHECKPOINT_LINES_HPP_

#include <string>
#include <vector>

#include "trireme/comm/communicator.hpp"

namespace trireme::checkpoint {

// Collective. Returns rank 0's lines on every rank.
std::vector<std::string> ShareLines(const comm::Communicator& world,
                                    const std::vector<std::string>& lines);

}  // namespace trireme::checkpoint

#endif  // TRIREME_SRC_CHECKPOINT_LINES_HPP_
