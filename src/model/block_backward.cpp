// The backward pass of a block: from the gradient of its output to that of its input, sub-layer by
// sub-layer, each with the residual and the norm around it (block.cpp has the equations).
#include "trireme/model/block.hpp"

namespace trireme::model {

void Block::AllocateBackward(const Pass& pass, Saved& saved) const {
  const std::int64_t rows = pass.Rows().Size();
  attention_.AllocateBackward(pass, saved.attention);
  ffn_->AllocateBackward(pass, *saved.ffn);
  saved.dbranch = pass.Allocate(pass.lives.backward, pass.Tokens(), dim_);
  saved.dffn_branch = pass.Allocate(pass.lives.backward, pass.Tokens(), dim_);
  saved.dmiddle = pass.Allocate(pass.lives.scratch, rows, dim_);
  saved.dinner = pass.Allocate(pass.lives.scratch, rows, dim_);
  if (!pre_) saved.dsum = pass.Allocate(pass.lives.scratch, rows, dim_);
  if (cross_) AllocateCrossBackward(pass, *saved.cross);
  if (!pass.tensor->Sharded()) return;
  saved.attention_x = pass.Allocate(pass.lives.backward, pass.Tokens(), dim_);
  saved.ffn_x = pass.Allocate(pass.lives.backward, pass.Tokens(), dim_);
  saved.dfull = pass.Allocate(pass.lives.scratch, pass.Tokens(), dim_);
  saved.dshard = pass.Allocate(pass.lives.scratch, rows, dim_);
}

void Block::BackwardInput(const Pass& pass, const Matrix& dy, Saved& saved,
                          const Matrix& dx) const {
  return pre_ ? BackwardInputPre(pass, dy, saved, dx) : BackwardInputPost(pass, dy, saved, dx);
}

// The matrix for a branch's gradient on this rank's rows, before they are gathered.
Matrix Block::BranchShard(const Pass& pass, const Saved& saved, const Matrix& dbranch) const {
  return pass.tensor->Sharded() ? saved.dshard : dbranch;
}

// dx = gradient through the attention, whose input was `in`. dy: [tokens, dim]; in, dx: [rows,
// dim].
void Block::AttendBackward(const Pass& pass, const Matrix& dy, const Matrix& in, Saved& saved,
                           const Matrix& dx) const {
  const bool sharded = pass.tensor->Sharded();
  saved.attention.x = sharded ? saved.attention_x : in;
  pass.tensor->Gather(in, saved.attention.x);
  const Matrix product = sharded ? saved.dfull : dx;
  attention_.BackwardInput(pass, dy, saved.attention, product);
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
  saved.ffn->x = sharded ? saved.ffn_x : in;
  pass.tensor->Gather(in, saved.ffn->x);
  const Matrix product = sharded ? saved.dfull : dx;
  ffn_->BackwardInput(pass, dy, *saved.ffn, product);
  comm::Request sum = pass.tensor->StartReduce(product, dx);
  sum.Test();
  pass.Progress();
  if (pass.weights_too) ffn_->BackwardWeight(pass, *saved.ffn, sum);
  sum.Wait();
  pass.Progress();
}

void Block::BackwardInputPre(const Pass& pass, const Matrix& dy, Saved& saved,
                             const Matrix& dx) const {
  const Matrix ffn_shard = BranchShard(pass, saved, saved.dffn_branch);
  const Matrix attention_shard = BranchShard(pass, saved, saved.dbranch);
  const Matrix& dmiddle = MiddleGradient(saved);
  kernels::DropoutForward(pass.stream, dy, BranchDropout(pass, Site::kFfn), ffn_shard);
  pass.tensor->Gather(ffn_shard, saved.dffn_branch);
  FeedBackward(pass, saved.dffn_branch, saved.ffn_normed, saved, saved.dinner);
  ffn_norm_.Backward(
      pass, saved.ffn_norm,
      {.dy = saved.dinner,
       .residual = dy,
       .dropout = BranchDropout(pass, cross_ ? Site::kCross : Site::kAttention),
       .dx = dmiddle,
       .dbranch = cross_ ? BranchShard(pass, saved, saved.cross->dbranch) : attention_shard});
  if (cross_) CrossBackwardPre(pass, saved);
  pass.tensor->Gather(attention_shard, saved.dbranch);
  AttendBackward(pass, saved.dbranch, saved.normed, saved, saved.dinner);
  attention_norm_.Backward(pass, saved.attention_norm,
                           {.dy = saved.dinner, .residual = saved.dmiddle, .dx = dx});
}

void Block::BackwardInputPost(const Pass& pass, const Matrix& dy, Saved& saved,
                              const Matrix& dx) const {
  const Matrix ffn_shard = BranchShard(pass, saved, saved.dffn_branch);
  const Matrix attention_shard = BranchShard(pass, saved, saved.dbranch);
  ffn_norm_.Backward(pass, saved.ffn_norm,
                     {.dy = dy,
                      .dropout = BranchDropout(pass, Site::kFfn),
                      .dx = saved.dsum,
                      .dbranch = ffn_shard});
  pass.tensor->Gather(ffn_shard, saved.dffn_branch);
  FeedBackward(pass, saved.dffn_branch, Middle(saved), saved, MiddleGradient(saved));
  if (cross_) CrossBackwardPost(pass, saved);
  attention_norm_.Backward(pass, saved.attention_norm,
                           {.dy = saved.dmiddle,
                            .more = cross_ ? saved.cross->dsum : saved.dsum,
                            .dropout = BranchDropout(pass, Site::kAttention),
                            .dx = saved.dinner,
                            .dbranch = attention_shard});
  pass.tensor->Gather(attention_shard, saved.dbranch);
  AttendBackward(pass, saved.dbranch, saved.x, saved, dx);
  kernels::Add(pass.stream, saved.dinner, dx);
}

void Block::BackwardWeight(const Pass& pass, const Saved& saved) const {
  comm::Request none;
  ffn_->BackwardWeight(pass, *saved.ffn, none);
  if (cross_) cross_->attention.BackwardWeight(pass, saved.cross->attention, none);
  attention_.BackwardWeight(pass, saved.attention, none);
}

}  // namespace trireme::model
