// The tasks of a training or evaluation step on one rank's part of a model: forward, backward,
// weight gradients, evaluation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "trireme/base/exact_sum.hpp"
#include "trireme/base/function_ref.hpp"
#include "trireme/comm/ledger.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/device/recorder.hpp"
#include "trireme/model/block.hpp"
#include "trireme/model/embedding_layer.hpp"
#include "trireme/model/head_layer.hpp"
#include "trireme/model/key_value_cache.hpp"
#include "trireme/model/pass.hpp"
#include "trireme/model/plan.hpp"
#include "trireme/model/staged_batches.hpp"
#include "trireme/parallel/pipeline.hpp"
#include "trireme/parallel/ring_attention.hpp"
#include "trireme/parallel/sharding.hpp"

namespace trireme::model {

// The layers of one rank's part of a model, and the registry of their parameters.

class StageLayers {
 public:
  struct Chunk {
    std::vector<Block> blocks;
    std::vector<int> units;            // [blocks]: of the registry
    std::size_t encoders = 0;          // blocks of the encoder, which come first
    bool ends_encoder = false;         // the last of them is the encoder's last
    bool first = false, last = false;  // has the embedding, the head
  };

  // Lists all parameters of the model, in its order, on every rank, those of other stages without
  // memory; decides who owns what, takes memory for parameters and gradients, and draws the initial
  // weights. The sequence must fit the table of learned positions.
  StageLayers(const ModelPlan& plan, const StagePlan& local, const parallel::TensorGroup& tensor,
              const device::Stream& stream);
  StageLayers(const StageLayers&) = delete;
  StageLayers& operator=(const StageLayers&) = delete;

  const std::vector<Chunk>& Chunks() const { return chunks_; }
  const EmbeddingLayer& Embedding() const { return *embedding_; }
  const EmbeddingLayer& SourceEmbedding() const { return *source_embedding_; }
  // Of the encoder's output; pre-norm models that translate only, in the unit of its last block.
  const NormLayer* EncoderNorm() const { return encoder_norm_ ? &*encoder_norm_ : nullptr; }
  const NormLayer* FinalNorm() const { return norm_ ? &*norm_ : nullptr; }  // pre-norm models only
  const HeadLayer& Head() const { return *head_; }
  kernels::Registry& Parameters() { return registry_; }
  const kernels::Registry& Parameters() const { return registry_; }

  // Units of the registry. -1: the model has no such unit.
  int TokenUnit() const { return token_unit_; }  // the token table
  int TailUnit() const { return tail_unit_; }    // final norm and head
  std::array<int, 4> FirstUnits() const;         // of the embeddings
  std::array<int, 2> LastUnits() const;          // of the head
  bool Has(int unit) const;                      // held by this rank
  // The held units whose values the program's tasks use, in order; until the next call.
  const std::vector<int>& UsesOf(const parallel::Program& program);

 private:
  kernels::ParameterList ListParameters(const ModelPlan& plan, const StagePlan& local,
                                        const parallel::TensorGroup& tensor,
                                        const device::Stream& stream);
  void AddBlocks(const ModelPlan& plan, const StagePlan& local, ParameterPlace place);
  void AppendUses(const parallel::Task& task);

  kernels::Registry registry_;
  bool tied_;
  std::optional<EmbeddingLayer> embedding_, source_embedding_;
  std::vector<Chunk> chunks_;
  std::optional<NormLayer> norm_, encoder_norm_;
  std::optional<HeadLayer> head_;
  int token_unit_ = -1, position_unit_ = -1, tail_unit_ = -1;
  int source_unit_ = -1, source_position_unit_ = -1;  // of tables of their own
  std::vector<int> uses_;                             // of the last program
};

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
    std::vector<Matrix> residuals;     // [blocks + 1] of [rows, dim]: the residual stream
    std::vector<Block::Saved> blocks;  // [blocks]
    std::vector<int> frames;           // [blocks]: of the memory that rotates
    // Of models that translate: residuals are the source stream of blocks of the encoder, the
    // target stream of others, and the encoder's last block writes `encoded`.
    Matrix encoded, memory;  // [source rows, dim]: before and after the encoder's norm
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

// All memory of a rank's activations, in one piece that is planned before anything is allocated:
// no step takes memory.

// First the workspace, then scratch and slots of training; evaluation, which never runs while slots
// are in use, has all memory after the workspace.
class ActivationMemory {
 public:
  ActivationMemory(const ModelPlan& plan, const StagePlan& local, const StageLayers& layers);

