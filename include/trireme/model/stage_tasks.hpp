// The tasks of a step or an evaluation on one rank's stage, which the pipeline hands it: forward,
// backward, weight gradients, evaluation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "trireme/base/exact_sum.hpp"
#include "trireme/base/function_ref.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/device/recorder.hpp"
#include "trireme/model/network.hpp"
#include "trireme/model/pass.hpp"
#include "trireme/model/staged_batches.hpp"
#include "trireme/parallel/canonical.hpp"
#include "trireme/parallel/pipeline.hpp"

namespace trireme::model {

// The activations that micro-batches leave for their backward passes on one chunk of a stage, and
// the slots of memory that they lie in.

// Slots of three lifetimes (parallel::Slots), each of the size of the largest micro-batch.
// If weight gradients are tasks of their own and nothing is recomputed, memory rotates: instead of
// the input and backward slots each kept block has a frame, and one frame is spare. A block's
// backward pass writes what its weight gradient needs to the spare frame; the frame of its forward
// pass, now dead, is the next spare.
class ChunkActivations {
 public:
  // Matrices that one entry of a micro-batch leaves.
  struct Live {
    std::vector<Block::Saved> blocks;  // [blocks]
    std::vector<int> frames;           // [blocks]: of the memory that rotates
    Matrix head_input;                 // [rows, dim]: on the last chunk
    // Of an encoder-decoder, [source rows, dim]: the encoder's output, and what its norm keeps.
    Matrix memory;
    NormLayer::Saved encoder_norm;
  };
  // Memory of a task's results for later tasks. backward is null unless the weight gradients are a
  // task of their own.
  struct Arenas {
    device::Arena *input = nullptr, *weight = nullptr, *backward = nullptr;
  };

  // blocks must outlive this. entries: of a micro-batch.
  ChunkActivations(const std::vector<Block>& blocks, const parallel::Slots& slots, int entries,
                   bool recomputes);

  // Planning: measuring arenas, in which the tasks of the largest micro-batch run once without
  // memory.
  Arenas BeginMeasuring();
  void EndMeasuring();
  std::int64_t Bytes() const;  // of all slots
  char* Cut(char* memory);     // into slots; returns the end of what it took

  // The slots of a micro-batch. split: its weight gradients are a task of their own.
  Arenas At(const parallel::Slots& slots, bool split);
  void Clear(const parallel::Slots& slots);  // before a micro-batch's forward pass
  Live& LiveAt(int weight_slot, int entry) {
    return live_[static_cast<std::size_t>(weight_slot * entries_ + entry)];
  }
  // Saved matrices of evaluation, which keeps nothing beyond a block: [blocks].
  std::vector<Block::Saved>& Passing() { return passing_; }

  bool Rotates() const { return rotates_; }
  device::Arena& Frame(const Live& live, std::size_t block) {
    return frames_[static_cast<std::size_t>(live.frames[block])];
  }
  device::Arena& SpareFrame() { return frames_[static_cast<std::size_t>(spare_)]; }
  void SwapSpare(Live& live, std::size_t block) { std::swap(live.frames[block], spare_); }

 private:
  std::vector<Block::Saved> MakeSaved() const;
  void MakeLive(int weight_slots);

  const std::vector<Block>& blocks_;
  parallel::Slots slots_;
  int entries_;
  bool rotates_;
  std::int64_t input_bytes_ = 0, weight_bytes_ = 0, backward_bytes_ = 0,
               frame_bytes_ = 0;  // of one
  std::vector<device::Arena> input_, weight_, backward_;
  std::vector<device::Arena> frames_;  // [live blocks], and the spare
  int spare_ = 0;
  std::vector<Live> live_;  // [weight slots, entries]
  std::vector<Block::Saved> passing_;
};

// Called during the backward pass: the gradients at flat offsets [begin, end of storage) are final.
using GradientsReady = std::function<void(std::int64_t begin)>;

// A micro-batch of the schedule is a list of entries: one in the fast mode, several canonical
// entries otherwise. Parameters are gathered, and gradients scattered, once for all of them. All
// memory is one piece that is planned before anything is allocated: no step takes memory.
class StageTasks : public parallel::StageWork {
 public:
  // What an evaluation computes from the head's input instead of losses.
  class Reader {
   public:
    virtual ~Reader() = default;
    // The use that the pass of an entry makes of a cache; StageTasks says whether it continues.
    virtual CachedPass CachedPassOf(std::size_t entry) const = 0;
    // x: [tokens, dim], on the last stage, of one entry after the other.
    virtual void Read(const Pass& pass, const Matrix& x) = 0;
  };

  // For the network's kind of model, with the memory of activations, batches and losses. network:
  // must outlive the result.
  static std::unique_ptr<StageTasks> Make(Network& network);

