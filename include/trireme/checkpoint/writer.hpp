// Writer: checkpoints of one training state, written whole at once or, asynchronously, beside the
// steps that follow.
//
// Few processes write: checkpoint.writers of each node, each for the ranks next to it, through
// memory that they share. All ranks plan together who holds which bytes; from then on nothing but
// the outcome is agreed: writers put bytes at their offsets with plain positioned writes, so that
// no collective call waits for a rank whose disk has failed. Threads of each writer do that: one
// writes, one makes hashes, one flushes and reads back what was written while the first one goes
// on; rank 0's first thread prepares the folder and publishes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/json.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/kernels/registry.hpp"

namespace trireme::checkpoint {

// Copies elements [first, last) of a block, counted in the flattened tensor, to `to`, in the
// block's dtype. For state that does not lie in the host's memory.
using ReadBlock = std::function<void(const kernels::StateBlock& block, std::int64_t first,
                                     std::int64_t last, void* to)>;

// State that checkpoints hold. Every rank lists every tensor, in the same order
// (kernels::StateBlock).
struct State {
  std::vector<kernels::StateBlock> model;
  std::vector<kernels::StateBlock> optimizer;
  ReadBlock read = {};  // none: each block lies at its `data`
};

struct WriterOptions {
  bool async = false;           // copy the state, and write the copy while training goes on
  int writers = 1;              // per node; 0: each rank writes its own bytes
  std::string io_hints = {};    // "name=value,...": given to MPI-IO when files are created
  int threads = 1;              // of a rank that copy its state at once; State::read must allow it
  std::vector<int> cores = {};  // hardware threads for the writing thread; empty: any
};

// Checkpoints that stay when old ones are removed.
struct Retention {
  std::int64_t keep = 0;              // number of those written last; 0: all
  std::int64_t keep_every_steps = 0;  // and those whose step is a multiple of this; 0: none
};

// One checkpoint to write.
struct Order {
  std::string folder;  // of the run's checkpoints
  std::int64_t step = 0;
  nlohmann::json run;  // run.json, the same on every rank; its "sequence" is set by the writer
  bool best = false;   // move the link `best` as well
  Retention retention = {};
  // Called on rank 0's thread, before the folder is changed, before the checkpoint gets its name,
  // and before the clean-up after a failure: throws if the folder must be left as it is.
  std::function<void()> may_publish = {};
  // Called on the same thread once the checkpoint may get its name: what must be on the disk first.
  std::function<void()> before_publish = {};
};

// Bytes of a state's blocks that this rank gives to its writer, and that an asynchronous one
// copies.
std::int64_t CopyBytes(const std::vector<kernels::StateBlock>& blocks);

// Result of an order, the same on every rank.
struct Outcome {
  std::int64_t step = 0;
  std::int64_t sequence = 0;          // in the order of writing; on rank 0
  std::string failure;                // why it was not written; empty: it was
  std::vector<std::string> warnings;  // written, but a link or the removal of old ones failed
  std::int64_t bytes = 0;             // of the tensor files
  double seconds = 0;                 // from Begin to the end
  double write_seconds = 0;           // of the slowest writer: writes and flushes
  double verify_seconds = 0;          // of the slowest writer: reading back
};

// What a writer works with (src/checkpoint).
struct WritePlan;
struct Round;
struct StagedSegment;
class GatheredSums;
class GroupMemory;
class Output;
class Hasher;
class Checker;
class Worker;

class Writer {
 public:
  // Collective. Plans the files and takes the memory: of an asynchronous writer, a copy of all
  // bytes that the node's ranks hold. `world` must outlive it, as must the state's memory.
  // Where a node's ranks cannot share that memory (a small /dev/shm), rank 0 warns and each rank
  // writes for itself. AgreedError if the state is not whole (MakeWritePlan) or memory is missing.
  Writer(const comm::Communicator& world, State state, WriterOptions options);
  // Ends the thread after the write under way, and leaves an unpublished folder behind.
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  std::int64_t Bytes() const;  // of the tensor files of a checkpoint
  // Memory that this rank and those next to it share for copies of the state.
  std::int64_t MemoryBytes() const;
  // Memory of a writer beside that: what it reads back at once, and the list of segments.
  std::int64_t CheckBytes() const;
  // Memory that a rank which writes takes beside copies for asynchronous checkpoints; 0 on others.
  std::int64_t OwnBytes() const;

