// A block is a list of steps: sub-layers, each joined to the residual stream with a norm:
//   pre:   middle = x + drop(attention(norm(x)));   y = middle + drop(ffn(norm(middle)))
//   post:  middle = norm(x + drop(attention(x)));   y = norm(middle + drop(ffn(middle)))
// A decoder that translates has cross-attention between the two. It reads the encoder's output
// `memory`, whose gradients are added up over the decoder's blocks; y follows from `cross`:
//   pre:   cross = middle + drop(cross-attention(norm(middle), memory))
//   post:  cross = norm(middle + drop(cross-attention(middle, memory)))
// The residual stream is [rows, dim]. Tensor ranks sum their sub-layers' outputs (forward) and
// input gradients (backward), [tokens, dim]. If the stream is sharded by rows, these sums are
// reduce-scattered and a sub-layer's input is all-gathered; else rows are tokens.
#include "trireme/model/block.hpp"

#include <fmt/format.h>

namespace trireme::model {

namespace {

std::string Prefix(std::uint32_t layer) { return fmt::format("blocks.{}", layer); }

// Probability that a window drops a branch of a block: grows linearly to the last block of the
// block's stack (Huang et al. 2016, equation 4).
double LayerDropout(const Options& o, std::int64_t layer) {
  const bool encoder = layer < o.encoder_layers;
  const std::int64_t number = layer + 1 - (encoder ? 0 : o.encoder_layers);  // from 1
  const std::int64_t layers = encoder ? o.encoder_layers : o.layers;
  return o.layer_dropout * static_cast<double>(number) / static_cast<double>(layers);
}

// True if a product is complete on this rank, without a sum over tensor ranks or slices.
bool Alone(const Pass& pass) { return pass.tensor->Size() == 1 && !pass.tensor->Canonical(); }

}  // namespace

Block::Block(const ParameterPlace& place, std::uint32_t layer, bool cross)
    : pre_(place.options.norm_position == NormPosition::kPre),
      dropout_(place.options.dropout),
      layer_dropout_(LayerDropout(place.options, layer)),
      layer_(layer),
      dim_(place.options.dim) {
  const std::string attention = Prefix(layer) + ".attention", crossing = Prefix(layer) + ".cross",
                    ffn = Prefix(layer) + ".ffn";
  // Each norm's parameters are listed before its sub-layer's.
  const auto begin = [&](Site site, const std::string& name) {
    steps_.push_back({site, NormLayer(place, name + ".norm", true), nullptr});
  };
  begin(Site::kAttention, attention);
  steps_.back().layer = std::make_unique<AttentionLayer>(place, attention, layer);
  if (cross) {
    begin(Site::kCross, crossing);
    steps_.back().layer = std::make_unique<CrossAttentionLayer>(place, crossing, layer);
  }
  begin(Site::kFfn, ffn);
  steps_.back().layer = MakeFfn(place, ffn, layer);
  attention_ = static_cast<const AttentionLayer*>(steps_.front().layer.get());
  ffn_ = static_cast<const Ffn*>(steps_.back().layer.get());
}

// Forward: for each step norm, sub-layer, join; in post-norm blocks the norm follows the join.

void Block::Forward(const Pass& pass, const Matrix& x, Saved& saved, const Matrix& y) const {
  saved.x = x;
  SavedStep& first = saved.steps.front();
  if (pre_) steps_.front().norm.Forward(pass, x, first.norm, first.normed);
  for (std::size_t i = 0; i < steps_.size(); ++i) ForwardStep(pass, saved, i, y);
}

// Runs a step and, in pre-norm blocks, the norm of the next one. y: output of the last step.
void Block::ForwardStep(const Pass& pass, Saved& saved, std::size_t i, const Matrix& y) const {
  SavedStep& step = saved.steps[i];
  const bool last = i + 1 == steps_.size();
  const Matrix &x = StreamOf(saved, i), &out = last ? y : step.out;
  if (!pre_) return Branch(pass, x, saved, i, {x, step.sum, &steps_[i].norm, &step.norm, out});
  Junction junction{.residual = x, .out = out};
  if (!last) {
    SavedStep& next = saved.steps[i + 1];
    junction = {x, out, &steps_[i + 1].norm, &next.norm, next.normed};
  }
  Branch(pass, step.normed, saved, i, junction);
}

// Runs a sub-layer and its join: gathers `in` to [tokens, dim], computes the branch, sums it over
// the tensor ranks to [rows, dim], and joins. If there is nothing to sum, each range of rows is
// joined as soon as it is computed.
void Block::Branch(const Pass& pass, const Matrix& in, Saved& saved, std::size_t i,
                   const Junction& junction) const {
  const bool sharded = pass.tensor->Sharded(), alone = Alone(pass);
  const Matrix full = sharded ? saved.full_x : in, product = sharded ? saved.full_y : junction.out;
  const SubLayer& layer = *steps_[i].layer;
  const kernels::Dropout dropout = BranchDropout(pass, saved, i);
  if (junction.norm != nullptr) junction.saved->x = junction.out;
  pass.tensor->Gather(in, full);
  layer.Forward(pass, full, *saved.steps[i].branch, product, [&](const Part& rows) {
    if (alone) Join(pass, pass.stream.Serial(), dropout, junction, layer.OutputBias(), rows);
  });
  if (alone) return;
  pass.tensor->Reduce(product, junction.out);
  Join(pass, pass.stream, dropout, junction, layer.OutputBias(), {0, junction.out.rows});
}

// Joins a branch, which is in `out`, to the residual stream: out = residual + drop(branch + bias)
// for rows `rows`. If a norm follows, also computes the norm of these rows.
void Block::Join(const Pass& pass, const device::Stream& stream, const kernels::Dropout& dropout,
                 const Junction& junction, ParameterId bias, const Part& rows) const {
  const Residual residual{junction.residual, junction.out, pass.Value(bias), dropout};
  if (junction.norm != nullptr) {
    return junction.norm->Forward(pass, stream, residual, *junction.saved, junction.normed, rows);
  }
  const auto of = [&rows](const Matrix& m) { return m.Rows(rows.begin, rows.Size()); };
  kernels::ResidualForward(stream, of(residual.x), of(residual.branch), residual.bias,
                           residual.dropout.From(rows.begin), of(junction.out));
}

kernels::Dropout Block::BranchDropout(const Pass& pass, const Saved& saved, std::size_t i) const {
  const auto number = static_cast<std::uint32_t>(steps_[i].site);
  kernels::Dropout dropout =
      pass.MakeDropout(dropout_, Purpose::kResidualDropout, layer_, number, pass.Rows().begin);
  dropout.kept = saved.steps[i].kept;
  dropout.kept_stride = kernels::Dropout::KeptBytes(dim_);
  dropout.row_probability = pass.training ? layer_dropout_ : 0;
  return dropout;
}

// Backward: the steps in reverse, from dy, the gradient of the block's output, to dx, that of its
// input, both [rows, dim]. The gradient of a sum, residual + drop(branch), is also the residual's;
// the branch's gradient is drop' of it.

void Block::BackwardInput(const Pass& pass, const Matrix& dy, Saved& saved,
                          const Matrix& dx) const {
  return pre_ ? BackwardInputPre(pass, dy, saved, dx) : BackwardInputPost(pass, dy, saved, dx);
}

// f'(d) is the gradient d passed back through f. The last step has dout = dy; for each step
//   dbranch = drop'(dout), dout of the step before = dout + norm'(layer'(dbranch))
void Block::BackwardInputPre(const Pass& pass, const Matrix& dy, Saved& saved,
                             const Matrix& dx) const {
  const std::size_t last = steps_.size() - 1;
  if (const Matrix shard = BranchShard(pass, saved, last); !shard.Empty()) {
    kernels::DropoutForward(pass.stream, dy, BranchDropout(pass, saved, last), shard);
  }
  for (std::size_t i = last + 1; i-- > 0;) {
    SavedStep& step = saved.steps[i];
    const Matrix& dout = i == last ? dy : step.dout;
    BranchBackward(pass, WholeBranch(pass, BranchShard(pass, saved, i), dout, step.dbranch),
                   step.normed, saved, i, saved.dinner);
    kernels::NormBackwardPass norm{.dy = saved.dinner, .residual = dout, .dx = dx};
    if (i > 0) {
      norm.dropout = BranchDropout(pass, saved, i - 1);
      norm.dx = saved.steps[i - 1].dout;
      norm.dbranch = BranchShard(pass, saved, i - 1);
    }
    steps_[i].norm.Backward(pass, step.norm, norm);
  }
}

//   dsum = norm'(dout + dsum of the next step), dbranch = drop'(dsum),
//   dout of the step before = layer'(dbranch); dx = dsum + layer'(dbranch) of the first step
void Block::BackwardInputPost(const Pass& pass, const Matrix& dy, Saved& saved,
                              const Matrix& dx) const {
  const std::size_t last = steps_.size() - 1;
  for (std::size_t i = last + 1; i-- > 0;) {
    SavedStep& step = saved.steps[i];
    const Matrix shard = BranchShard(pass, saved, i);
    steps_[i].norm.Backward(pass, step.norm,
                            {.dy = i == last ? dy : step.dout,
                             .more = i == last ? Matrix{} : saved.steps[i + 1].dsum,
                             .dropout = BranchDropout(pass, saved, i),
                             .dx = step.dsum,
                             .dbranch = shard});
    BranchBackward(pass, WholeBranch(pass, shard, step.dsum, step.dbranch), StreamOf(saved, i),
                   saved, i, i == 0 ? dx : saved.steps[i - 1].dout);
  }
  kernels::Add(pass.stream, saved.steps.front().dsum, dx);
}

// dx = dy passed back through a sub-layer with input `in`. dy: [tokens, dim]; in, dx: [rows, dim].
// Only the weight gradient needs the whole input: it is gathered while the input gradient is
// computed, and dx is summed while the weight gradient is computed.
void Block::BranchBackward(const Pass& pass, const Matrix& dy, const Matrix& in, Saved& saved,
                           std::size_t i, const Matrix& dx) const {
  const bool sharded = pass.tensor->Sharded();
  const SubLayer& layer = *steps_[i].layer;
  SubLayer::Saved& branch = *saved.steps[i].branch;
  branch.x = sharded ? saved.steps[i].whole_x : in;
  comm::Request gather = pass.tensor->StartGather(in, branch.x);
  const Matrix product = sharded ? saved.dfull : dx;
  layer.BackwardInput(pass, dy, branch, product);
  comm::Request sum = pass.tensor->StartReduce(product, dx);
  sum.Test();
  gather.Wait();
  pass.Progress();
  if (pass.weights_too) layer.BackwardWeight(pass, branch, sum);
  sum.Wait();
  pass.Progress();
}

// The matrix for a branch's gradient on this rank's rows, before it is gathered. Empty() if the
// gradient of the sum serves instead: it is equal without dropout, but must be gathered to another
// matrix or stay unchanged until the weight gradients are computed.
Matrix Block::BranchShard(const Pass& pass, const Saved& saved, std::size_t i) const {
  const bool sharded = pass.tensor->Sharded();
  const bool dropout = BranchDropout(pass, saved, i).Active();
  if (!dropout && (pass.weights_too || sharded)) return {};
  return sharded ? saved.dshard : saved.steps[i].dbranch;
}

// The gradient of a branch for all tokens. shard: from BranchShard. dsum: [rows, dim], gradient of
// the sum residual + drop(branch). dbranch: [tokens, dim], used if sharded.
Matrix Block::WholeBranch(const Pass& pass, const Matrix& shard, const Matrix& dsum,
                          const Matrix& dbranch) const {
  const Matrix& rows = shard.Empty() ? dsum : shard;
  if (!pass.tensor->Sharded()) return rows;
  pass.tensor->Gather(rows, dbranch);
  return dbranch;
}

// The products' weight gradients, from what BackwardInput left in Saved.
void Block::BackwardWeight(const Pass& pass, const Saved& saved) const {
  comm::Request none;
  for (std::size_t i = steps_.size(); i-- > 0;) {
    steps_[i].layer->BackwardWeight(pass, *saved.steps[i].branch, none);
  }
}

// Recomputation, before the backward pass, of what the forward pass did not keep.

void Block::AllocateCheap(const Pass& pass, Saved& saved) const {
  AllocateCheapSteps(pass, saved);
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    steps_[i].layer->AllocateCheap(pass, *saved.steps[i].branch);
  }
}

