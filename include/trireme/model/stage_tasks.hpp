// StageTasks: runs the pipeline's tasks (forward, backward, evaluation) on one rank's stage.
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

// ChunkActivations: what micro-batches keep for their backward passes on one chunk of a stage.

// Memory comes in slots of three lifetimes (parallel::Slots), each sized for the largest
// micro-batch. If weight gradients are tasks of their own and nothing is recomputed, memory
// rotates: instead of input and backward slots, each kept block has a frame, and one frame is
// spare. A block's backward pass writes what its weight gradient needs to the spare frame; the
// frame of its forward pass, no longer needed, becomes the next spare.
class ChunkActivations {
 public:
  // Matrices that one entry of a micro-batch keeps.
  struct Live {
    std::vector<Block::Saved> blocks;  // [blocks]
    std::vector<int> frames;           // [blocks]: number of the block's frame, if memory rotates
    Matrix head_input;  // [rows, dim]: input of the final norm or the head, on the last chunk
    // Encoder-decoders: the encoder's output, [source rows, dim], and what its norm keeps.
    Matrix memory;
    NormLayer::Saved encoder_norm;
  };
  // Arenas for what later tasks need. backward: null unless weight gradients are a task of their
  // own.
  struct Arenas {
    device::Arena *input = nullptr, *weight = nullptr, *backward = nullptr;
  };

  // blocks must outlive this. entries: per micro-batch. recomputes: model.recompute is not none.
  ChunkActivations(const std::vector<Block>& blocks, const parallel::Slots& slots, int entries,
                   bool recomputes);

  // Planning: returns measuring arenas, in which the tasks of the largest micro-batch run dry once.
  Arenas BeginMeasuring();
  void EndMeasuring();
  std::int64_t Bytes() const;  // all slots and frames together
  char* Cut(char* memory);     // cuts `memory` into slots; returns the end of the last

  // The arenas of a micro-batch. split: its weight gradients are a task of their own.
  Arenas At(const parallel::Slots& slots, bool split);
  void Clear(const parallel::Slots& slots);  // empties the slots, before a forward pass
  Live& LiveAt(int weight_slot, int entry) {
    return live_[static_cast<std::size_t>(weight_slot * entries_ + entry)];
  }
  // [blocks]: for evaluation, which keeps nothing from one block to the next.
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
               frame_bytes_ = 0;  // of one slot or frame
  std::vector<device::Arena> input_, weight_, backward_;
  std::vector<device::Arena> frames_;  // one per live block, and the spare one
  int spare_ = 0;
  std::vector<Live> live_;  // [weight slots, entries]
  std::vector<Block::Saved> passing_;
};

// Called during the backward pass when the gradients from flat offset `begin` on are final.
using GradientsReady = std::function<void(std::int64_t begin)>;

// A micro-batch of the schedule is a list of entries: one in the fast mode, several canonical
// leaves otherwise. Parameters are gathered, and gradients scattered, once for all of them. All
// memory is allocated at once, after planning; no step allocates.
class StageTasks : public parallel::StageWork {
 public:
  // In an evaluation, computes something other than losses from the head's input.
  class Reader {
   public:
    virtual ~Reader() = default;
    // How the pass of an entry uses a cache. StageTasks sets `continues`.
    virtual CachedPass CachedPassOf(std::size_t entry) const = 0;
    // Called on the last stage for one entry after the other. x: [tokens, dim].
    virtual void Read(const Pass& pass, const Matrix& x) = 0;
  };

  // Makes the tasks for the network's kind of model, with memory for activations, batches and
  // losses. network: must outlive the result.
  static std::unique_ptr<StageTasks> Make(Network& network);