  // Collective; nothing may be under way. Asynchronous: copies the state, which may change from
  // then on. Else the state must stay as it is until Finish.
  void Begin(Order order);
  // True from Begin until the outcome is taken. The same on every rank.
  bool UnderWay() const { return part_ != Part::kNone; }
  // True while this rank's part of the work is under way. Cheap.
  bool Busy() const;
  // Collective, once no rank is busy (it waits for those that are): goes on to the next part.
  // Returns the outcome after the last one.
  std::optional<Outcome> Advance();
  // Collective. Waits for the end of what is under way.
  Outcome Finish();

 private:
  enum class Part { kNone, kPrepare, kWrite, kPublish };

  // Whether this rank is the first of its group.
  bool Leads() const { return group_.IsRoot(); }
  const std::vector<kernels::StateBlock>& Blocks(std::size_t file) const;
  template <typename Body>
  void Attempt(const Body& body);

  void SetUp();
  void TakeMemory();
  void StartPrepare();
  void StartWrite();
  void Open();
  void StageRounds();
  void CopyIn(const Round& round, std::byte* slot);
  void CopySegment(const StagedSegment& staged, void* to) const;
  const void* DirectData(const StagedSegment& staged) const;
  void QueueWrite(const Round& round, const std::byte* slot);
  void QueueVerify();
  std::optional<std::string> AgreedFailure();
  void TakeReports();
  void StartPublish();
  Outcome End(const std::string& failure);

  const comm::Communicator& world_;
  const State state_;
  WriterOptions options_;
  comm::Communicator group_;      // ranks that share a writer
  std::vector<WritePlan> plans_;  // model, optimizer; of the group
  std::vector<Round> rounds_;     // of the group
  bool direct_ = false;           // the writer's thread reads the state where it lies
  std::int64_t slot_bytes_ = 0;
  std::unique_ptr<GatheredSums> sums_;
  std::unique_ptr<GroupMemory> memory_;  // null: every rank of the world reads its state in place
  std::string shortage_;  // why a node's ranks cannot share memory, on every rank; empty: they do

  // Of the order under way.
  Part part_ = Part::kNone;
  Order order_;
  double begin_seconds_ = 0;
  std::exception_ptr failure_;  // on this rank's own thread
  Outcome outcome_;
  std::unique_ptr<Output> output_;  // on writers; touched by the threads, or while they are idle
  double write_seconds_ = 0;        // likewise, of the thread that writes
  std::int64_t sequence_ = 0;       // likewise, on rank 0

  // Ended before what their tasks use, and those that wait for others first: worker_ writes.
  std::unique_ptr<Hasher> hasher_;
  std::unique_ptr<Checker> checker_;
  std::unique_ptr<Worker> worker_;
};

// One checkpoint, written at once.

// Contents of a checkpoint folder: model.safetensors, optimizer.safetensors and run.json, to which
// checksums.json is added.
struct Contents {
  std::vector<kernels::StateBlock> model;
  std::vector<kernels::StateBlock> optimizer;
  nlohmann::json run;   // step, sampler position, seed, deck, versions; the same on every rank
  ReadBlock read = {};  // none: each block lies at its `data`
};

// Collective. Writes `folder`/step_NNNNNNNN (8 digits) by way of a temporary name: reserves and
// agrees on the space, writes the tensors (each byte once, by one of the writers), syncs them,
// reads them back against checksums, renames, then moves the relative link `folder`/latest, and
// `folder`/best if `best`. Replaces a complete checkpoint of the same step. Then removes all but
// the `keep` checkpoints written last (0 keeps all), never the target of a link. On failure, such
// as a full disk, throws AgreedError on every rank, removes the temporary folder and leaves earlier
// checkpoints as they are.
void Write(const comm::Communicator& world, const std::string& folder, std::int64_t step,
           const Contents& contents, bool best, std::int64_t keep);

}  // namespace trireme::checkpoint