  using MakeWorkspace = FunctionRef<Workspace(device::Arena& arena)>;
  using TrainDry = FunctionRef<void(int chunk, device::Arena& scratch)>;
  using EvaluateDry = FunctionRef<void(int chunk, device::Arena& scratch)>;
  // Measures the allocations of the largest micro-batch in arenas that hand out no memory; sets
  // Bytes().
  void Measure(MakeWorkspace workspace, TrainDry train, EvaluateDry evaluate);
  std::int64_t Bytes() const { return bytes_; }
  std::int64_t TileBytes() const { return tile_bytes_; }  // of these, the vocabulary's tile
  // Takes the memory, once, after Measure.
  void Allocate(device::Kind where, MakeWorkspace workspace);

  // Scratch that all layers share; valid after Allocate.
  const Workspace& Shared() const { return workspace_; }
  // Scratch of a task; null before Allocate.
  device::Arena* Scratch(bool training);
  ChunkActivations& Chunk(int chunk) { return chunks_[static_cast<std::size_t>(chunk)]; }

 private:
  bool training_;
  std::vector<ChunkActivations> chunks_;
  std::int64_t workspace_bytes_ = 0, scratch_bytes_ = 0, bytes_ = 0, tile_bytes_ = 0;
  device::Buffer storage_;  // workspace, scratch, slots
  std::optional<device::Arena> training_scratch_, evaluation_scratch_;
  Workspace workspace_;
};

// The stream that a model computes on and the objects it works with, which must outlive it.
struct Collaborators {
  device::Stream stream;
  const parallel::TensorGroup& tensor;
  const parallel::RingAttention& ring;
  parallel::ShardedUnits& units;          // told of each use of values and gradients
  std::function<void()> progress = {};    // chances for transfers, between blocks; may be empty
  const comm::Ledger* traffic = nullptr;  // of the timeline in which layers are recorded; or null
};

// Called during the backward pass: the gradients at flat offsets [begin, end of storage) are final.
using GradientsReady = std::function<void(std::int64_t begin)>;

// A micro-batch of the schedule is a list of entries: one in the fast mode, several canonical
// entries otherwise. Parameters are gathered, and gradients scattered, once for all of them.
class Model : public parallel::StageWork {
 public:
  // Takes the memory of activations, batches and losses. layers: of the same plan; they must
  // outlive this.
  Model(const ModelPlan& plan, const StagePlan& local, StageLayers& layers,
        const Collaborators& with);
  // Bytes of parameters, gradients, activations, vocabulary tile, and of a GPU's tokens (exchange).
  ModelMemory Memory() const;

  // Batches of the next tasks, Plan().leaves entries per micro-batch: staged (possibly ahead) and
  // taken there, then given to Begin or BeginLogits.
  StagedBatches& Batches() { return staged_; }
  // Sets SummedLoss() to zero. ready may be empty. losses (or null): [tokens of all batches], in
  // nats, filled by SummedLoss().
  void Begin(StagedBatches::Taken taken, GradientsReady ready, double* losses);
  // kEvaluate computes logits instead of losses: of this position of sequence 0.
  void BeginLogits(StagedBatches::Taken taken, std::int64_t position);
  // kEvaluate keeps keys and values at these places, one per entry, and computes the logits asked
  // for. cached: outlives the tasks. Needs plan.cache_slots.
  void BeginCached(StagedBatches::Taken taken, std::span<const CachedPlaces> cached);
  // After a graph replay of the tasks since Begin: SummedLoss() now reads these batches.
  void Replayed(StagedBatches::Taken taken);