void Block::RecomputeCheap(const Pass& pass, Saved& saved) const {
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    SavedStep& step = saved.steps[i];
    if (pre_) {
      steps_[i].norm.Forward(pass, StreamOf(saved, i), step.norm, step.normed);
    } else if (i + 1 < steps_.size()) {
      steps_[i].norm.Forward(pass, step.sum, step.norm, step.out);
    }
    steps_[i].layer->RecomputeCheap(pass, *step.branch);
  }
}

void Block::Recompute(const Pass& pass, Saved& saved) const {
  SavedStep& last = saved.steps.back();
  // The last norm is needed for its statistics only: its output goes to memory not in use yet.
  if (!pre_) return Forward(pass, saved.x, saved, last.dsum);
  SavedStep& first = saved.steps.front();
  steps_.front().norm.Forward(pass, saved.x, first.norm, first.normed);
  for (std::size_t i = 0; i + 1 < steps_.size(); ++i) ForwardStep(pass, saved, i, {});
  last.kept = nullptr;  // the masked output is not recomputed
  const Matrix full = pass.tensor->Sharded() ? saved.full_x : last.normed;
  pass.tensor->Gather(last.normed, full);
  ffn_->ForwardHidden(pass, full, *last.branch);
}

// Memory.

Block::Saved Block::MakeSaved() const {
  Saved saved;
  for (const Step& step : steps_) saved.steps.emplace_back().branch = step.layer->MakeSaved();
  return saved;
}

