// This rank's part of a model: parameters in a registry, memory planned once, and the tasks of a
// training or evaluation step on it. One rank may hold it all.
#ifndef TRIREME_MODEL_MODEL_HPP_
#define TRIREME_MODEL_MODEL_HPP_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/exact_sum.hpp"
#include "trireme/model/layers.hpp"
#include "trireme/model/plan.hpp"
#include "trireme/parallel/canonical.hpp"
#include "trireme/parallel/pipeline.hpp"
#include "trireme/parallel/ring_attention.hpp"
#include "trireme/parallel/sharding.hpp"

namespace trireme::model {

// Where a model computes and whom it works with; all referred to must outlive it.
struct Collaborators {
  device::Stream stream;
  const parallel::TensorGroup& tensor;
  const parallel::RingAttention& ring;
  std::function<void()> progress = {};  // chances for transfers, between blocks; may be empty
};

// Called during the backward pass: the gradients at flat offsets [begin, end of storage) are final.
using GradientsReady = std::function<void(std::int64_t begin)>;

class Model : public parallel::StageWork {
 public:
  // Takes all memory and draws the initial weights. The sequence must fit the table of learned
  // positions.
  Model(const ModelPlan& plan, const StagePlan& local, const Collaborators& with);
  // Who is told of the use of each unit's values and gradients; null: nobody need know.
  void SetAccess(parallel::ShardedUnits* access) { access_ = access; }
  // The units whose values these tasks use, in order; until the next call.
  const std::vector<int>& UsesOf(const parallel::Program& program);

  // The micro-batches of the tasks to come, `leaves` entries each, which must outlive them.
  // `losses` (or null): [rows of all batches] for kEvaluate. Sets Loss() to zero.
  void Begin(std::span<const data::MicroBatch> batches, GradientsReady ready, double* losses);
  // kEvaluate computes logits instead of losses: of this position of sequence 0.
  void BeginLogits(std::span<const data::MicroBatch> batches, std::int64_t position);
  std::int64_t Rows(int micro_batch) const override;
  void Run(const parallel::ProgramTask& task, const Matrix& in, const Matrix& out) override;
  // What the next Begin will be given, ahead of it: a GPU takes a copy while it computes.
  void Prepare(std::span<const data::MicroBatch> batches) { staged_.Prepare(batches); }
  // They take their place now, so that Begin queues nothing that a graph cannot hold.
  void Take(std::span<const data::MicroBatch> batches);
  // Summed loss in nats of the tasks since Begin; on the last stage, else 0. With label smoothing
  // after backward tasks, without after kEvaluate. The first call waits for the stream, and fills
  // Begin's `losses`.
  const ExactSum& SummedLoss();
  // What was queued since Begin was queued once more (device::Graph), for these batches, which were
  // taken: their loss is to be read.
  // Another number when memory that the tasks use has moved since.
  int MemoryVersion() const { return memory_version_ + staged_.MemoryVersion(); }
  void Repeated(std::span<const data::MicroBatch> batches);
  // Canonical: completes the sums over leaves. Second gradients stay apart until AddSecondGradient,
  // after the sums over the data group.
  void FinishLeaves();
  void AddSecondGradient();
  // This rank's slice of the vocabulary, after kEvaluate of BeginLogits; on the last stage.
  std::vector<double> LogitsSlice() const;  // empty on a context rank without the position
  const Part& VocabularySlice() const { return head_->Slice(); }

  tensor::Registry& Parameters() { return registry_; }
  const tensor::Registry& Parameters() const { return registry_; }
  const ModelPlan& Plan() const { return plan_; }
  const StagePlan& LocalPlan() const { return local_; }
  const device::Stream& Stream() const { return with_.stream; }
  // Bytes of its own: parameters, gradients, activations and vocabulary tile.
  ModelMemory Memory() const;

 private:
  // What a micro-batch leaves for its backward pass.
  struct Live {
    std::vector<Matrix> streams;  // [blocks + 1] of [rows, dim]: the residual stream
    std::vector<Block::Saved> blocks;
    std::vector<int> units;  // [blocks], see Chunk
  };
  struct Chunk {
    std::vector<Block> blocks;
    std::vector<int> parameters;       // [blocks]: the registry's unit
    bool first = false, last = false;  // has the embedding, the head
    std::int64_t input_bytes = 0, weight_bytes = 0, backward_bytes = 0;  // of a slot
    std::vector<device::Arena> input, weight, backward;                  // slots
    std::vector<Live> live;                                              // [weight slots, leaves]
    // Where weight gradients are tasks of their own and nothing is computed again: one unit of
    // memory a block instead of input and backward slots. What a block's backward pass makes for
    // its weight gradient goes to the spare unit, and the unit of its forward pass, now dead, is
    // the next spare.
    bool rotates = false;
    std::int64_t unit_bytes = 0;
    std::vector<device::Arena> units;  // blocks x lives, and the spare
    int spare = 0;
  };

  tensor::ParameterList ListParameters();
  std::int64_t TableColumns() const;
  void MakePositions();
  void PlanMemory();
  void AllocateStorage();
  void MeasureChunk(Chunk& chunk, device::Arena& scratch);
  std::int64_t EvaluationBytes();
  std::int64_t SlotBytes() const;
  void CutSlots(char* next);
  void ExpectLosses(std::span<const data::MicroBatch> batches);
  void NumberUnits(Chunk& chunk, int slots) const;
  void AllocateWorkspace(Pass& pass, device::Arena& arena) const;
  Pass MakePass(const data::MicroBatch* batch, bool training);

