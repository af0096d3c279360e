// A Transformer language model: embedding, blocks, final norm, head. Owns the activations' arena;
// its parameters live in the registry.
#ifndef TRIREME_MODEL_MODEL_HPP_
#define TRIREME_MODEL_MODEL_HPP_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/model/layers.hpp"

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
};

// Called during the backward pass: the gradients at flat offsets [begin, end of storage) are final.
using GradientsReady = std::function<void(std::int64_t begin)>;

class Model {
 public:
  // Registers, allocates and initialises the parameters, plans and allocates the activations. The
  // sequence must fit the table of learned positions.
  explicit Model(const ModelSetup& setup);

  // Training: adds the gradients of the summed loss of `batch` to the registry's; returns the
  // summed loss in nats. `ready` may be empty.
  double ForwardBackward(const data::MicroBatch& batch, const GradientsReady& ready);
  // Evaluation, without dropout or smoothing: the summed loss; `losses` (or null): [B * T], one a
  // target.
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
  struct Activations {
    std::vector<Matrix> streams;  // [layers + 1] of [tokens, dim]: the residual stream
    std::vector<Block::Saved> blocks;
    NormLayer::Saved norm;
    Matrix normed;  // [tokens, dim]: the head's input
    HeadLayer::Saved head;
    Matrix dstream[2];  // gradients of the stream, in turn
  };
  Pass MakePass(const data::MicroBatch* batch, bool training) const;
  void AllocateForward(const Pass& pass, Activations& a) const;
  void AllocateBackward(const Pass& pass, Activations& a) const;
  void AllocateWorkspace(const Pass& pass, Workspace& workspace) const;
  void MeasureTraining(const Pass& pass) const;
  void MeasureEvaluation(const Pass& pass) const;
  void PlanMemory();
  void MakePositions();
  // Runs up to the head's input, which it returns. Saves everything when training; else reuses
  // memory.
  Matrix ForwardSaving(const Pass& pass, Activations& a);
  Matrix ForwardOnly(const Pass& pass);
  void Backward(const Pass& pass, Activations& a, const GradientsReady& ready);

  ModelSetup setup_;
  tensor::Registry registry_;
  std::optional<EmbeddingLayer> embedding_;
  std::vector<Block> blocks_;
  std::vector<std::int64_t> block_begin_;  // flat offset of each block's first parameter
  std::optional<NormLayer> norm_;          // pre-norm models only
  std::int64_t tail_begin_ = 0;            // flat offset of the final norm's first parameter
  std::optional<HeadLayer> head_;
  device::Buffer positions_storage_;
  Matrix positions_;  // sinusoidal: [length, dim]
  Matrix rope_;       // rotary: [length, head_dim]
  std::unique_ptr<device::Arena> arena_;
  Workspace workspace_;
  std::int64_t arena_bytes_ = 0, tile_bytes_ = 0;
};

}  // namespace trireme::model

#endif  // TRIREME_MODEL_MODEL_HPP_