void Block::Allocate(const Pass& pass, Saved& saved) const {
  const std::int64_t rows = pass.Rows().Size();
  // On a GPU, drawing random numbers dominates a pass over memory: the forward pass keeps the mask
  // for the backward pass. CPUs draw again.
  const bool keeps = pass.stream.OnGpu() && pass.training && dropout_ > 0;
  const std::int64_t kept_bytes = rows * kernels::Dropout::KeptBytes(dim_);
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    SavedStep& step = saved.steps[i];
    steps_[i].norm.Allocate(pass, step.norm);
    steps_[i].layer->Allocate(pass, *step.branch);
    if (!pre_) step.sum = pass.Allocate(pass.lives.input, rows, dim_);
    if (pre_ && i + 1 < steps_.size()) step.out = pass.Allocate(pass.lives.input, rows, dim_);
    step.kept = nullptr;
    if (keeps) step.kept = static_cast<std::uint8_t*>(pass.lives.input->Allocate(kept_bytes));
  }
  AllocateCheapSteps(pass, saved);
  if (!pass.tensor->Sharded()) return;
  saved.full_x = pass.Allocate(pass.lives.scratch, pass.Tokens(), dim_);
  saved.full_y = pass.Allocate(pass.lives.scratch, pass.Tokens(), dim_);
}