  // A training pass is collective over the replica, whose ranks pass the same batches:
  // Stages().Padded() micro-batches of Plan().leaves entries each, some perhaps empty. If values or
  // gradients are sharded, all ranks of the shard group pass the same number. A pass takes four
  // calls, so that batches can be copied during a computation and graphs recorded: Batches().Stage
  // (starts the copy to a GPU), Batches().Take (queues the copy into place; not part of a graph),
  // StartTrain (queues the computation), FinishLoss (waits). The batches must outlive all four.
  StagedBatches& Batches() { return staged_; }
  // Adds the gradients of the summed loss to the registry's. ready: may be empty.
  void StartTrain(StagedBatches::Taken taken, const GradientsReady& ready);
  // The summed loss of this rank's tokens, nats, on the first tensor rank of the last stage; 0 on
  // other ranks, so that a sum over the grid counts it once. Label smoothing is included only after
  // training.
  ExactSum FinishLoss();
  // Called after a graph replayed StartTrain: FinishLoss will return the loss of these batches.
  void Replayed(StagedBatches::Taken taken) { Begin(std::move(taken), std::move(ready_), nullptr); }
  // Evaluation: returns the summed loss as FinishLoss does. losses: null, or [tokens of all
  // batches], filled on the first tensor rank of the last stage.
  ExactSum Loss(std::span<const data::Entry> batches, double* losses = nullptr);
  void QueueLoss(std::span<const data::Entry> batches,
                 double* losses = nullptr);  // FinishLoss waits
  // Queues an evaluation for `reader`, which must outlive it. batches: as for a training pass.
  void QueueRead(std::span<const data::Entry> batches, Reader& reader);
  // Waits for the work queued on a GPU; throws if a rank is lost.
  void AwaitQueue();

  // Prepares for the tasks of these batches. losses: null, or [tokens of all batches], nats.
  void Begin(StagedBatches::Taken taken, GradientsReady ready, double* losses,
             Reader* reader = nullptr);
  std::int64_t Rows(int micro_batch) const override;
  void Run(const parallel::ProgramTask& task, const Matrix& in, const Matrix& out) override;

  parallel::Pipeline& Stages() { return pipeline_; }
  const parallel::Pipeline& Stages() const { return pipeline_; }
  // Adds the bytes of activations, vocabulary tile, messages, and tokens on a GPU.
  void AddMemory(device::MemoryTerms& memory) const;

 protected:
  // One residual stream of an entry in a task; in backward tasks its gradient.
  struct ResidualStream {
    Pass pass;                      // pass.sequences = 0: the entry has no such stream
    Matrix in, out;                 // its rows in the task's input and output
    Matrix residual;                // the stream after the blocks run so far
    std::array<Matrix, 2> buffers;  // blocks write them in turn
    std::int64_t Rows() const { return pass.sequences == 0 ? 0 : pass.Rows().Size(); }
    const Matrix& Other() const { return buffers[residual.data == buffers[0].data ? 1 : 0]; }
  };
  struct TaskEntry {
    ResidualStream target, source;           // decoder-only: no source
    ChunkActivations::Live* live = nullptr;  // null in evaluations
  };
  using TaskEntries = std::vector<TaskEntry>;
  using Arenas = ChunkActivations::Arenas;
  // The blocks [begin, end) of a chunk, all acting on the same stream.
  struct Stack {
    int chunk;
    std::size_t begin, end;
    ResidualStream TaskEntry::*stream;
  };
  using ForEntry = FunctionRef<void(TaskEntry& entry)>;

  // pairs: batches have source texts.
  StageTasks(Network& network, bool pairs);

  // What the two kinds of models do differently. Dry passes only allocate.
  virtual void Forward(TaskEntries& entries, int chunk, const Arenas& arenas) = 0;
  virtual void Evaluate(TaskEntries& entries, int chunk) = 0;
  // report: report the gradients of each unit as final once its blocks are done.
  virtual void Backward(TaskEntries& entries, int chunk, const Arenas& arenas, bool report) = 0;
  // Derives the source stream's pass from the target stream's.
  virtual void MakeSource(TaskEntry& entry) const = 0;
  virtual const Pass& PassOf(const TaskEntry& entry, int chunk, std::size_t block) const = 0;
  // Elements of attention's scratch memory. shape: the largest entry's.
  virtual std::int64_t AttentionElements(const Pass& pass, kernels::AttentionShape shape,
                                         bool dropout) const = 0;