  std::int64_t Rows(int micro_batch) const override;
  void Run(const parallel::ProgramTask& task, const Matrix& in, const Matrix& out) override;

  // Canonical: completes the sums over leaves, after the last task of a step.
  void FinishLeaves() { leaf_gradients_.Finish(); }
  // Canonical: after the sums over the data group.
  void AddSecondGradient() const { leaf_gradients_.AddSecond(); }
  // Summed loss in nats of the tasks since Begin; on the last stage, else 0. With label smoothing
  // after backward tasks, without after kEvaluate. The first call waits for the stream.
  const ExactSum& SummedLoss() { return losses_.Sum(); }
  // After BeginLogits and kEvaluate, on the last stage: logits of this rank's slice of the
  // vocabulary; empty on a context rank without the position.
  std::vector<double> LogitsSlice() const;
  // Weights as they are now for products of a few rows; they change no more. Only with
  // plan.thin_panels.
  void PackWeights() { thin_weights_.Pack(layers_.Parameters(), with_.stream); }
  // After BeginCached and kEvaluate, on the last stage: [rows asked for, slice of the vocabulary].
  // Valid until the next call.
  const std::vector<double>& CachedLogits();
  const Part& VocabularySlice() const { return layers_.Head().Slice(); }

 private:
  // One entry of a micro-batch in a task: its rows of the input and the output.
  struct TaskEntry {
    Pass pass;    // of the target stream, or of the only one
    Pass source;  // of the source stream of a model that translates; else without sequences
    ChunkActivations::Live* live = nullptr;  // of training tasks
    Matrix in, out;                          // rows of the source stream, then of the target stream
    // The residual stream, or its gradient, and the two buffers through which it passes.
    Matrix residual;
    std::array<Matrix, 2> buffers;
    // The same of the source stream; the encoder's output or its gradient.
    Matrix source_residual;
    std::array<Matrix, 2> source_buffers;
    Matrix memory;

    std::int64_t SourceRows() const { return source.sequences == 0 ? 0 : source.Rows().Size(); }
    // The rows of a stream in `in` or `out`.
    Matrix SourceOf(const Matrix& m) const {
      return m.data == nullptr ? m : m.Rows(0, SourceRows());
    }
    Matrix TargetOf(const Matrix& m) const {
      return m.data == nullptr ? m : m.Rows(SourceRows(), pass.Rows().Size());
    }
  };
  using TaskEntries = std::vector<TaskEntry>;
  using Arenas = ChunkActivations::Arenas;

  void PlanMemory();
  Workspace MakeWorkspace(device::Arena& arena);
  Pass MakePass(bool training);                     // dry, of the largest entry
  Pass MakePass(std::size_t entry, bool training);  // of an entry of the batches
  // Of the source texts of the entry of `pass`.
  Pass MakeSourcePass(const Pass& pass) const;
  TaskEntries DryEntries(int chunk, bool training, device::Arena& scratch);
  // The entries of a task's micro-batch that have sequences; the same memory for every task.
  TaskEntries& TaskEntriesOf(const parallel::ProgramTask& task, const Matrix& in,
                             const Matrix& out);
  std::size_t FirstEntry(int micro_batch) const;
  std::span<const data::Entry> EntriesOf(int micro_batch) const;
  void Open(StagedBatches::Taken taken, double* losses);
  CachedPass CachedPassOf(std::size_t entry) const;
  void Widen(const Matrix& m, std::vector<double>& to) const;

  // The tasks.
  void Forward(TaskEntries& entries, int chunk, const Arenas& arenas);
  void ForwardBlock(const TaskEntry& entry, int chunk, std::size_t block, const Arenas& arenas,
                    const Matrix& out);
  void Evaluate(TaskEntries& entries, int chunk);
  void Backward(TaskEntries& entries, int chunk, const Arenas& arenas, bool report);
  void BackwardUnit(TaskEntries& entries, int chunk, std::size_t block, bool weights_too);
  void BackwardBlock(Pass pass, const Block& block, Block::Saved& saved, const Matrix& dy,
                     const Matrix& dx) const;
  void RecomputeBlock(const Pass& pass, const Block& block, Block::Saved& saved) const;
  void BackwardWeight(TaskEntries& entries, int chunk, bool report);
  void EvaluateBlock(TaskEntry& entry, int chunk, std::size_t block);

