// Writer: checkpoints of one training state, written whole at once or, asynchronously, beside the
// steps that follow.
//
// Few processes write: checkpoint.writers of each node, each for the ranks next to it, through
// memory that they share. All ranks plan together who holds which bytes; from then on nothing but
// the outcome is agreed: writers put bytes at their offsets with plain positioned writes, so that
// no collective call waits for a rank whose disk has failed. Threads of each writer do that: one
// writes, one makes hashes, one flushes and reads back what was written while the first one goes
// on; rank 0's first thread prepares the folder and publishes it.
#ifndef TRIREME_CHECKPOINT_WRITER_HPP_
#define TRIREME_CHECKPOINT_WRITER_HPP_

#include <cstdint>
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
// (tensor/state_block.hpp).
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
  bool UnderWay() const;
  // True while this rank's part of the work is under way. Cheap.
  bool Busy() const;
  // Collective, once no rank is busy (it waits for those that are): goes on to the next part.
  // Returns the outcome after the last one.
  std::optional<Outcome> Advance();
  // Collective. Waits for the end of what is under way.
  Outcome Finish();

 private:
  class Work;
  std::unique_ptr<Work> work_;
};

}  // namespace trireme::checkpoint

#endif  // TRIREME_CHECKPOINT_WRITER_HPP_