// Allocates the outputs of the norms.
void Block::AllocateCheapSteps(const Pass& pass, Saved& saved) const {
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    if (!pre_ && i + 1 == steps_.size()) continue;  // the block's output
    SavedStep& step = saved.steps[i];
    (pre_ ? step.normed : step.out) = pass.Allocate(pass.lives.cheap, pass.Rows().Size(), dim_);
  }
}

void Block::AllocateBackward(const Pass& pass, Saved& saved) const {
  const std::int64_t rows = pass.Rows().Size();
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    SavedStep& step = saved.steps[i];
    steps_[i].layer->AllocateBackward(pass, *step.branch);
    step.dbranch = pass.Allocate(pass.lives.backward, pass.Tokens(), dim_);
    if (i + 1 < steps_.size()) step.dout = pass.Allocate(pass.lives.scratch, rows, dim_);
    if (!pre_) step.dsum = pass.Allocate(pass.lives.scratch, rows, dim_);
    if (!pass.tensor->Sharded()) continue;
    step.whole_x = pass.Allocate(pass.lives.backward, pass.Tokens(), dim_);
  }
  if (pre_) saved.dinner = pass.Allocate(pass.lives.scratch, rows, dim_);
  if (!pass.tensor->Sharded()) return;
  saved.dfull = pass.Allocate(pass.lives.scratch, pass.Tokens(), dim_);
  saved.dshard = pass.Allocate(pass.lives.scratch, rows, dim_);
}

}  // namespace trireme::model
