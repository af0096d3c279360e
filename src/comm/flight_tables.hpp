// Tables of a node's flight recorders: read from shared memory, written to and read from files.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/flight_recorder.hpp"
#include "trireme/comm/hosts.hpp"
#include "trireme/comm/shared_memory.hpp"

namespace trireme::comm {

// FlightMemory: the flight recorder's memory of one node. All of it is atomic words with a single
// writer each; it stays readable when its writer is stopped, killed or gone.

constexpr int kRing = 256;       // calls of a rank
constexpr int kMostGroups = 64;  // of a rank, at a time
constexpr int kMostFlows = 64;   // messages of one tag between two ranks of a group
constexpr int kNameBytes = 24;
constexpr int kMostFrames = 48;  // of a stack

template <typename T>
using Word = std::atomic<T>;
static_assert(Word<std::int64_t>::is_always_lock_free && Word<double>::is_always_lock_free);

enum class CallState : std::uint8_t { kEntered, kLeft };

// One cache line.
struct alignas(64) CallEntry {
  Word<std::int64_t> number;  // from 1; 0 while the entry is written
  Word<std::int64_t> sequence, bytes, step;
  Word<std::int64_t> nanoseconds;  // of the entry, on the node's monotonic clock
  Word<std::int32_t> group, peer, tag;
  Word<Call> call;
  Word<CallState> state;
  Word<Phase> phase;
};

struct GroupEntry {
  Word<std::uint64_t> id;  // 0: free
  Word<std::int64_t> entered;
  Word<std::int32_t> rank, size;
  std::array<Word<char>, kNameBytes> name;
};

struct FlowEntry {
  Word<std::int64_t> sent, received;  // started
  Word<std::int32_t> group, peer, tag;
};

struct alignas(64) RankSlot {
  // Written by the thread that calls MPI.
  Word<std::int64_t> calls, progress, step;
  Word<std::int64_t> waiting;  // number of the call that it waits for; 0: none
  Word<std::int32_t> flows;
  Word<Phase> phase;
  // Facts of the process.
  Word<std::int32_t> world_rank, pid;
  Word<std::int64_t> started;  // of the process, clock ticks after the machine's start
  Word<bool> leaves;           // of its own will: its end is no surprise
  // Written by its watchdog.
  Word<bool> armed, answered;
  Word<double> idle;  // seconds

  std::array<CallEntry, kRing> ring;
  std::array<GroupEntry, kMostGroups> groups;
  std::array<FlowEntry, kMostFlows> flow;
  std::array<Word<char>, 8192> stack;  // text
};

// Words on which the watchdogs of a node agree.
struct alignas(64) NodeWords {
  Word<std::int32_t> claim;  // 1 + rank on the node of the watchdog that leads; 0: none
  Word<bool> over;           // the message is out: every process ends
};

struct FlightMemory {
  FlightMemory(const Communicator& group, std::int64_t bytes) : shared(group, bytes) {}
  // Not a window of MPI's: it outlives MPI_Finalize, which may hang too.
  SharedMemory shared;
  NodeWords* node = nullptr;
  RankSlot* slots = nullptr;  // [ranks]
  int ranks = 0, rank = 0;    // on the node
};

std::int64_t MonotonicNanoseconds();

// ProcessState: what the system says about a process of this machine.

struct ProcessState {
  char letter = '-';         // as /proc/PID/stat has it; '-': there is no such process; '?': it
                             // cannot be looked at, for want of descriptors or of /proc
  std::int64_t started = 0;  // clock ticks after the machine's start; 0: not known
};

ProcessState LookAt(int pid);

// Whether it can do nothing any more, and whether someone has stopped it.
bool IsGone(char letter);
bool IsStopped(char letter);
// "is stopped (SIGSTOP, a debugger)", "is gone".
std::string DescribeProcess(char letter);

// Verdict: who holds a job up, from what the flight recorders of its ranks say. A pure function.

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
  char process = 'S';  // letter of /proc/PID/stat
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

// Tables of all ranks of this node, as they are now.
std::vector<RankTable> ReadTables(const FlightMemory& memory, const Hosts& hosts);

// One node's file: JSON with a call a line, for people and for Judge.
std::string ToText(int node, const std::string& reason, const std::vector<RankTable>& tables);
// Nothing if the text is not whole.
std::optional<std::vector<RankTable>> FromText(const std::string& text);

}  // namespace trireme::comm
