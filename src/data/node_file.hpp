// A file of a node that has no name as soon as the ranks of the node have it open, so that the
// system frees it when the last of them is gone, however they end.
#ifndef TRIREME_SRC_DATA_NODE_FILE_HPP_
#define TRIREME_SRC_DATA_NODE_FILE_HPP_

#include <optional>
#include <string>

#include "trireme/base/descriptor.hpp"
#include "trireme/comm/communicator.hpp"

namespace trireme::data {

struct NodeFile {
  std::optional<Descriptor> filled;  // on the rank that fills it, and may read it: the node's first
  std::optional<Descriptor> read;    // on other ranks that read it
};

// Collective over `world`; `node`: ranks of a node. Makes an empty file in `folder` on each node
// with a rank that reads, opens it, and takes its name away. Only between these two a death by
// SIGKILL leaves a name, of an empty file: the next call removes it (RemoveLeftovers). Throws
// AgreedError.
NodeFile MakeNodeFile(const comm::Communicator& world, const comm::Communicator& node,
                      const std::string& folder, bool reads);

// Removes this user's empty node files that no process holds. Returns their number. Serial.
int RemoveLeftovers(const std::string& folder);

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_NODE_FILE_HPP_
