// Verdict: who holds a job up, from what the flight recorders of its ranks say. A pure function.
#ifndef TRIREME_SRC_COMM_VERDICT_HPP_
#define TRIREME_SRC_COMM_VERDICT_HPP_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/flight_recorder.hpp"

namespace trireme::comm {

// One call of a rank.
struct CallRow {
  std::int64_t number = 0, sequence = 0, bytes = 0, step = 0;
  Phase phase = Phase::kSetUp;
  Call call = Call::kBarrier;
  std::uint64_t group = 0;  // id of the group; 0: none
  std::string name = {};    // of the group
  int peer = -1, tag = 0;   // of messages
  bool left = false;
  double seconds = 0;  // since it was entered
};

struct GroupRow {
  std::uint64_t id = 0;
  std::string name;
  int rank = 0, size = 1;
  std::int64_t entered = 0;  // collectives of the group that this rank has entered
};

struct FlowRow {
  std::uint64_t group = 0;
  int peer = 0, tag = 0;
  std::int64_t sent = 0, received = 0;  // messages started
};

// A rank as its node's shared memory and the system show it.
struct RankTable {
  int rank = 0;
  std::string host;
  int pid = 0;
  char process = 'S';  // see process_state.hpp
  Phase phase = Phase::kSetUp;
  std::int64_t step = 0;
  double idle = 0;                 // seconds since its last call or return
  std::optional<CallRow> waiting;  // the call that it waits for
  std::vector<GroupRow> groups;
  std::vector<FlowRow> flows;
  std::vector<CallRow> calls;  // the last ones, oldest first
  std::string stack;
};

struct SilentNode {
  std::string host;
  std::vector<int> ranks;  // of the world
};

// One rank that holds others up.
struct Culprit {
  int rank = 0;
  std::string host;
  std::string text;          // missing deed, and why
  std::vector<int> waiting;  // ranks that wait for it, first hand
};

struct Verdict {
  std::vector<Culprit> culprits;  // in the order of their ranks
  std::string where;              // "in step 12"
  std::string text;               // lines for the screen, culprits included
  std::int64_t step = 0;
};

// ranks: of all nodes that could be read.
Verdict Judge(const std::vector<RankTable>& ranks, const std::vector<SilentNode>& silent);

// "all-reduce 134 of group tensor (4,096 bytes)", "receive 3 with tag 1 from rank 2".
std::string DescribeCall(const CallRow& call);

}  // namespace trireme::comm

#endif  // TRIREME_SRC_COMM_VERDICT_HPP_
