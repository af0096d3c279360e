// FlightRecorder: keeps the last collectives and messages of every rank of a node in memory that
// the node's ranks share, so that others can see what a rank that hangs or died did last.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace trireme::comm {

class Communicator;
struct FlightMemory;
struct RankSlot;

// The kinds of call that are recorded.
enum class Call : std::uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kBroadcast,
  kSend,
  kReceive,
  kShift,  // around a ring
  kBarrier,
  kAgreement,  // Communicator::Together
  kSplit,      // a group is split or duplicated
  kExchange,   // the readers of a checkpoint send its bytes to all
  kDevice,     // the host waits for its GPU
  kConnect,    // channels between GPUs are set up
};
constexpr int kCalls = 14;
const char* NameOf(Call call);

// Parts of a job, each with its own time limit.
enum class Phase : std::uint8_t { kSetUp, kStep, kValidation, kCheckpoint, kEnd };
const char* NameOf(Phase phase);
// "in step 12", "in the validation after step 12".
std::string Describe(Phase phase, std::int64_t step);

// A rank's record. The thread that calls MPI writes it without locks; the watchdogs of the node
// read it at any time.
class FlightRecorder {
 public:
  // Collective over `node`, the ranks of one host. RunError on all of them if they cannot share
  // memory.
  FlightRecorder(int world_rank, const Communicator& node);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  // Groups of ranks. id: the same on all ranks of the group, unique to it. AddGroup returns the
  // index by which calls name the group; -1 if there are too many: calls then go without a group.
  std::uint64_t NewGroupId();
  int AddGroup(const std::string& name, std::uint64_t id, int rank, int size);
  void RemoveGroup(int group);

  // One call from its entry to its return: its number, and what is needed to record it again.
  struct Flight {
    std::int64_t number = 0;  // counts this rank's calls; 0: not recorded
    std::int64_t sequence = 0, bytes = 0;
    std::int32_t group = -1, peer = -1, tag = 0;
    Call call = Call::kBarrier;
    std::int64_t before = 0;  // the call that the thread was waiting for before Await; 0: none
  };
  // Records that this rank enters the group's next collective. Takes tens of nanoseconds.
  Flight Enter(int group, Call call, std::int64_t bytes);
  // Records a message to or from rank `peer` of the group: the next one with this tag.
  Flight EnterMessage(int group, Call call, std::int64_t bytes, int peer, int tag);
  // From now on the thread waits for this call.
  void Await(Flight& flight);
  // The call has returned; the thread waits again for what it waited for before Await.
  void Leave(const Flight& flight);
  // Records progress outside of calls: a new phase or step.
  void Progress(Phase phase, std::int64_t step);

  RankSlot& Mine() const { return *mine_; }
  FlightMemory& Memory() const { return *memory_; }

 private:
  Flight Record(const Flight& flight);

  std::unique_ptr<FlightMemory> memory_;
  RankSlot* mine_ = nullptr;
  std::int64_t calls_ = 0, progress_ = 0, step_ = 0;
  std::uint64_t groups_made_ = 0;
  int flows_ = 0;
};

// Records a blocking call during its own lifetime. Does nothing if the group has no recorder.
class Recorded {
 public:
  Recorded(const Communicator& group, Call call, std::int64_t bytes = 0);
  // group: index in the recorder; -1: the wait belongs to no group. recorder: null: record nothing.
  Recorded(FlightRecorder* recorder, Call call, int group = -1, std::int64_t bytes = 0);
  ~Recorded() {
    if (recorder_ != nullptr) recorder_->Leave(flight_);
  }
  Recorded(const Recorded&) = delete;
  Recorded& operator=(const Recorded&) = delete;

 private:
  FlightRecorder* recorder_;
  FlightRecorder::Flight flight_;
};

}  // namespace trireme::comm
