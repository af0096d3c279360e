// A block is its two sub-layers and how residuals and norms join them:
//   pre:   middle = x + drop(attention(norm(x)));   y = middle + drop(ffn(norm(middle)))
//   post:  middle = norm(x + drop(attention(x)));   y = norm(middle + drop(ffn(middle)))
// Tensor ranks add up their sub-layers' outputs (forward) and input gradients (backward). Where the
// stream is sharded by rows, the sums are reduce-scattered and a sub-layer's input is gathered.
#include <fmt/format.h>

#include "trireme/model/layers.hpp"

namespace trireme::model {

namespace {
std::string Prefix(std::uint32_t layer) { return fmt::format("blocks.{}", layer); }
}  // namespace

Block::Block(const Placement& placement, std::uint32_t layer)
    : pre_(placement.options.norm_position == NormPosition::kPre),
      dropout_(placement.options.dropout),
      layer_(layer),
      dim_(placement.options.dim),
      attention_norm_(placement, Prefix(layer) + ".attention.norm", true),
      attention_(placement, Prefix(layer) + ".attention", layer),
      ffn_norm_(placement, Prefix(layer) + ".ffn.norm", true),
      ffn_(placement, Prefix(layer) + ".ffn", layer) {}

kernels::Dropout Block::Residual(const Pass& pass, Site site) const {
  return pass.MakeDropout(dropout_, Purpose::kResidualDropout, layer_,
                          static_cast<std::uint32_t>(site), pass.Rows().begin);
}

void Block::Allocate(const Pass& pass, Saved& saved) const {
  const std::int64_t rows = pass.Rows().Size();
  attention_norm_.Allocate(pass, saved.attention_norm);
  attention_.Allocate(pass, saved.attention);
  ffn_norm_.Allocate(pass, saved.ffn_norm);
  ffn_.Allocate(pass, saved.ffn);
  if (pre_) {
    saved.middle = pass.Allocate(pass.lives.input, rows, dim_);
    saved.normed = pass.Allocate(pass.lives.cheap, rows, dim_);
    saved.ffn_normed = pass.Allocate(pass.lives.cheap, rows, dim_);
  } else {
    saved.sum = pass.Allocate(pass.lives.input, rows, dim_);
    saved.ffn_sum = pass.Allocate(pass.lives.input, rows, dim_);
    saved.middle = pass.Allocate(pass.lives.cheap, rows, dim_);
  }
  if (!pass.tensor->Sharded()) return;
  saved.full_x = pass.Allocate(pass.lives.scratch, pass.Tokens(), dim_);
  saved.full_y = pass.Allocate(pass.lives.scratch, pass.Tokens(), dim_);
}

void Block::Forward(const Pass& pass, const Matrix& x, const Matrix& rope, Saved& saved,
                    const Matrix& y) const {
  saved.x = x;
  ForwardAttention(pass, rope, saved);
  if (pre_) {
    ffn_norm_.Forward(pass, saved.middle, saved.ffn_norm, saved.ffn_normed);
    FeedForward(pass, saved.ffn_normed, saved.middle, saved, y);
  } else {
    FeedForward(pass, saved.middle, saved.middle, saved, saved.ffn_sum);
    ffn_norm_.Forward(pass, saved.ffn_sum, saved.ffn_norm, y);
  }
}

// Up to `middle`.
void Block::ForwardAttention(const Pass& pass, const Matrix& rope, Saved& saved) const {
  if (pre_) {
    attention_norm_.Forward(pass, saved.x, saved.attention_norm, saved.normed);
    Attend(pass, saved.normed, saved.x, rope, saved, saved.middle);
  } else {
    Attend(pass, saved.x, saved.x, rope, saved, saved.sum);
    attention_norm_.Forward(pass, saved.sum, saved.attention_norm, saved.middle);
  }
}

// out = residual + drop(attention(in)). [rows, dim].
void Block::Attend(const Pass& pass, const Matrix& in, const Matrix& residual, const Matrix& rope,
                   Saved& saved, const Matrix& out) const {
  const bool sharded = pass.tensor->Sharded();
  const Matrix full = sharded ? saved.full_x : in, product = sharded ? saved.full_y : out;
  pass.tensor->Gather(in, full);
  attention_.Forward(pass, full, rope, saved.attention, product);
  pass.Progress();
  pass.tensor->Reduce(product, out);
  kernels::ResidualForward(pass.stream, residual, out, pass.Value(attention_.OutputBias()),
                           Residual(pass, Site::kAttention), out);
}

// out = residual + drop(ffn(in)). [rows, dim].
void Block::FeedForward(const Pass& pass, const Matrix& in, const Matrix& residual, Saved& saved,
                        const Matrix& out) const {
  const bool sharded = pass.tensor->Sharded();
  const Matrix full = sharded ? saved.full_x : in, product = sharded ? saved.full_y : out;
  pass.tensor->Gather(in, full);
  ffn_.ForwardHidden(pass, full, saved.ffn);
  pass.Progress();
  ffn_.ForwardOutput(pass, saved.ffn, product);
  pass.tensor->Reduce(product, out);
  kernels::ResidualForward(pass.stream, residual, out, pass.Value(ffn_.OutputBias()),
                           Residual(pass, Site::kFfn), out);
}

void Block::AllocateCheap(const Pass& pass, Saved& saved) const {
  const std::int64_t rows = pass.Rows().Size();
  ffn_.AllocateCheap(pass, saved.ffn);
  if (pre_) {
    saved.normed = pass.Allocate(pass.lives.cheap, rows, dim_);
    saved.ffn_normed = pass.Allocate(pass.lives.cheap, rows, dim_);
  } else {
    saved.middle = pass.Allocate(pass.lives.cheap, rows, dim_);
  }
}

void Block::RecomputeCheap(const Pass& pass, Saved& saved) const {
  if (pre_) {
    attention_norm_.Forward(pass, saved.x, saved.attention_norm, saved.normed);
    ffn_norm_.Forward(pass, saved.middle, saved.ffn_norm, saved.ffn_normed);
  } else {
    attention_norm_.Forward(pass, saved.sum, saved.attention_norm, saved.middle);
  }
  ffn_.RecomputeHidden(pass, saved.ffn);
}

void Block::Recompute(const Pass& pass, const Matrix& rope, Saved& saved) const {
  ForwardAttention(pass, rope, saved);
  if (!pre_) {
    FeedForward(pass, saved.middle, saved.middle, saved, saved.ffn_sum);
    // For its statistics: the output was sent on long ago, and goes to memory not yet in use.
    ffn_norm_.Forward(pass, saved.ffn_sum, saved.ffn_norm, saved.dsum);
    return;
  }
  ffn_norm_.Forward(pass, saved.middle, saved.ffn_norm, saved.ffn_normed);
  const Matrix full = pass.tensor->Sharded() ? saved.full_x : saved.ffn_normed;
  pass.tensor->Gather(saved.ffn_normed, full);
  ffn_.ForwardHidden(pass, full, saved.ffn);
}

void Block::AllocateBackward(const Pass& pass, Saved& saved) const {
  const std::int64_t rows = pass.Rows().Size();
  attention_.AllocateBackward(pass, saved.attention);
  ffn_.AllocateBackward(pass, saved.ffn);
  saved.dbranch = pass.Allocate(pass.lives.backward, pass.Tokens(), dim_);
  saved.dffn_branch = pass.Allocate(pass.lives.backward, pass.Tokens(), dim_);
  saved.dmiddle = pass.Allocate(pass.lives.scratch, rows, dim_);
  saved.dinner = pass.Allocate(pass.lives.scratch, rows, dim_);
  if (!pre_) saved.dsum = pass.Allocate(pass.lives.scratch, rows, dim_);
  if (!pass.tensor->Sharded()) return;
  saved.attention_x = pass.Allocate(pass.lives.backward, pass.Tokens(), dim_);
  saved.ffn_x = pass.Allocate(pass.lives.backward, pass.Tokens(), dim_);
  saved.dfull = pass.Allocate(pass.lives.scratch, pass.Tokens(), dim_);
  saved.dshard = pass.Allocate(pass.lives.scratch, rows, dim_);
}

void Block::BackwardInput(const Pass& pass, const Matrix& dy, const Matrix& rope, Saved& saved,
                          const Matrix& dx) const {
  return pre_ ? BackwardInputPre(pass, dy, rope, saved, dx)
              : BackwardInputPost(pass, dy, rope, saved, dx);
}

// dbranch = drop'(dy), gathered where the stream is sharded.
void Block::BranchGradient(const Pass& pass, const Matrix& dy, Site site, Saved& saved,
                           const Matrix& dbranch) const {
  const Matrix shard = pass.tensor->Sharded() ? saved.dshard : dbranch;
  kernels::DropoutForward(pass.stream, dy, Residual(pass, site), shard);
  pass.tensor->Gather(shard, dbranch);
}

// dx = gradient through the attention, whose input was `in`. dy: [tokens, dim]; in, dx: [rows,
// dim].
void Block::AttendBackward(const Pass& pass, const Matrix& dy, const Matrix& in, const Matrix& rope,
                           Saved& saved, const Matrix& dx) const {
  const bool sharded = pass.tensor->Sharded();
  saved.attention.x = sharded ? saved.attention_x : in;
  pass.tensor->Gather(in, saved.attention.x);
  const Matrix product = sharded ? saved.dfull : dx;
  attention_.BackwardInput(pass, dy, rope, saved.attention, product);
  comm::Request sum = pass.tensor->StartReduce(product, dx);
  sum.Test();
  pass.Progress();
  if (pass.weights_too) attention_.BackwardWeight(pass, saved.attention, sum);
  sum.Wait();
  pass.Progress();
}

// The same through the feed-forward layer.
void Block::FeedBackward(const Pass& pass, const Matrix& dy, const Matrix& in, Saved& saved,
                         const Matrix& dx) const {
  const bool sharded = pass.tensor->Sharded();
  saved.ffn.x = sharded ? saved.ffn_x : in;
  pass.tensor->Gather(in, saved.ffn.x);
  const Matrix product = sharded ? saved.dfull : dx;
  ffn_.BackwardInput(pass, dy, saved.ffn, product);
  comm::Request sum = pass.tensor->StartReduce(product, dx);
  sum.Test();
  pass.Progress();
  if (pass.weights_too) ffn_.BackwardWeight(pass, saved.ffn, sum);
  sum.Wait();
  pass.Progress();
}

void Block::BackwardInputPre(const Pass& pass, const Matrix& dy, const Matrix& rope, Saved& saved,
                             const Matrix& dx) const {
  BranchGradient(pass, dy, Site::kFfn, saved, saved.dffn_branch);
  FeedBackward(pass, saved.dffn_branch, saved.ffn_normed, saved, saved.dinner);
  kernels::Copy(pass.stream, dy, saved.dmiddle);
  ffn_norm_.BackwardInput(pass, saved.dinner, saved.ffn_norm, saved.dmiddle, true);
  ffn_norm_.BackwardWeight(pass, saved.ffn_norm);
  BranchGradient(pass, saved.dmiddle, Site::kAttention, saved, saved.dbranch);
  AttendBackward(pass, saved.dbranch, saved.normed, rope, saved, saved.dinner);
  kernels::Copy(pass.stream, saved.dmiddle, dx);
  attention_norm_.BackwardInput(pass, saved.dinner, saved.attention_norm, dx, true);
  attention_norm_.BackwardWeight(pass, saved.attention_norm);
}

void Block::BackwardInputPost(const Pass& pass, const Matrix& dy, const Matrix& rope, Saved& saved,
                              const Matrix& dx) const {
  ffn_norm_.BackwardInput(pass, dy, saved.ffn_norm, saved.dsum, false);
  ffn_norm_.BackwardWeight(pass, saved.ffn_norm);
  BranchGradient(pass, saved.dsum, Site::kFfn, saved, saved.dffn_branch);
  FeedBackward(pass, saved.dffn_branch, saved.middle, saved, saved.dmiddle);
  kernels::Add(pass.stream, saved.dsum, saved.dmiddle);
  attention_norm_.BackwardInput(pass, saved.dmiddle, saved.attention_norm, saved.dinner, false);
  attention_norm_.BackwardWeight(pass, saved.attention_norm);
  BranchGradient(pass, saved.dinner, Site::kAttention, saved, saved.dbranch);
  AttendBackward(pass, saved.dbranch, saved.x, rope, saved, dx);
  kernels::Add(pass.stream, saved.dinner, dx);
}

void Block::BackwardWeight(const Pass& pass, const Saved& saved) const {
  comm::Request none;
  ffn_.BackwardWeight(pass, saved.ffn, none);
  attention_.BackwardWeight(pass, saved.attention, none);
}

}  // namespace trireme::model