  // One entry of a micro-batch in a task: its rows of what enters and leaves.
  struct Leaf {
    Pass pass;
    Live* live = nullptr;  // of training tasks
    Matrix in, out;
    // The stream, or its gradient, where it has got to, and two buffers through which it passes.
    Matrix stream;
    std::array<Matrix, 2> buffers;
  };
  using Leaves = std::vector<Leaf>;
  std::span<const data::MicroBatch> EntriesOf(int micro_batch) const;
  // The entries of a task's micro-batch that have sequences; the same memory for every task.
  Leaves& LeavesOf(const parallel::ProgramTask& task, const Matrix& in, const Matrix& out);
  Leaves MeasuringLeaves(Chunk& chunk, bool training, device::Arena& scratch);

  // Where a task keeps what later tasks need; backward is null where the weight gradients are not
  // a task of their own.
  struct SlotArenas {
    device::Arena *input = nullptr, *weight = nullptr, *backward = nullptr;
  };
  Lifetimes ForwardLives(const SlotArenas& slots, device::Arena* scratch) const;
  void Forward(Leaves& leaves, Chunk& chunk, const SlotArenas& slots) const;
  void Evaluate(Leaves& leaves, const Chunk& chunk);
  void Backward(Leaves& leaves, Chunk& chunk, const SlotArenas& slots, bool report);
  void BackwardWeight(Leaves& leaves, const Chunk& chunk, bool report);
  void BackwardBlock(Pass pass, const Block& block, Block::Saved& saved, const Matrix& dy,
                     const Matrix& dx) const;
  Matrix StreamOf(const Pass& pass, device::Arena* arena) const;

  // Uses of values, gradients begun and ended, of those units that this rank holds.
  bool Has(int unit) const;
  std::array<int, 2> FirstUnits() const;  // of the embedding; -1: none
  std::array<int, 2> LastUnits() const;   // of the head
  void UsesOf(const parallel::Task& task, std::vector<int>& uses) const;
  void Use(std::span<const int> units) const;
  void Done(std::span<const int> units) const;
  void BeginGradient(std::span<const int> units) const;
  void EndGradient(std::span<const int> units) const;
  void Report(int unit) const;

  // Which of a unit's gradients a task adds to: all; where weight gradients are a task of their
  // own, the `early` ones in one and the others in the other; the head's of a tied table.
  enum class Phase { kWhole, kEarly, kLate, kHead };
  struct Tracker {             // canonical sums over leaves
    std::vector<Part> ranges;  // flat
    parallel::LeafSums sums;
  };
  std::vector<Part> RangesOf(int unit, Phase phase) const;
  void EnterLeaf(int unit, Phase phase, const Pass& pass);
  void Merge(const std::vector<Part>& ranges, int from, int to) const;

  void Embed(const Pass& pass, const Matrix& stream) const;
  void EmbedBackward(const Pass& pass, const Matrix& gradient) const;
  // The final norm and the head: the loss, and its gradient by x in dx. [rows, dim].
  void HeadBackward(const Pass& pass, const Matrix& x, const Matrix& dx);
  void HeadForward(const Pass& pass, const Matrix& x);
  void HeadGradients(Leaves& leaves);
  void EmbeddingGradients(Leaves& leaves);
  void Progress() const {
    if (with_.progress) with_.progress();
  }

  const ModelPlan plan_;
  const StagePlan local_;
  const Collaborators with_;
  parallel::ShardedUnits* access_ = nullptr;
  tensor::Registry registry_;
  std::map<std::pair<int, Phase>, Tracker> trackers_;  // of (unit, phase), as they come
  std::optional<EmbeddingLayer> embedding_;
  std::vector<Chunk> chunks_;
  std::optional<NormLayer> norm_;                              // pre-norm models only
  int token_unit_ = -1, position_unit_ = -1, tail_unit_ = -1;  // of the registry
  std::optional<HeadLayer> head_;
  device::Buffer positions_storage_;
  Matrix positions_;                       // sinusoidal: [length, dim]
  Matrix rope_;                            // rotary: [length, head_dim]
  device::Buffer storage_;                 // workspace, scratch, slots
  std::optional<device::Arena> training_;  // scratch of training tasks
  std::optional<device::Arena> evaluation_;
  Workspace workspace_;
  std::int64_t tile_bytes_ = 0, table_bytes_ = 0;
  std::int64_t workspace_bytes_ = 0, scratch_bytes_ = 0, storage_bytes_ = 0;  // as planned

  std::span<const data::MicroBatch> batches_;
  GradientsReady ready_;
  double* losses_ = nullptr;
  Leaves leaves_;          // of the task that runs
  std::vector<int> uses_;  // of the last program
  std::int64_t logits_position_ = -1;
  Matrix logits_;
  StagedBatches staged_;
  bool taken_ = false;                 // what the next Begin is given is in its place
  device::PinnedBuffer loss_storage_;  // [loss_capacity_] doubles: losses of the batches' rows
  std::int64_t loss_capacity_ = 0, loss_rows_ = 0;
  bool loss_known_ = false;
  int memory_version_ = 0;
  ExactSum loss_;  // where it is known
};

}  // namespace trireme::model

#endif  // TRIREME_MODEL_MODEL_HPP_
