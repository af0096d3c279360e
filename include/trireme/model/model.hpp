// This rank's part of a model: parameters in a registry, memory planned once, and the tasks of a
// training or evaluation step on it. One rank may hold it all.
#ifndef TRIREME_MODEL_MODEL_HPP_
#define TRIREME_MODEL_MODEL_HPP_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trireme/model/layers.hpp"
#include "trireme/parallel/pipeline.hpp"

namespace trireme::model {

struct ModelSetup {
  Options options;
  Dtype dtype = Dtype::kFloat32;
  device::Stream stream;
  std::uint32_t seed = 1;
  std::int64_t length = 0;       // T: longest sequence
  std::int64_t micro_batch = 0;  // B: most sequences at once
  double label_smoothing = 0;
  bool causal = true;    // false in tests only
  bool training = true;  // false: no gradients, and the memory of evaluation

  // Which part; the default is the whole. ParallelModel fills these in.
  const parallel::TensorGroup* tensor = nullptr;  // null: one rank
  int stage = 0, stages = 1;
  std::vector<Part> chunks;            // blocks of each of this stage's chunks; empty: one with all
  std::vector<parallel::Slots> slots;  // [chunks]: micro-batches whose activations are kept
  std::function<void()> progress = {};  // called between blocks; may be empty
};

// Called during the backward pass: the gradients at flat offsets [begin, end of storage) are final.
using GradientsReady = std::function<void(std::int64_t begin)>;

class Model : public parallel::StageWork {
 public:
  // Registers, allocates and initialises the parameters, plans and allocates the activations. The
  // sequence must fit the table of learned positions.
  explicit Model(const ModelSetup& setup);

  // The micro-batches of the tasks to come, which must outlive them. `losses` (or null): [rows of
  // all batches] for kEvaluate. Sets Loss() to zero.
  void Begin(std::span<const data::MicroBatch> batches, GradientsReady ready, double* losses);
  // kEvaluate computes logits instead of losses: of this position of sequence 0.
  void BeginLogits(std::span<const data::MicroBatch> batches, std::int64_t position);
  std::int64_t Rows(int micro_batch) const override;
  void Run(const parallel::ProgramTask& task, const Matrix& in, const Matrix& out) override;
  // Summed loss in nats of the tasks since Begin; on the last stage, else 0. With label smoothing
  // after backward tasks, without after kEvaluate.
  double SummedLoss() const { return loss_; }
  // This rank's slice of the vocabulary, after kEvaluate of BeginLogits; on the last stage.
  const Matrix& LogitsSlice() const { return logits_; }  // [1, slice]
  const Part& VocabularySlice() const { return head_->Slice(); }

  // For a whole model on one rank. Training: adds the gradients of the summed loss of `batch` to
  // the registry's; returns the summed loss in nats. `ready` may be empty.
  double ForwardBackward(const data::MicroBatch& batch, const GradientsReady& ready);
  // Evaluation, without dropout or smoothing: the summed loss; `losses` (or null): [B * T].
  double Loss(const data::MicroBatch& batch, double* losses = nullptr);
  // Logits behind position `position` of sequence 0: [vocabulary].
  std::vector<double> Logits(const data::MicroBatch& batch, std::int64_t position);

  tensor::Registry& Parameters() { return registry_; }
  const tensor::Registry& Parameters() const { return registry_; }
  const ModelSetup& Setup() const { return setup_; }
  // Terms of the memory plan in bytes: parameters, gradients, activations (workspace included),
  // vocabulary tile.
  std::vector<std::pair<std::string, std::int64_t>> MemoryPlan() const;

