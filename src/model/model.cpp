#include "trireme/model/model.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/error.hpp"
#include "trireme/kernels/embedding.hpp"

namespace trireme::model {

Model::Model(const ModelSetup& setup) : setup_(setup) {
  const Options& options = setup_.options;
  embedding_.emplace(options, registry_);
  for (std::int64_t layer = 0; layer < options.layers; ++layer) {
    block_begin_.push_back(registry_.Size());
    blocks_.emplace_back(options, registry_, static_cast<std::uint32_t>(layer));
  }
  tail_begin_ = registry_.Size();
  if (options.norm_position == NormPosition::kPre) norm_.emplace(options, registry_, "norm");
  head_.emplace(options, registry_, embedding_->Weight());
  registry_.Allocate(setup_.dtype, setup_.training);
  registry_.Initialise(setup_.seed);
  MakePositions();
  PlanMemory();
}

// The fixed tables: sinusoidal positions, or the angles of rotary ones.
void Model::MakePositions() {
  const Options& options = setup_.options;
  if (options.position == Position::kLearned) return;
  const bool rope = options.position == Position::kRope;
  const std::int64_t columns = rope ? options.head_dim : options.dim;
  positions_storage_ = device::AllocateZeroed(setup_.length * columns *
                                              static_cast<std::int64_t>(SizeOf(setup_.dtype)));
  const Matrix table{positions_storage_.get(), setup_.dtype, setup_.length, columns, columns};
  if (rope) {
    kernels::RopeTable(options.rope_theta, table);
    rope_ = table;
  } else {
    kernels::SinusoidalPositions(table);
    positions_ = table;
  }
}

Pass Model::MakePass(const data::MicroBatch* batch, bool training) const {
  Pass pass;
  pass.stream = setup_.stream;
  pass.registry = &registry_;
  pass.arena = arena_.get();
  pass.workspace = workspace_;
  pass.batch = batch;
  pass.sequences = batch == nullptr ? setup_.micro_batch : batch->sequences;
  pass.length = batch == nullptr ? setup_.length : batch->length;
  pass.seed = setup_.seed;
  pass.training = training;
  pass.causal = setup_.causal;
  return pass;
}

void Model::AllocateWorkspace(const Pass& pass, Workspace& workspace) const {
  constexpr std::int64_t kVector = 32;  // a row of the tile starts on a boundary of 128 bytes
  const Options& o = setup_.options;
  const kernels::AttentionShape shape{pass.sequences, pass.length, o.heads, o.kv_heads,
                                      o.head_dim,     0,           true};
  workspace.attention = pass.Allocate(1, kernels::AttentionScratch(shape, pass.stream.threads));
  const std::int64_t widest = std::max({2 * o.dim, 2 * o.ffn, shape.Width()});
  workspace.reduction = pass.Allocate(kernels::kReductionBlocks, widest);
  const std::int64_t stride = (o.vocabulary + kVector - 1) / kVector * kVector;
  const std::int64_t rows = std::min(HeadLayer::kTileTokens, pass.Tokens());
  workspace.tile = pass.Allocate(rows, stride);
  workspace.tile.columns = o.vocabulary;
}

void Model::AllocateForward(const Pass& pass, Activations& a) const {
  a.streams.resize(blocks_.size() + 1);
  a.blocks.resize(blocks_.size());
  for (Matrix& stream : a.streams) stream = pass.Allocate(pass.Tokens(), setup_.options.dim);
  for (std::size_t i = 0; i < blocks_.size(); ++i) blocks_[i].Allocate(pass, a.blocks[i]);
  if (norm_) {
    norm_->Allocate(pass, a.norm);
    a.normed = pass.Allocate(pass.Tokens(), setup_.options.dim);
  } else {
    a.normed = a.streams.back();
  }
}

void Model::AllocateBackward(const Pass& pass, Activations& a) const {
  head_->AllocateBackward(pass, a.head);
  for (Matrix& gradient : a.dstream) {
    gradient = pass.Allocate(pass.Tokens(), setup_.options.dim);
  }
}

// The allocations of ForwardBackward, in its order.
void Model::MeasureTraining(const Pass& pass) const {
  Activations a;
  AllocateForward(pass, a);
  AllocateBackward(pass, a);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const std::int64_t mark = pass.arena->Mark();
    blocks_[i].AllocateBackward(pass, a.blocks[i]);
    pass.arena->Release(mark);
  }
}

// The allocations of ForwardOnly, in its order.
void Model::MeasureEvaluation(const Pass& pass) const {
  for (int stream = 0; stream < 2; ++stream) pass.Allocate(pass.Tokens(), setup_.options.dim);
  for (const Block& block : blocks_) {
    const std::int64_t mark = pass.arena->Mark();
    Block::Saved saved;
    block.Allocate(pass, saved);
    pass.arena->Release(mark);
  }
  NormLayer::Saved saved;
  if (norm_) norm_->Allocate(pass, saved);
}

