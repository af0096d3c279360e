// The cross-attention of a decoder's block, between its attention and its feed-forward layer:
//   pre:   cross middle = middle + drop(cross(norm(middle), memory))
//   post:  cross middle = norm(middle + drop(cross(middle, memory)))
// memory is the encoder's output, whose gradient is added up over the decoder's blocks.
#include "trireme/model/block.hpp"

namespace trireme::model {

void Block::AllocateCross(const Pass& pass, CrossSaved& saved) const {
  const std::int64_t rows = pass.Rows().Size();
  cross_->norm.Allocate(pass, saved.norm);
  cross_->attention.Allocate(pass, saved.attention);
  (pre_ ? saved.middle : saved.sum) = pass.Allocate(pass.lives.input, rows, dim_);
  AllocateCrossCheap(pass, saved);
  if (!pass.tensor->Sharded() || pass.cached.continues) return;
  saved.full_memory = pass.Allocate(pass.lives.scratch, pass.SourceTokens(), dim_);
}

void Block::AllocateCrossCheap(const Pass& pass, CrossSaved& saved) const {
  (pre_ ? saved.normed : saved.middle) = pass.Allocate(pass.lives.cheap, pass.Rows().Size(), dim_);
}

void Block::AllocateCrossBackward(const Pass& pass, CrossSaved& saved) const {
  const std::int64_t rows = pass.Rows().Size();
  cross_->attention.AllocateBackward(pass, saved.attention);
  saved.dbranch = pass.Allocate(pass.lives.backward, pass.Tokens(), dim_);
  saved.dmiddle = pass.Allocate(pass.lives.scratch, rows, dim_);
  if (!pre_) saved.dsum = pass.Allocate(pass.lives.scratch, rows, dim_);
  saved.dfull_memory = pass.Allocate(pass.lives.scratch, pass.SourceTokens(), dim_);
  if (!pass.tensor->Sharded()) return;
  saved.x = pass.Allocate(pass.lives.backward, pass.Tokens(), dim_);
  saved.memory = pass.Allocate(pass.lives.backward, pass.SourceTokens(), dim_);
  saved.dmemory = pass.Allocate(pass.lives.scratch, pass.SourceRows().Size(), dim_);
}

void Block::ForwardCross(const Pass& pass, Saved& saved) const {
  CrossSaved& cross = *saved.cross;
  const Matrix memory = pass.tensor->Sharded() ? cross.full_memory : pass.source.memory;
  if (!pass.cached.continues) pass.tensor->Gather(pass.source.memory, memory);
  Junction junction = {Site::kCross, saved.middle,    cross.middle,
                       &ffn_norm_,   &saved.ffn_norm, saved.ffn_normed};
  if (!pre_) {
    junction = {Site::kCross, saved.middle, cross.sum, &cross_->norm, &cross.norm, cross.middle};
  }
  Branch(pass, pre_ ? cross.normed : saved.middle, saved, junction,
         [&](const Matrix& x, const Matrix& y, RowsDone then) {
           cross_->attention.Forward(pass, x, memory, cross.attention, y, then);
           pass.Progress();
         });
}

// dx = gradient through the cross-attention, whose input was `in`; adds that of the encoder's
// output. dy: [tokens, dim]; in, dx: [rows, dim].
void Block::CrossBackward(const Pass& pass, const Matrix& dy, const Matrix& in, Saved& saved,
                          const Matrix& dx) const {
  CrossSaved& cross = *saved.cross;
  const bool sharded = pass.tensor->Sharded();
  cross.attention.x = sharded ? cross.x : in;
  cross.attention.memory = sharded ? cross.memory : pass.source.memory;
  pass.tensor->Gather(in, cross.attention.x);
  pass.tensor->Gather(pass.source.memory, cross.attention.memory);
  const Matrix product = sharded ? saved.dfull : dx;
  const Matrix dmemory = sharded ? cross.dmemory : cross.dfull_memory;
  cross_->attention.BackwardInput(pass, dy, cross.attention, product, cross.dfull_memory);
  pass.tensor->Reduce(cross.dfull_memory, dmemory);
  kernels::Add(pass.stream, dmemory, pass.source.dmemory);
  comm::Request sum = pass.tensor->StartReduce(product, dx);
  sum.Test();
  pass.Progress();
  if (pass.weights_too) cross_->attention.BackwardWeight(pass, cross.attention, sum);
  sum.Wait();
  pass.Progress();
}

// From the gradient of the stream after the cross-attention to that of the stream before, and of
// the attention's branch on this rank's rows.
void Block::CrossBackwardPre(const Pass& pass, Saved& saved) const {
  CrossSaved& cross = *saved.cross;
  pass.tensor->Gather(BranchShard(pass, saved, cross.dbranch), cross.dbranch);
  CrossBackward(pass, cross.dbranch, cross.normed, saved, saved.dinner);
  cross_->norm.Backward(pass, cross.norm,
                        {.dy = saved.dinner,
                         .residual = cross.dmiddle,
                         .dropout = BranchDropout(pass, Site::kAttention),
                         .dx = saved.dmiddle,
                         .dbranch = BranchShard(pass, saved, saved.dbranch)});
}

void Block::CrossBackwardPost(const Pass& pass, Saved& saved) const {
  CrossSaved& cross = *saved.cross;
  const Matrix shard = BranchShard(pass, saved, cross.dbranch);
  cross_->norm.Backward(pass, cross.norm,
                        {.dy = cross.dmiddle,
                         .more = saved.dsum,
                         .dropout = BranchDropout(pass, Site::kCross),
                         .dx = cross.dsum,
                         .dbranch = shard});
  pass.tensor->Gather(shard, cross.dbranch);
  CrossBackward(pass, cross.dbranch, saved.middle, saved, saved.dmiddle);
}

}  // namespace trireme::model
