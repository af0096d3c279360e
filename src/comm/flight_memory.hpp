// FlightMemory: the flight recorder's memory of one node. All of it is atomic words with a single
// writer each; it stays readable when its writer is stopped, killed or gone.
#ifndef TRIREME_SRC_COMM_FLIGHT_MEMORY_HPP_
#define TRIREME_SRC_COMM_FLIGHT_MEMORY_HPP_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "trireme/comm/flight_recorder.hpp"
#include "trireme/comm/shared_memory.hpp"

namespace trireme::comm {

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
  // Of the thread that calls MPI.
  Word<std::int64_t> calls, progress, step;
  Word<std::int64_t> waiting;  // number of the call that it waits for; 0: none
  Word<std::int32_t> flows;
  Word<Phase> phase;
  // Of the process.
  Word<std::int32_t> world_rank, pid;
  Word<std::int64_t> started;  // of the process, clock ticks after the machine's start
  Word<bool> leaves;           // of its own will: its end is no surprise
  // Of its watchdog.
  Word<bool> armed, answered;
  Word<double> idle, deadline;  // seconds
  Word<std::int32_t> stack_bytes;

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

}  // namespace trireme::comm

#endif  // TRIREME_SRC_COMM_FLIGHT_MEMORY_HPP_