  // Run the blocks of a stack, each for all entries, so that its unit is used only once. last:
  // returns the output matrix of the stack's last block. then: called after that block; before:
  // called before it in the backward pass; both while its unit is in use.
  void ForwardBlocks(TaskEntries& entries, const Stack& stack, const Arenas& arenas,
                     FunctionRef<Matrix(TaskEntry& entry)> last, ForEntry then);
  // leaves: true if the last block writes the task's output.
  void EvaluateBlocks(TaskEntries& entries, const Stack& stack, bool leaves, ForEntry then);
  void BackwardBlocks(TaskEntries& entries, const Stack& stack, bool weights_too, bool report,
                      ForEntry before);
  // The same for the target stream, up to the next stage or the head.
  void ForwardTarget(TaskEntries& entries, const Stack& stack, const Arenas& arenas);
  void EvaluateTarget(TaskEntries& entries, const Stack& stack);
  // Allocates the stream before a block, or the head's input.
  Matrix ResidualOf(const TaskEntry& entry, const Stack& stack, std::size_t block,
                    const Arenas& arenas);
  Matrix Allocate(const Pass& pass, device::Arena* arena) const;  // [rows, dim]
  void AllocateBuffers(ResidualStream& stream) const;
  void BeginBackward(ResidualStream& stream, const Arenas& arenas) const;
  void BeginTargetBackward(ResidualStream& target, int chunk, const Arenas& arenas) const;

  // Embedding and head.
  void Embed(const EmbeddingLayer& layer, const ResidualStream& stream,
             bool backward = false) const;
  void HeadGradients(TaskEntries& entries, int chunk, bool report);
  void EmbeddingGradients(TaskEntries& entries, int chunk, ForEntry embed_backward);

  const Network::Chunk& LayersOf(int chunk) const {
    return network_.Chunks()[static_cast<std::size_t>(chunk)];
  }
  // Begin and end the use of the parameter values of those units that this rank holds.
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
  Pass MakePass(bool training);                     // dry: for the largest entry
  Pass MakePass(std::size_t entry, bool training);  // for an entry of batches_
  TaskEntries DryEntries(int chunk, bool training, device::Arena& scratch);
  // The non-empty entries of a task's micro-batch; every task gets the same vector.
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
  Matrix HeadInput(const Pass& pass, const Matrix& x, NormLayer::Saved& norm) const;
  void EvaluateHead(const Pass& pass, const Matrix& x);
  void HeadBackward(const Pass& pass, const Matrix& x, const Matrix& dx) const;

  bool Tells(int unit) const;  // the sharding must be told about uses of `unit`
  void BeginGradient(std::span<const int> units) const;
  void EndGradient(std::span<const int> units) const;
  void EnterLeaf(int unit, parallel::LeafGradients::Phase phase, const Pass& pass);
  void Report(int unit) const;  // says that gradients from this unit on are final
  device::Recorder* Trace() const { return network_.Grid().Traffic().Trace(); }

  parallel::Pipeline pipeline_;
  const std::function<void()> progress_;  // lets transfers progress, between blocks
  device::Event done_;                    // on a GPU: the queued work is done
  PositionTable positions_;
  parallel::LeafGradients leaf_gradients_;
  StagedBatches staged_;
  TokenLosses losses_;

  std::vector<ChunkActivations> memory_;  // [chunks]
  // One buffer: workspace, then training's scratch and slots. Evaluation, which never runs while
  // slots are in use, takes everything after the workspace.
  std::int64_t bytes_ = 0, tile_bytes_ = 0;  // tile_bytes_: part for the vocabulary's tile
  device::Buffer storage_;
  std::optional<device::Arena> training_scratch_, evaluation_scratch_;
  Workspace workspace_;

  std::span<const data::Entry> batches_;
  GradientsReady ready_;
  Reader* reader_ = nullptr;  // null: compute losses
  TaskEntries task_entries_;  // entries of the present task
  bool planning_ = true;      // the passes are dry
};

}  // namespace trireme::model
