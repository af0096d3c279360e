// FlightRecorder: the last collectives and transfers of every rank of a node, in memory that its
// ranks share, so that a rank that hangs or died can still be asked what it did last.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace trireme::comm {

class Communicator;
struct FlightMemory;
struct RankSlot;

// Calls that the recorder tells apart.
enum class Call : std::uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kBroadcast,
  kSend,
  kReceive,
  kShift,      // around a ring
  kBarrier,    //
  kAgreement,  // Communicator::Together
  kSplit,      // of a group, or a copy of it
  kExchange,   // a checkpoint's bytes, from their readers to all
  kDevice,     // the host waits for its GPU
  kConnect,    // channels between GPUs are set up
};
constexpr int kCalls = 14;
const char* NameOf(Call call);

// Parts of a job that have bounds of their own.
enum class Phase : std::uint8_t { kSetUp, kStep, kValidation, kCheckpoint, kEnd };
const char* NameOf(Phase phase);
// "in step 12", "in the validation after step 12".
std::string Describe(Phase phase, std::int64_t step);

// A rank's record. Written by the thread that calls MPI, without locks; read at any time by the
// watchdogs of its node.
class FlightRecorder {
 public:
  // Collective over `node`, the ranks of one host. RunError on all of them if memory cannot be
  // shared.
  FlightRecorder(int world_rank, const Communicator& node);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  // Groups of ranks. id: the same on all ranks of the group, and no other's. Returns the place by
  // which calls name the group; -1 if there are too many, whose calls are recorded without a group.
  std::uint64_t NewGroupId();
  int AddGroup(const std::string& name, std::uint64_t id, int rank, int size);
  void RenameGroup(int group, const std::string& name);
  void RemoveGroup(int group);

  // One call from its entry to its return: number and what is needed to tell it again.
  struct Flight {
    std::int64_t number = 0;  // of this rank's calls; 0: not recorded
    std::int64_t sequence = 0, bytes = 0;
    std::int32_t group = -1, peer = -1, tag = 0;
    Call call = Call::kBarrier;
    std::int64_t before = 0;  // number of the call that was waited for until Await
  };
  // Records that this rank enters the group's next collective. Tens of nanoseconds.
  Flight Enter(int group, Call call, std::int64_t bytes);
  // Likewise a message to or from rank `peer` of the group: the next one with this tag.
  Flight EnterMessage(int group, Call call, std::int64_t bytes, int peer, int tag);
  // The thread waits for the call from now on.
  void Await(Flight& flight);
  // The call has returned; what was waited for before Await is waited for again.
  void Leave(const Flight& flight);
  // Something has come forward beside the calls: the part of the job, or its step.
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

// Records a blocking call for as long as it lives. Does nothing in a group without a recorder.
class Recorded {
 public:
  Recorded(const Communicator& group, Call call, std::int64_t bytes = 0);
  // group: the recorder's place of it; -1: a wait in no group. recorder: null: none.
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