  // The two streams of a model that translates.
  using MakeResidual = FunctionRef<Matrix(const TaskEntry& entry, std::size_t block)>;
  static const Pass& PassOf(const TaskEntry& entry, const StageLayers::Chunk& layers,
                            std::size_t block) {
    return block < layers.encoders ? entry.source : entry.pass;
  }
  void EnterStreams(TaskEntry& entry, const StageLayers::Chunk& layers, const Arenas& arenas,
                    MakeResidual residual) const;
  Matrix OutputOf(const TaskEntry& entry, const StageLayers::Chunk& layers, std::size_t block,
                  MakeResidual residual) const;
  void LeaveEncoder(const TaskEntry& entry, const StageLayers::Chunk& layers,
                    const Arenas& arenas) const;
  void EnterEvaluation(TaskEntry& entry, const StageLayers::Chunk& layers) const;
  void LeaveEvaluation(TaskEntry& entry, const StageLayers::Chunk& layers) const;
  void EnterStreamsBackward(TaskEntry& entry, const StageLayers::Chunk& layers) const;
  void EnterEncoderBackward(TaskEntry& entry, const StageLayers::Chunk& layers) const;
  Matrix InputGradientOf(const TaskEntry& entry, const StageLayers::Chunk& layers,
                         std::size_t block) const;
  Lifetimes ForwardLives(const Arenas& arenas, device::Arena* scratch) const;
  Matrix ResidualOf(const Pass& pass, device::Arena* arena) const;

  // The ends of the stack of blocks.
  void Embed(const EmbeddingLayer& layer, const Pass& pass, const Matrix& residual) const;
  void EmbedBackward(const EmbeddingLayer& layer, const Pass& pass, const Matrix& gradient) const;
  // Embeds the stream that the first block reads.
  void EmbedFirst(const TaskEntry& entry, const Matrix& residual) const;
  void HeadForward(const Pass& pass, const Matrix& x);
  void PickLogits(const Pass& pass, const Matrix& full) const;
  void HeadBackward(const Pass& pass, const Matrix& x, const Matrix& dx) const;
  void HeadGradients(TaskEntries& entries);
  void EmbeddingGradients(TaskEntries& entries);

  // Uses of values, gradients begun and ended, of those units that this rank holds.
  bool Tells(int unit) const;
  void Use(std::span<const int> units) const;
  void Done(std::span<const int> units) const;
  void BeginGradient(std::span<const int> units) const;
  void EndGradient(std::span<const int> units) const;
  void EnterLeaf(int unit, LeafGradients::Phase phase, const Pass& pass);
  void Report(int unit) const;  // the gradients from this unit on are final
  void Progress() const {
    if (with_.progress) with_.progress();
  }
  device::Recorder* Trace() const {
    return with_.traffic == nullptr ? nullptr : with_.traffic->Trace();
  }

  const ModelPlan plan_;
  const StagePlan local_;
  StageLayers& layers_;
  const Collaborators with_;
  PositionTable positions_;
  KeyValueCache cache_;
  ThinWeights thin_weights_;
  ActivationMemory memory_;
  LeafGradients leaf_gradients_;
  StagedBatches staged_;
  TokenLosses losses_;

  std::span<const data::Entry> batches_;
  GradientsReady ready_;
  std::int64_t logits_position_ = -1;     // -1: the tasks compute losses
  std::vector<double> cached_logits_;     // of CachedLogits
  std::span<const CachedPlaces> cached_;  // of the entries; empty: nothing is kept
  Matrix logits_;                         // [1, slice of the vocabulary]
  TaskEntries task_entries_;              // of the task that runs
  bool planning_ = true;                  // dry passes: nobody is told of uses
};

}  // namespace trireme::model