// Makes all allocations of the largest micro-batch once on a measuring arena, then takes that
// memory.
void Model::PlanMemory() {
  device::Arena measuring = device::Arena::Measuring();
  Pass pass = MakePass(nullptr, true);
  pass.arena = &measuring;
  AllocateWorkspace(pass, pass.workspace);
  tile_bytes_ = pass.workspace.tile.rows * pass.workspace.tile.stride *
                static_cast<std::int64_t>(SizeOf(setup_.dtype));
  if (setup_.training) {
    MeasureTraining(pass);
  } else {
    MeasureEvaluation(pass);
  }
  arena_bytes_ = measuring.Peak();
  arena_ = std::make_unique<device::Arena>(arena_bytes_);
  pass.arena = arena_.get();
  AllocateWorkspace(pass, workspace_);
}

std::vector<std::pair<std::string, std::int64_t>> Model::MemoryPlan() const {
  const std::int64_t weights =
      registry_.Size() * static_cast<std::int64_t>(SizeOf(registry_.Type()));
  return {{"parameters", weights},
          {"gradients", setup_.training ? weights : 0},
          {"activations", arena_bytes_ - tile_bytes_},
          {"vocabulary tile", tile_bytes_}};
}

Matrix Model::ForwardSaving(const Pass& pass, Activations& a) {
  embedding_->Forward(pass, positions_, a.streams[0]);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    blocks_[i].Forward(pass, a.streams[i], rope_, a.blocks[i], a.streams[i + 1]);
  }
  if (norm_) norm_->Forward(pass, a.streams.back(), a.norm, a.normed);
  return a.normed;
}

// Evaluation keeps two streams and the memory of one block.
Matrix Model::ForwardOnly(const Pass& pass) {
  Matrix stream = pass.Allocate(pass.Tokens(), setup_.options.dim);
  Matrix next = pass.Allocate(pass.Tokens(), setup_.options.dim);
  embedding_->Forward(pass, positions_, stream);
  for (const Block& block : blocks_) {
    const std::int64_t mark = pass.arena->Mark();
    Block::Saved saved;
    block.Allocate(pass, saved);
    block.Forward(pass, stream, rope_, saved, next);
    pass.arena->Release(mark);
    std::swap(stream, next);
  }
  if (!norm_) return stream;
  NormLayer::Saved saved;
  norm_->Allocate(pass, saved);
  norm_->Forward(pass, stream, saved, next);
  return next;
}

void Model::Backward(const Pass& pass, Activations& a, const GradientsReady& ready) {
  const auto report = [&](std::int64_t begin) {
    if (ready) ready(begin);
  };
  Matrix gradient = a.head.dx, next = a.dstream[0];
  if (norm_) {
    norm_->BackwardInput(pass, gradient, a.norm, next, false);
    norm_->BackwardWeight(pass, a.norm);
    gradient = next;
    next = a.dstream[1];
  }
  report(tail_begin_);
  for (std::size_t i = blocks_.size(); i-- > 0;) {
    const std::int64_t mark = pass.arena->Mark();
    blocks_[i].AllocateBackward(pass, a.blocks[i]);
    blocks_[i].BackwardInput(pass, gradient, rope_, a.blocks[i], next);
    blocks_[i].BackwardWeight(pass, a.blocks[i]);
    pass.arena->Release(mark);
    std::swap(gradient, next);
    report(block_begin_[i]);
  }
  embedding_->BackwardWeight(pass, gradient);
  report(0);
}

double Model::ForwardBackward(const data::MicroBatch& batch, const GradientsReady& ready) {
  if (!setup_.training) throw RunError("a model for evaluation was asked for gradients");
  const Pass pass = MakePass(&batch, true);
  const std::int64_t mark = arena_->Mark();
  Activations a;
  AllocateForward(pass, a);
  AllocateBackward(pass, a);
  const Matrix x = ForwardSaving(pass, a);
  const double loss = head_->LossAndBackward(pass, x, setup_.label_smoothing, a.head);
  Backward(pass, a, ready);
  arena_->Release(mark);
  return loss;
}

double Model::Loss(const data::MicroBatch& batch, double* losses) {
  const Pass pass = MakePass(&batch, false);
  const std::int64_t mark = arena_->Mark();
  const double loss = head_->Loss(pass, ForwardOnly(pass), 0, losses);
  arena_->Release(mark);
  return loss;
}

std::vector<double> Model::Logits(const data::MicroBatch& batch, std::int64_t position) {
  const Pass pass = MakePass(&batch, false);
  const std::int64_t mark = arena_->Mark();
  const Matrix tile = workspace_.tile.Rows(0, 1);
  head_->Logits(pass, ForwardOnly(pass).Rows(position, 1), tile);
  arena_->Release(mark);
  std::vector<double> logits(static_cast<std::size_t>(tile.columns));
  DispatchDtype(tile.dtype, [&](auto zero) {
    std::copy_n(tile.As<decltype(zero)>(), tile.columns, logits.begin());
  });
  return logits;
}

}  // namespace trireme::model
