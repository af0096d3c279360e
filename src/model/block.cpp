// A block is its two sub-layers and how residuals and norms join them:
//   pre:   middle = x + drop(attention(norm(x)));   y = middle + drop(ffn(norm(middle)))
//   post:  middle = norm(x + drop(attention(x)));   y = norm(middle + drop(ffn(middle)))
// A decoder's block has cross-attention between the two (block_cross.cpp).
// Tensor ranks add up their sub-layers' outputs (forward) and input gradients (backward). If the
// stream is sharded by rows, the sums are reduce-scattered and a sub-layer's input is gathered.
#include "trireme/model/block.hpp"

#include <fmt/format.h>

namespace trireme::model {

namespace {

std::string Prefix(std::uint32_t layer) { return fmt::format("blocks.{}", layer); }

// A product's rows are complete when this rank has computed them.
bool Alone(const Pass& pass) { return pass.tensor->Size() == 1 && !pass.tensor->Canonical(); }

}  // namespace

Block::Block(const ParameterPlace& place, std::uint32_t layer, bool cross)
    : pre_(place.options.norm_position == NormPosition::kPre),
      dropout_(place.options.dropout),
      layer_(layer),
      dim_(place.options.dim),
      attention_norm_(place, Prefix(layer) + ".attention.norm", true),
      attention_(place, Prefix(layer) + ".attention", layer),
      cross_(cross ? std::optional<Cross>(
                         Cross{NormLayer(place, Prefix(layer) + ".cross.norm", true),
                               CrossAttentionLayer(place, Prefix(layer) + ".cross", layer)})
                   : std::nullopt),
      ffn_norm_(place, Prefix(layer) + ".ffn.norm", true),
      ffn_(MakeFfn(place, Prefix(layer) + ".ffn", layer)) {}

kernels::Dropout Block::BranchDropout(const Pass& pass, Site site) const {
  return pass.MakeDropout(dropout_, Purpose::kResidualDropout, layer_,
                          static_cast<std::uint32_t>(site), pass.Rows().begin);
}

ParameterId Block::OutputBias(Site site) const {
  if (site == Site::kCross) return cross_->attention.OutputBias();
  return site == Site::kAttention ? attention_.OutputBias() : ffn_->OutputBias();
}

Block::Saved Block::MakeSaved() const {
  Saved saved;
  if (cross_) saved.cross = std::make_unique<CrossSaved>();
  saved.attention = attention_.MakeSaved();
  saved.ffn = ffn_->MakeSaved();
  return saved;
}

void Block::Allocate(const Pass& pass, Saved& saved) const {
  const std::int64_t rows = pass.Rows().Size();
  attention_norm_.Allocate(pass, saved.attention_norm);
  attention_.Allocate(pass, saved.attention);
  ffn_norm_.Allocate(pass, saved.ffn_norm);
  ffn_->Allocate(pass, *saved.ffn);
  if (pre_) {
    saved.middle = pass.Allocate(pass.lives.input, rows, dim_);
    saved.normed = pass.Allocate(pass.lives.cheap, rows, dim_);
    saved.ffn_normed = pass.Allocate(pass.lives.cheap, rows, dim_);
  } else {
    saved.sum = pass.Allocate(pass.lives.input, rows, dim_);
    saved.ffn_sum = pass.Allocate(pass.lives.input, rows, dim_);
    saved.middle = pass.Allocate(pass.lives.cheap, rows, dim_);
  }
  if (cross_) AllocateCross(pass, *saved.cross);
  if (!pass.tensor->Sharded()) return;
  saved.full_x = pass.Allocate(pass.lives.scratch, pass.Tokens(), dim_);
  saved.full_y = pass.Allocate(pass.lives.scratch, pass.Tokens(), dim_);
}

void Block::Forward(const Pass& pass, const Matrix& x, Saved& saved, const Matrix& y) const {
  saved.x = x;
  ForwardAttention(pass, saved);
  const Matrix& middle = Middle(saved);
  if (pre_) {
    FeedForward(pass, saved.ffn_normed, saved, {Site::kFfn, middle, y, nullptr, nullptr, {}});
  } else {
    FeedForward(pass, middle, saved,
                {Site::kFfn, middle, saved.ffn_sum, &ffn_norm_, &saved.ffn_norm, y});
  }
}

// Up to the input of the feed-forward layer.
void Block::ForwardAttention(const Pass& pass, Saved& saved) const {
  if (pre_) {
    attention_norm_.Forward(pass, saved.x, saved.attention_norm, saved.normed);
    Junction junction = {Site::kAttention, saved.x,         saved.middle,
                         &ffn_norm_,       &saved.ffn_norm, saved.ffn_normed};
    if (cross_) {
      junction.norm = &cross_->norm;
      junction.saved = &saved.cross->norm;
      junction.normed = saved.cross->normed;
    }
    Attend(pass, saved.normed, saved, junction);
  } else {
    Attend(pass, saved.x, saved,
           {Site::kAttention, saved.x, saved.sum, &attention_norm_, &saved.attention_norm,
            saved.middle});
  }
  if (cross_) ForwardCross(pass, saved);
}

// Joins some of the rows; branch and sum share their memory.
void Block::Join(const Pass& pass, const device::Stream& stream, const Junction& junction,
                 const Part& rows) const {
  const Residual residual{junction.residual, junction.out, pass.Value(OutputBias(junction.site)),
                          BranchDropout(pass, junction.site)};
  if (junction.norm != nullptr) {
    return junction.norm->Forward(pass, stream, residual, *junction.saved, junction.normed, rows);
  }
  const auto of = [&rows](const Matrix& m) { return m.Rows(rows.begin, rows.Size()); };
  kernels::ResidualForward(stream, of(residual.x), of(residual.branch), residual.bias,
                           residual.dropout.From(rows.begin), of(junction.out));
}

// sub_layer(in, y, then) computes the branch. On a rank alone the junction follows on each range of
// rows at once; else after the sum over the ranks.
void Block::Branch(const Pass& pass, const Matrix& in, const Saved& saved, const Junction& junction,
                   FunctionRef<void(const Matrix&, const Matrix&, RowsDone)> sub_layer) const {
  const bool sharded = pass.tensor->Sharded(), alone = Alone(pass);
  const Matrix full = sharded ? saved.full_x : in, product = sharded ? saved.full_y : junction.out;
  if (junction.norm != nullptr) junction.saved->x = junction.out;
  pass.tensor->Gather(in, full);
  sub_layer(full, product, [&](const Part& rows) {
    if (alone) Join(pass, pass.stream.Serial(), junction, rows);
  });
  if (alone) return;
  pass.tensor->Reduce(product, junction.out);
  Join(pass, pass.stream, junction, {0, junction.out.rows});
}

void Block::Attend(const Pass& pass, const Matrix& in, Saved& saved,
                   const Junction& junction) const {
  Branch(pass, in, saved, junction, [&](const Matrix& x, const Matrix& y, RowsDone then) {
    attention_.Forward(pass, x, saved.attention, y, then);
    pass.Progress();
  });
}

void Block::FeedForward(const Pass& pass, const Matrix& in, Saved& saved,
                        const Junction& junction) const {
  Branch(pass, in, saved, junction, [&](const Matrix& x, const Matrix& y, RowsDone then) {
    ffn_->ForwardHidden(pass, x, *saved.ffn);
    pass.Progress();
    ffn_->ForwardOutput(pass, *saved.ffn, y, then);
  });
}

void Block::AllocateCheap(const Pass& pass, Saved& saved) const {
  const std::int64_t rows = pass.Rows().Size();
  ffn_->AllocateCheap(pass, *saved.ffn);
  if (pre_) {
    saved.normed = pass.Allocate(pass.lives.cheap, rows, dim_);
    saved.ffn_normed = pass.Allocate(pass.lives.cheap, rows, dim_);
  } else {
    saved.middle = pass.Allocate(pass.lives.cheap, rows, dim_);
  }
  if (cross_) AllocateCrossCheap(pass, *saved.cross);
}

void Block::RecomputeCheap(const Pass& pass, Saved& saved) const {
  if (pre_) {
    attention_norm_.Forward(pass, saved.x, saved.attention_norm, saved.normed);
    if (cross_) cross_->norm.Forward(pass, saved.middle, saved.cross->norm, saved.cross->normed);
    ffn_norm_.Forward(pass, Middle(saved), saved.ffn_norm, saved.ffn_normed);
  } else {
    attention_norm_.Forward(pass, saved.sum, saved.attention_norm, saved.middle);
    if (cross_) {
      cross_->norm.Forward(pass, saved.cross->sum, saved.cross->norm, saved.cross->middle);
    }
  }
  ffn_->RecomputeCheap(pass, *saved.ffn);
}

void Block::Recompute(const Pass& pass, Saved& saved) const {
  ForwardAttention(pass, saved);
  if (!pre_) {
    // Computed for its statistics: the output, sent on long ago, goes to memory not yet in use.
    const Matrix& middle = Middle(saved);
    return FeedForward(
        pass, middle, saved,
        {Site::kFfn, middle, saved.ffn_sum, &ffn_norm_, &saved.ffn_norm, saved.dsum});
  }
  const Matrix full = pass.tensor->Sharded() ? saved.full_x : saved.ffn_normed;
  pass.tensor->Gather(saved.ffn_normed, full);
  ffn_->ForwardHidden(pass, full, *saved.ffn);
}

// The backward pass of a block: from the gradient of its output to that of its input, sub-layer by
// sub-layer, each with the residual and the norm around it (block.cpp has the equations).

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
// dim]. Only the weight gradient needs the whole input: it is gathered behind the input gradient,
// whose sum goes out behind the weight gradient.
void Block::AttendBackward(const Pass& pass, const Matrix& dy, const Matrix& in, Saved& saved,
                           const Matrix& dx) const {
  const bool sharded = pass.tensor->Sharded();
  saved.attention.x = sharded ? saved.attention_x : in;
  comm::Request gather = pass.tensor->StartGather(in, saved.attention.x);
  const Matrix product = sharded ? saved.dfull : dx;
  attention_.BackwardInput(pass, dy, saved.attention, product);
  comm::Request sum = pass.tensor->StartReduce(product, dx);
  sum.Test();
  gather.Wait();
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
  comm::Request gather = pass.tensor->StartGather(in, saved.ffn->x);
  const Matrix product = sharded ? saved.dfull : dx;
  ffn_->BackwardInput(pass, dy, *saved.ffn, product);
  comm::Request sum = pass.tensor->StartReduce(product, dx);
  sum.Test();
  gather.Wait();
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

// The cross-attention of a decoder's block, between its attention and its feed-forward layer:
//   pre:   cross middle = middle + drop(cross(norm(middle), memory))
//   post:  cross middle = norm(middle + drop(cross(middle, memory)))
// memory is the encoder's output, whose gradient is added up over the decoder's blocks.

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
  comm::Request gather = pass.tensor->StartGather(in, cross.attention.x);
  comm::Request gather_memory =
      pass.tensor->StartGather(pass.source.memory, cross.attention.memory);
  const Matrix product = sharded ? saved.dfull : dx;
  const Matrix dmemory = sharded ? cross.dmemory : cross.dfull_memory;
  cross_->attention.BackwardInput(pass, dy, cross.attention, product, cross.dfull_memory);
  pass.tensor->Reduce(cross.dfull_memory, dmemory);
  kernels::Add(pass.stream, dmemory, pass.source.dmemory);
  comm::Request sum = pass.tensor->StartReduce(product, dx);
  sum.Test();
  gather.Wait();
  gather_memory.Wait();
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
