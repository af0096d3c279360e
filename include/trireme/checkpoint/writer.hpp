// Writer: checkpoints of one training state, written at once or, asynchronously, beside the steps
// that follow.
//
// Only a few processes write: checkpoint.writers per node, each for the ranks next to it, through
// memory that they share. All ranks plan together who holds which bytes; after that they agree on
// the outcome only. Writers put bytes at their offsets with plain positioned writes, so that no
// collective call waits for a rank whose disk has failed. Each writer has three threads: one
// writes, one computes hashes, one flushes and reads back what was written while the first
// continues. The first thread of rank 0 also prepares the folder and publishes it.
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
// block's dtype. Needed for state that is not in host memory.
using ReadBlock = std::function<void(const kernels::StateBlock& block, std::int64_t first,
                                     std::int64_t last, void* to)>;

// The state that checkpoints hold. Every rank lists every tensor, in the same order
// (kernels::StateBlock).
struct State {
  std::vector<kernels::StateBlock> model;
  std::vector<kernels::StateBlock> optimizer;
  ReadBlock read = {};  // empty: each block lies at its `data`
};

struct WriterOptions {
  bool async = false;           // copy the state; write the copy while training goes on
  int writers = 1;              // per node; 0: every rank writes its own bytes
  std::string io_hints = {};    // "name=value,...", for MPI-IO when files are created
  int threads = 1;              // threads that copy a rank's state, which call State::read at once
  std::vector<int> cores = {};  // hardware threads for the writing thread; empty: any
};

// Which checkpoints stay when old ones are removed.
struct Retention {
  std::int64_t keep = 0;              // number of last written ones; 0: all
  std::int64_t keep_every_steps = 0;  // also steps that are multiples of this; 0: none
};

// One checkpoint to write.
struct Order {
  std::string folder;  // the run's folder of checkpoints
  std::int64_t step = 0;
  nlohmann::json run;  // run.json, the same on every rank; the writer sets "sequence"
  bool best = false;   // also move the link `best`
  Retention retention = {};
  // Called on rank 0's writing thread before the folder is changed, before the checkpoint gets its
  // name, and before the clean-up after a failure. Throws if the folder must be left as it is.
  std::function<void()> may_publish = {};
  // Called on that thread just before the checkpoint gets its name; makes other files durable.
  std::function<void()> before_publish = {};
};

// Bytes of `blocks` that this rank gives to its writer; an asynchronous writer copies as many.
std::int64_t CopyBytes(const std::vector<kernels::StateBlock>& blocks);

// The result of an order, the same on every rank.
struct Outcome {
  std::int64_t step = 0;
  std::int64_t sequence = 0;          // counts checkpoints in the order of writing; on rank 0
  std::string failure;                // why it was not written; empty: it was
  std::vector<std::string> warnings;  // it was written, but a link or a removal failed
  std::int64_t bytes = 0;             // of the tensor files
  double seconds = 0;                 // from Begin to the end
  double write_seconds = 0;           // of the slowest writer: writes and flushes
  double verify_seconds = 0;          // of the slowest writer: reading back
};

// Parts of a writer (src/checkpoint).
struct WritePlan;
struct Round;
struct StagedSegment;
class GatheredSums;
class GroupMemory;
class Output;
class Hasher;
class Checker;
class Worker;

// A checkpoint is the folder step_NNNNNNNN (8 digits) with model.safetensors,
// optimizer.safetensors, run.json and checksums.json. It is written under a temporary name: its
// space is reserved, each byte is written once, synced and read back against its hash; then the
// folder is renamed, in place of a complete checkpoint of the same step, and the relative links
// `latest` and, if asked, `best` are moved. The target of a link is never removed. After a failure,
// such as a full disk, the temporary folder is removed and earlier checkpoints are as they were.
class Writer {
 public:
  // Collective. Plans the files and allocates memory; an asynchronous writer takes enough for a
  // copy of all bytes that the node's ranks hold. `world` and the state's memory must outlive it.
  // If a node's ranks cannot share that memory (a small /dev/shm), rank 0 warns and each rank
  // writes for itself. Throws AgreedError if the state is incomplete or memory is missing.
  Writer(const comm::Communicator& world, State state, WriterOptions options);
  // Ends the threads after the current write; leaves an unpublished folder behind.
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  std::int64_t Bytes() const;  // of the tensor files of a checkpoint
  // Bytes that this rank and its group share for copies of the state.
  std::int64_t MemoryBytes() const;
  // Bytes that a writer needs besides that: for reading back, and for the list of segments.
  std::int64_t CheckBytes() const;
  // Bytes that a writing rank needs besides copies for asynchronous checkpoints; 0 on others.
  std::int64_t OwnBytes() const;

  // Collective; no checkpoint may be under way. Asynchronous: copies the state, which may change
  // after the return. Otherwise the state must not change until Finish.
  void Begin(Order order);
  // True from Begin until the outcome is returned. The same on every rank.
  bool UnderWay() const { return part_ != Part::kNone; }
  // True while this rank's work on the current part is under way. Cheap.
  bool Busy() const;
  // Collective. Waits until no rank is busy, then starts the next part. Returns the outcome after
  // the last part.
  std::optional<Outcome> Advance();
  // Collective. Completes the checkpoint under way.
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
  void StageRounds();
  void CopyIn(const Round& round, std::byte* slot);
  void CopySegment(const StagedSegment& staged, void* to) const;
  const void* DirectData(const StagedSegment& staged) const;
  void QueueWrite(const Round& round, const std::byte* slot);
  void QueueVerify();
  std::optional<std::string> AgreedFailure();
  void StartPublish();
  Outcome End(const std::string& failure);

  const comm::Communicator& world_;
  const State state_;
  WriterOptions options_;
  comm::Communicator group_;      // ranks that share a writer
  std::vector<WritePlan> plans_;  // of the group: {model, optimizer}
  std::vector<Round> rounds_;     // rounds in which the group writes
  bool direct_ = false;           // the writer's thread reads the state where it lies
  std::int64_t slot_bytes_ = 0;
  std::unique_ptr<GatheredSums> sums_;
  std::unique_ptr<GroupMemory> memory_;  // null: on no rank of the world is state copied
  std::string shortage_;  // why a node's ranks cannot share memory, on every rank; empty: they do

  // State of the current order:
  Part part_ = Part::kNone;
  Order order_;
  double begin_seconds_ = 0;
  std::exception_ptr failure_;  // raised on this rank's own thread
  Outcome outcome_;
  std::unique_ptr<Output> output_;  // on writers; used by its threads, or while they are idle
  double write_seconds_ = 0;        // of the writing thread; used like output_
  std::int64_t sequence_ = 0;       // on rank 0; used like output_

  // These end before the members above; worker_ ends first, because it waits for the others.
  std::unique_ptr<Hasher> hasher_;
  std::unique_ptr<Checker> checker_;
  std::unique_ptr<Worker> worker_;
};

}  // namespace trireme::checkpoint
