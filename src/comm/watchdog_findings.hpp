// Meeting of the watchdogs of all nodes through files, and the message that follows.
#ifndef TRIREME_SRC_COMM_WATCHDOG_FINDINGS_HPP_
#define TRIREME_SRC_COMM_WATCHDOG_FINDINGS_HPP_

#include <functional>
#include <string>
#include <vector>

#include "flight_tables.hpp"
#include "trireme/comm/watchdog.hpp"
#include "verdict.hpp"

namespace trireme::comm {

// One alarm, as a node sees it.
struct Round {
  std::string place;  // folder of the files
  int node = 0, nodes = 1;
  std::string reason;
  std::vector<RankTable> own;
};

struct Outcome {
  bool written = false;           // the node's file
  bool judged_elsewhere = false;  // a lower node has said the verdict
  std::vector<RankTable> ranks;   // of all nodes that could be read
  std::vector<bool> heard;        // [nodes]
};

// Writes this node's file and, on the lowest live node, reads those of the others. Returns within
// seconds even if the file system does not answer.
Outcome Consult(const Round& round);

std::vector<SilentNode> SilentOf(const Round& round, const Outcome& outcome, const Hosts& hosts,
                                 const std::vector<int>& nodes);

// Prints the verdict in one piece, then writes it beside the files and tells `told`.
void SayVerdict(const Round& round, const Outcome& outcome, const std::vector<SilentNode>& silent,
                const std::function<void(const HangReport&)>& told);

bool FolderExists(const std::string& path);

}  // namespace trireme::comm

#endif  // TRIREME_SRC_COMM_WATCHDOG_FINDINGS_HPP_
