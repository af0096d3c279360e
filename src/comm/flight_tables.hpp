// Tables of a node's flight recorders: read from shared memory, and written to and read from files.
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

// FlightMemory: the flight recorders of one node. It consists of atomic words with one writer each,
// and stays readable when a writer is stopped, killed or gone.

constexpr int kRing = 256;       // calls kept per rank
constexpr int kMostGroups = 64;  // groups of one rank at a time
constexpr int kMostFlows = 64;   // per rank; a flow: messages with one tag to and from one peer
constexpr int kNameBytes = 24;
constexpr int kMostFrames = 48;  // of a stack

template <typename T>
using Word = std::atomic<T>;
static_assert(Word<std::int64_t>::is_always_lock_free && Word<double>::is_always_lock_free);

enum class CallState : std::uint8_t { kEntered, kLeft };

// Fills one cache line.
struct alignas(64) CallEntry {
  Word<std::int64_t> number;  // from 1; 0 while the entry is being written
  Word<std::int64_t> sequence, bytes, step;
  Word<std::int64_t> nanoseconds;  // when the call was entered, on the node's monotonic clock
  Word<std::int32_t> group, peer, tag;
  Word<Call> call;
  Word<CallState> state;
  Word<Phase> phase;
};

struct GroupEntry {
  Word<std::uint64_t> id;  // 0: unused
  Word<std::int64_t> entered;
  Word<std::int32_t> rank, size;
  std::array<Word<char>, kNameBytes> name;
};

struct FlowEntry {
  Word<std::int64_t> sent, received;  // messages started
  Word<std::int32_t> group, peer, tag;
};

struct alignas(64) RankSlot {
  // Written by the thread that calls MPI:
  Word<std::int64_t> calls, progress, step;
  Word<std::int64_t> waiting;  // number of the call that the thread waits for; 0: none
  Word<std::int32_t> flows;
  Word<Phase> phase;
  // Facts about the process:
  Word<std::int32_t> world_rank, pid;
  Word<std::int64_t> started;  // clock ticks between the machine's start and the process's
  Word<bool> leaves;           // announced: its end raises no alarm
  // Written by the rank's watchdog:
  Word<bool> armed, answered;
  Word<double> idle;  // seconds without progress

  std::array<CallEntry, kRing> ring;
  std::array<GroupEntry, kMostGroups> groups;
  std::array<FlowEntry, kMostFlows> flow;
  std::array<Word<char>, 8192> stack;  // text
};

// Words on which the watchdogs of a node agree.
struct alignas(64) NodeWords {
  Word<std::int32_t> claim;  // 1 + node rank of the leading watchdog; 0: no alarm
  Word<bool> over;           // the verdict is printed: every process ends
};

struct FlightMemory {
  FlightMemory(const Communicator& group, std::int64_t bytes) : shared(group, bytes) {}
  // Not an MPI window, because it must outlive MPI_Finalize, which may hang too.
  SharedMemory shared;
  NodeWords* node = nullptr;
  RankSlot* slots = nullptr;  // [ranks]
  int ranks = 0, rank = 0;    // of this node
};

// ProcessState: what the system says about a process on this machine.

struct ProcessState {
  char letter = '-';         // as /proc/PID/stat has it; '-': there is no such process; '?':
                             // unknown, because /proc or a file descriptor is not available
  std::int64_t started = 0;  // clock ticks after the machine's start; 0: unknown
};

ProcessState LookAt(int pid);

// Whether the process has ended for good, and whether it is stopped.
bool IsGone(char letter);
bool IsStopped(char letter);
// "is stopped by a debugger", "is gone: it was killed or has crashed".
std::string DescribeProcess(char letter);

// Verdict: which ranks hold a job up, judged from the tables of its ranks alone (a pure function).

// One recorded call of a rank.
struct CallRow {
  std::int64_t number = 0, sequence = 0, bytes = 0, step = 0;
  Phase phase = Phase::kSetUp;
  Call call = Call::kBarrier;
  std::uint64_t group = 0;  // id of the group; 0: none
  std::string name = {};    // of the group
  int peer = -1, tag = 0;   // of messages
  bool left = false;
  double seconds = 0;  // since the call was entered
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

// The state of a rank as its node's shared memory and the system show it.
struct RankTable {
  int rank = 0;
  std::string host;
  int pid = 0;
  char process = 'S';  // as in ProcessState
  Phase phase = Phase::kSetUp;
  std::int64_t step = 0;
  double idle = 0;                 // seconds without progress
  std::optional<CallRow> waiting;  // the call that it waits for; nullopt: none
  std::vector<GroupRow> groups;
  std::vector<FlowRow> flows;
  std::vector<CallRow> calls;  // the most recent ones, oldest first
  std::string stack;
};

// A node whose file could not be read.
struct SilentNode {
  std::string host;
  std::vector<int> ranks;  // of the world
};

// A rank that holds others up.
struct Culprit {
  int rank = 0;
  std::string host;
  std::string text;          // what it has not done, and why
  std::vector<int> waiting;  // ranks that wait for it directly
};

struct Verdict {
  std::vector<Culprit> culprits;  // by rank
  std::string where;              // "in step 12"
  std::string text;               // lines for the screen, with all culprits
  std::int64_t step = 0;
};

// ranks: of all nodes whose files could be read; silent: the other nodes.
Verdict Judge(const std::vector<RankTable>& ranks, const std::vector<SilentNode>& silent);

// "all-reduce 134 of group tensor (4096 bytes)", "receive 3 with tag 1 from member 2 of group ...".
std::string DescribeCall(const CallRow& call);

// Tables of all ranks of this node at this moment.
std::vector<RankTable> ReadTables(const FlightMemory& memory, const Hosts& hosts);

// One node's file: JSON with one call per line, for people and for Judge.
std::string ToText(int node, const std::string& reason, const std::vector<RankTable>& tables);
// nullopt if the text is incomplete.
std::optional<std::vector<RankTable>> FromText(const std::string& text);

}  // namespace trireme::comm