  // A training pass is collective over the replica, whose ranks pass the same batches:
  // Stages().Padded() micro-batches of Plan().leaves entries each, some perhaps empty; if values or
  // gradients are sharded, the same number on all ranks of the shard group. Four calls, so that
  // batches can be prepared during a computation and graphs recorded: Batches().Stage (starts the
  // copy to a GPU), Batches().Take (queues the copy into place; not part of a graph), StartTrain
  // (queued), FinishLoss (waits). The batches outlive all four.
  StagedBatches& Batches() { return staged_; }
  // Adds the gradients of the summed loss to the registry's. ready may be empty.
  void StartTrain(StagedBatches::Taken taken, const GradientsReady& ready);
  // The summed loss in nats of this rank's tokens on the last stage's first tensor rank and 0 on
  // others, so that a sum over the grid counts it once. With label smoothing after training,
  // without after an evaluation.
  ExactSum FinishLoss();
  // After a graph replay of StartTrain: FinishLoss now reads these batches.
  void Replayed(StagedBatches::Taken taken) { Begin(std::move(taken), std::move(ready_), nullptr); }
  // Evaluation: summed loss, as of FinishLoss. losses (or null): [rows of all batches], one per
  // target, filled on the last stage's first tensor rank.
  ExactSum Loss(std::span<const data::Entry> batches, double* losses = nullptr);
  void QueueLoss(std::span<const data::Entry> batches,
                 double* losses = nullptr);  // FinishLoss waits
  // Queues an evaluation for `reader`, which outlives it. batches: as of a training pass.
  void QueueRead(std::span<const data::Entry> batches, Reader& reader);
  // Waits for what was queued on a GPU; ends if a rank is lost.
  void AwaitQueue();

  // The tasks of these batches follow; losses (or null): [tokens of all batches], in nats.
  void Begin(StagedBatches::Taken taken, GradientsReady ready, double* losses,
             Reader* reader = nullptr);
  std::int64_t Rows(int micro_batch) const override;
  void Run(const parallel::ProgramTask& task, const Matrix& in, const Matrix& out) override;

  parallel::Pipeline& Stages() { return pipeline_; }
  const parallel::Pipeline& Stages() const { return pipeline_; }
  // Adds the bytes of activations, vocabulary tile, messages, and of a GPU's tokens.
  void AddMemory(device::MemoryTerms& memory) const;

 protected:
  // A residual stream of an entry in a task, or its gradient.
  struct ResidualStream {
    Pass pass;                      // without sequences: there is no such stream
    Matrix in, out;                 // its rows of the task's input and output
    Matrix residual;                // as far as the task has come
    std::array<Matrix, 2> buffers;  // through which it passes
    std::int64_t Rows() const { return pass.sequences == 0 ? 0 : pass.Rows().Size(); }
    const Matrix& Other() const { return buffers[residual.data == buffers[0].data ? 1 : 0]; }
  };
  struct TaskEntry {
    ResidualStream target, source;           // a decoder has no source
    ChunkActivations::Live* live = nullptr;  // of training tasks
  };
  using TaskEntries = std::vector<TaskEntry>;
  using Arenas = ChunkActivations::Arenas;
  // The blocks [begin, end) of a chunk, all of which act on one stream.
  struct Stack {
    int chunk;
    std::size_t begin, end;
    ResidualStream TaskEntry::*stream;
  };
  using ForEntry = FunctionRef<void(TaskEntry& entry)>;

  // pairs: batches have source texts.
  StageTasks(Network& network, bool pairs);

  // What the kinds of models do differently. Dry passes only take memory.
  virtual void Forward(TaskEntries& entries, int chunk, const Arenas& arenas) = 0;
  virtual void Evaluate(TaskEntries& entries, int chunk) = 0;
  // report: gradients are final as units are done.
  virtual void Backward(TaskEntries& entries, int chunk, const Arenas& arenas, bool report) = 0;
  // Makes the pass of the source stream from that of the target stream.
  virtual void MakeSource(TaskEntry& entry) const = 0;
  virtual const Pass& PassOf(const TaskEntry& entry, int chunk, std::size_t block) const = 0;
  // Elements of attention's scratch. shape: of the largest entry.
  virtual std::int64_t AttentionElements(const Pass& pass, kernels::AttentionShape shape,
                                         bool dropout) const = 0;