 private:
  // What a micro-batch leaves for its backward pass.
  struct Live {
    std::vector<Matrix> streams;  // [blocks + 1] of [rows, dim]: the residual stream
    std::vector<Block::Saved> blocks;
    std::vector<int> units;  // [blocks], see Chunk
  };
  struct Chunk {
    std::vector<Block> blocks;
    std::vector<std::int64_t> begin;   // flat offset of each block's first parameter
    bool first = false, last = false;  // has the embedding, the head
    std::int64_t input_bytes = 0, weight_bytes = 0, backward_bytes = 0;  // of a slot
    std::vector<device::Arena> input, weight, backward;                  // slots
    std::vector<Live> live;                                              // [weight slots]
    // Where weight gradients are tasks of their own and nothing is computed again: one unit of
    // memory a block instead of input and backward slots. What a block's backward pass makes for
    // its weight gradient goes to the spare unit, and the unit of its forward pass, now dead, is
    // the next spare.
    bool rotates = false;
    std::int64_t unit_bytes = 0;
    std::vector<device::Arena> units;  // blocks x weight slots, and the spare
    int spare = 0;
  };

  void RegisterParameters();
  void MakePositions();
  void PlanMemory();
  void MeasureChunk(Chunk& chunk, device::Arena& scratch);
  std::int64_t EvaluationBytes();
  std::int64_t SlotBytes() const;
  void CutSlots(char* next);
  static void NumberUnits(Chunk& chunk, int lives);
  void AllocateWorkspace(Pass& pass, device::Arena& arena) const;
  Pass MakePass(const data::MicroBatch* batch, bool training);

  // Where a task keeps what later tasks need; backward is null where the weight gradients are not
  // a task of their own.
  struct SlotArenas {
    device::Arena *input = nullptr, *weight = nullptr, *backward = nullptr;
  };
  Lifetimes ForwardLives(const SlotArenas& slots, device::Arena* scratch) const;
  void Forward(Pass pass, Chunk& chunk, Live& live, const SlotArenas& slots, const Matrix& in,
               const Matrix& out) const;
  void Evaluate(const Pass& pass, const Chunk& chunk, const Matrix& in, const Matrix& out,
                double* losses);
  void Backward(Pass pass, Chunk& chunk, Live& live, const SlotArenas& slots, const Matrix& in,
                const Matrix& out, bool report);
  void BackwardWeight(const Pass& pass, const Chunk& chunk, const Live& live, bool report);
  void BackwardBlock(Pass pass, const Block& block, Block::Saved& saved, const Matrix& dy,
                     const Matrix& dx) const;
  void Embed(const Pass& pass, const Matrix& stream) const;
  void EmbedBackward(const Pass& pass, const Matrix& gradient) const;
  // The final norm and the head: the loss, and its gradient by x in dx. [rows, dim].
  void HeadBackward(const Pass& pass, const Matrix& x, const Matrix& dx);
  void HeadForward(const Pass& pass, const Matrix& x, double* losses);
  void Progress() const {
    if (setup_.progress) setup_.progress();
  }
  void Report(std::int64_t begin) const {
    if (ready_) ready_(begin);
  }

  ModelSetup setup_;
  parallel::TensorGroup one_rank_;
  tensor::Registry registry_;
  std::optional<EmbeddingLayer> embedding_;
  std::vector<Chunk> chunks_;
  std::optional<NormLayer> norm_;  // pre-norm models only
  std::int64_t tail_begin_ = 0;    // flat offset of the final norm's first parameter
  std::optional<HeadLayer> head_;
  device::Buffer positions_storage_;
  Matrix positions_;                       // sinusoidal: [length, dim]
  Matrix rope_;                            // rotary: [length, head_dim]
  device::Buffer storage_;                 // workspace, scratch, slots
  std::optional<device::Arena> training_;  // scratch of training tasks
  std::optional<device::Arena> evaluation_;
  Workspace workspace_;
  std::int64_t activation_bytes_ = 0, tile_bytes_ = 0, table_bytes_ = 0;

  std::span<const data::MicroBatch> batches_;
  GradientsReady ready_;
  double* losses_ = nullptr;
  std::int64_t logits_position_ = -1;
  Matrix logits_;
  double loss_ = 0;
};

}  // namespace trireme::model

#endif  // TRIREME_MODEL_MODEL_HPP_