  // The blocks of a stack, in order, each with its values used and its gradients begun once for all
  // entries. Forward, `last` gives the output of the stack's last block. `then` follows that block,
  // and `before` comes before it on the way back, while its unit is in use.
  void ForwardBlocks(TaskEntries& entries, const Stack& stack, const Arenas& arenas,
                     FunctionRef<Matrix(TaskEntry& entry)> last, ForEntry then);
  // leaves: the last block writes the task's output.
  void EvaluateBlocks(TaskEntries& entries, const Stack& stack, bool leaves, ForEntry then);
  void BackwardBlocks(TaskEntries& entries, const Stack& stack, bool weights_too, bool report,
                      ForEntry before);
  // The same of the target stream, up to the next stage or to the head.
  void ForwardTarget(TaskEntries& entries, const Stack& stack, const Arenas& arenas);
  void EvaluateTarget(TaskEntries& entries, const Stack& stack);
  // Memory for the stream before a block, or for the head's input.
  Matrix ResidualOf(const TaskEntry& entry, const Stack& stack, std::size_t block,
                    const Arenas& arenas);
  Matrix Allocate(const Pass& pass, device::Arena* arena) const;  // [rows, dim]
  void AllocateBuffers(ResidualStream& stream) const;
  void BeginBackward(ResidualStream& stream, const Arenas& arenas) const;
  void BeginTargetBackward(ResidualStream& target, int chunk, const Arenas& arenas) const;

  // The ends of the stack of blocks.
  void Embed(const EmbeddingLayer& layer, const ResidualStream& stream,
             bool backward = false) const;
  void HeadGradients(TaskEntries& entries, int chunk, bool report);
  void EmbeddingGradients(TaskEntries& entries, int chunk, ForEntry embed_backward);

  const Network::Chunk& LayersOf(int chunk) const {
    return network_.Chunks()[static_cast<std::size_t>(chunk)];
  }
  // Uses of values, of those units that this rank holds.
  void Use(std::span<const int> units) const;
  void Done(std::span<const int> units) const;

  Network& network_;
  const ModelPlan& plan_;
  const StagePlan& local_;

 private:
  void PlanMemory();
  void AllocateMemory(std::int64_t workspace, std::int64_t scratch);
  Workspace MakeWorkspace(device::Arena& arena);
  ChunkActivations& MemoryOf(int chunk) { return memory_[static_cast<std::size_t>(chunk)]; }
  device::Arena* Scratch(bool training);
  Pass MakePass(bool training);                     // dry, of the largest entry
  Pass MakePass(std::size_t entry, bool training);  // of an entry of the batches
  TaskEntries DryEntries(int chunk, bool training, device::Arena& scratch);
  // The entries of a task's micro-batch that have sequences; the same memory for every task.
  TaskEntries& TaskEntriesOf(const parallel::ProgramTask& task, const Matrix& in,
                             const Matrix& out);
  std::size_t FirstEntry(int micro_batch) const;
  std::span<const data::Entry> EntriesOf(int micro_batch) const;
  int MicroBatches(std::span<const data::Entry> batches) const;
  void RunProgram(const parallel::Program& program);
  void RunEvaluation(std::span<const data::Entry> batches);
  Lifetimes ForwardLives(const Arenas& arenas, device::Arena* scratch) const;

  void ForwardBlock(TaskEntry& entry, const Stack& stack, std::size_t block, const Arenas& arenas,
                    const Matrix& out);
  void EvaluateBlock(const ResidualStream& stream, int chunk, std::size_t block, const Matrix& out);
  void BackwardBlock(Pass pass, const Block& block, Block::Saved& saved, const Matrix& dy,
                     const Matrix& dx) const;
  void RecomputeBlock(const Pass& pass, const Block& block, Block::Saved& saved) const;
  void BackwardWeight(TaskEntries& entries, int chunk, bool report);
  void EvaluateHead(const Pass& pass, const Matrix& x);
  void HeadBackward(const Pass& pass, const Matrix& x, const Matrix& dx) const;

  bool Tells(int unit) const;  // whether the sharding has to know of a use of this unit
  void BeginGradient(std::span<const int> units) const;
  void EndGradient(std::span<const int> units) const;
  void EnterLeaf(int unit, parallel::LeafGradients::Phase phase, const Pass& pass);
  void Report(int unit) const;  // the gradients from this unit on are final
  device::Recorder* Trace() const { return network_.Grid().Traffic().Trace(); }

  parallel::Pipeline pipeline_;
  const std::function<void()> progress_;  // chances for transfers, between blocks
  device::Event done_;                    // on a GPU: end of the queued work
  PositionTable positions_;
  parallel::LeafGradients leaf_gradients_;
  StagedBatches staged_;
  TokenLosses losses_;

  std::vector<ChunkActivations> memory_;  // [chunks]
  // Workspace, then scratch and slots of training; evaluation, which never runs while slots are in
  // use, has all memory after the workspace.
  std::int64_t bytes_ = 0, tile_bytes_ = 0;  // of these, the vocabulary's tile
  device::Buffer storage_;
  std::optional<device::Arena> training_scratch_, evaluation_scratch_;
  Workspace workspace_;

  std::span<const data::Entry> batches_;
  GradientsReady ready_;
  Reader* reader_ = nullptr;  // null: the tasks compute losses
  TaskEntries task_entries_;  // of the task that runs
  bool planning_ = true;      // dry passes: nobody is told of uses
};

}  // namespace trireme::model
