// A block is its two sub-layers and how residuals and norms join them:
//   pre:   middle = x + drop(attention(norm(x)));   y = middle + drop(ffn(norm(middle)))
//   post:  middle = norm(x + drop(attention(x)));   y = norm(middle + drop(ffn(middle)))
// A decoder's block has cross-attention between the two, which reads the encoder's output `memory`;
// the gradients of memory are added up over the decoder's blocks:
//   pre:   cross middle = middle + drop(cross(norm(middle), memory)), and y from it
//   post:  cross middle = norm(middle + drop(cross(middle, memory))), likewise
// The stream is [rows, dim]. Tensor ranks add up their sub-layers' outputs (forward) and input
// gradients (backward), which are [tokens, dim]. If the stream is sharded by rows, the sums are
// reduce-scattered and a sub-layer's input is gathered; else rows are tokens.
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

// Forward: norm, attention, join, (norm, cross-attention, join,) norm, feed-forward, join;
// post-norm blocks have each norm behind its join.

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

// Up to the input of the feed-forward layer: saved.middle, and its norm (pre).
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

// A sub-layer and the join behind it: gather `in` to [tokens, dim]; sub_layer(in, y, then) computes
// the branch; sum over the tensor ranks, to [rows, dim]; join. On a rank alone the join follows on
// each range of rows at once.
void Block::Branch(const Pass& pass, const Matrix& in, const Saved& saved, const Junction& junction,
                   FunctionRef<void(const Matrix&, const Matrix&, RowsDone)> sub_layer) const {
  const bool sharded = pass.tensor->Sharded(), alone = Alone(pass);
  const Matrix full = sharded ? saved.full_x : in, product = sharded ? saved.full_y : junction.out;
  if (junction.norm != nullptr) junction.saved->x = junction.out;
  pass.tensor->Gather(in, full);
  sub_layer(full, product, [&](const Part& rows) {
    if (alone) Join(pass, pass.stream.Serial(), saved, junction, rows);
  });
  if (alone) return;
  pass.tensor->Reduce(product, junction.out);
  Join(pass, pass.stream, saved, junction, {0, junction.out.rows});
}

// Joins some of the rows: out = residual + drop(branch + bias), and the norm of it if one follows.
// The branch lies in `out`.
void Block::Join(const Pass& pass, const device::Stream& stream, const Saved& saved,
                 const Junction& junction, const Part& rows) const {
  const Residual residual{junction.residual, junction.out, pass.Value(OutputBias(junction.site)),
                          BranchDropout(pass, saved, junction.site)};
  if (junction.norm != nullptr) {
    return junction.norm->Forward(pass, stream, residual, *junction.saved, junction.normed, rows);
  }
  const auto of = [&rows](const Matrix& m) { return m.Rows(rows.begin, rows.Size()); };
  kernels::ResidualForward(stream, of(residual.x), of(residual.branch), residual.bias,
                           residual.dropout.From(rows.begin), of(junction.out));
}

ParameterId Block::OutputBias(Site site) const {
  if (site == Site::kCross) return cross_->attention.OutputBias();
  return site == Site::kAttention ? attention_.OutputBias() : ffn_->OutputBias();
}

kernels::Dropout Block::BranchDropout(const Pass& pass, const Saved& saved, Site site) const {
  const auto number = static_cast<std::uint32_t>(site);
  kernels::Dropout dropout =
      pass.MakeDropout(dropout_, Purpose::kResidualDropout, layer_, number, pass.Rows().begin);
  dropout.kept = saved.kept[number];
  dropout.kept_stride = kernels::Dropout::KeptBytes(dim_);
  return dropout;
}

// On a GPU the random numbers are most of the instructions of a pass over memory: the backward pass
// reads what the forward pass kept. CPUs draw again.
void Block::AllocateKept(const Pass& pass, Saved& saved) const {
  const bool keeps = pass.stream.OnGpu() && pass.training && dropout_ > 0;
  for (int site = 0; site < kSites; ++site) {
    const bool here = keeps && (cross_ || site != static_cast<int>(Site::kCross));
    const std::int64_t bytes = pass.Rows().Size() * kernels::Dropout::KeptBytes(dim_);
    saved.kept[site] =
        here ? static_cast<std::uint8_t*>(pass.lives.input->Allocate(bytes)) : nullptr;
  }
}

// Backward: the same in reverse, from dy, the gradient of the block's output, to dx, that of its
// input, both [rows, dim]. Each step takes the gradient of a sum, residual + drop(branch): it is
// the residual's as it stands, and drop's of it the branch's.

void Block::BackwardInput(const Pass& pass, const Matrix& dy, Saved& saved,
                          const Matrix& dx) const {
  return pre_ ? BackwardInputPre(pass, dy, saved, dx) : BackwardInputPost(pass, dy, saved, dx);
}

// With a dash for "the gradient through", and cross-attention's part between the two lines:
//   dffn_branch = drop'(dy), dmiddle = dy + norm'(ffn'(dffn_branch)), dbranch = drop'(dmiddle)
//   dx = dmiddle + norm'(attention'(dbranch))
void Block::BackwardInputPre(const Pass& pass, const Matrix& dy, Saved& saved,
                             const Matrix& dx) const {
  const Matrix ffn_shard = BranchShard(pass, saved, saved.dffn_branch);
  const Matrix attention_shard = BranchShard(pass, saved, saved.dbranch);
  const Matrix& dmiddle = MiddleGradient(saved);
  if (!ffn_shard.Empty()) {
    kernels::DropoutForward(pass.stream, dy, BranchDropout(pass, saved, Site::kFfn), ffn_shard);
  }
  FeedBackward(pass, WholeBranch(pass, ffn_shard, dy, saved.dffn_branch), saved.ffn_normed, saved,
               saved.dinner);
  ffn_norm_.Backward(
      pass, saved.ffn_norm,
      {.dy = saved.dinner,
       .residual = dy,
       .dropout = BranchDropout(pass, saved, cross_ ? Site::kCross : Site::kAttention),
       .dx = dmiddle,
       .dbranch = cross_ ? BranchShard(pass, saved, saved.cross->dbranch) : attention_shard});
  if (cross_) CrossBackwardPre(pass, saved);
  AttendBackward(pass, WholeBranch(pass, attention_shard, saved.dmiddle, saved.dbranch),
                 saved.normed, saved, saved.dinner);
  attention_norm_.Backward(pass, saved.attention_norm,
                           {.dy = saved.dinner, .residual = saved.dmiddle, .dx = dx});
}

//   dsum = norm'(dy), dffn_branch = drop'(dsum), dmiddle = ffn'(dffn_branch)
//   dinner = norm'(dmiddle + dsum), dbranch = drop'(dinner)
//   dx = dinner + attention'(dbranch)
void Block::BackwardInputPost(const Pass& pass, const Matrix& dy, Saved& saved,
                              const Matrix& dx) const {
  const Matrix ffn_shard = BranchShard(pass, saved, saved.dffn_branch);
  const Matrix attention_shard = BranchShard(pass, saved, saved.dbranch);
  ffn_norm_.Backward(pass, saved.ffn_norm,
                     {.dy = dy,
                      .dropout = BranchDropout(pass, saved, Site::kFfn),
                      .dx = saved.dsum,
                      .dbranch = ffn_shard});
  FeedBackward(pass, WholeBranch(pass, ffn_shard, saved.dsum, saved.dffn_branch), Middle(saved),
               saved, MiddleGradient(saved));
  if (cross_) CrossBackwardPost(pass, saved);
  attention_norm_.Backward(pass, saved.attention_norm,
                           {.dy = saved.dmiddle,
                            .more = cross_ ? saved.cross->dsum : saved.dsum,
                            .dropout = BranchDropout(pass, saved, Site::kAttention),
                            .dx = saved.dinner,
                            .dbranch = attention_shard});
  AttendBackward(pass, WholeBranch(pass, attention_shard, saved.dinner, saved.dbranch), saved.x,
                 saved, dx);
  kernels::Add(pass.stream, saved.dinner, dx);
}

// dx = gradient through the feed-forward layer, in the steps of AttendBackward.
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

// From the gradient of the stream after the cross-attention to that of the stream before, and of
// the attention's branch on this rank's rows.
void Block::CrossBackwardPre(const Pass& pass, Saved& saved) const {
  CrossSaved& cross = *saved.cross;
  const Matrix shard = BranchShard(pass, saved, cross.dbranch);
  CrossBackward(pass, WholeBranch(pass, shard, cross.dmiddle, cross.dbranch), cross.normed, saved,
                saved.dinner);
  cross_->norm.Backward(pass, cross.norm,
                        {.dy = saved.dinner,
                         .residual = cross.dmiddle,
                         .dropout = BranchDropout(pass, saved, Site::kAttention),
                         .dx = saved.dmiddle,
                         .dbranch = BranchShard(pass, saved, saved.dbranch)});
}

void Block::CrossBackwardPost(const Pass& pass, Saved& saved) const {
  CrossSaved& cross = *saved.cross;
  const Matrix shard = BranchShard(pass, saved, cross.dbranch);
  cross_->norm.Backward(pass, cross.norm,
                        {.dy = cross.dmiddle,
                         .more = saved.dsum,
                         .dropout = BranchDropout(pass, saved, Site::kCross),
                         .dx = cross.dsum,
                         .dbranch = shard});
  CrossBackward(pass, WholeBranch(pass, shard, cross.dsum, cross.dbranch), saved.middle, saved,
                saved.dmiddle);
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

// The matrix for a branch's gradient on this rank's rows, before they are gathered. Empty() if the
// gradient of the sum before the branch serves: there is no dropout in between, and that matrix
// lasts until the weights' gradients are computed, or is gathered into one that does.
Matrix Block::BranchShard(const Pass& pass, const Saved& saved, const Matrix& dbranch) const {
  const bool sharded = pass.tensor->Sharded();
  const bool dropout = BranchDropout(pass, saved, Site::kFfn).Active();
  if (!dropout && (pass.weights_too || sharded)) return {};
  return sharded ? saved.dshard : dbranch;
}

// The gradient of a branch for all tokens. shard: BranchShard's; dsum: [rows, dim], the gradient of
// the sum before the branch.
Matrix Block::WholeBranch(const Pass& pass, const Matrix& shard, const Matrix& dsum,
                          const Matrix& dbranch) const {
  const Matrix& rows = shard.Empty() ? dsum : shard;
  if (!pass.tensor->Sharded()) return rows;
  pass.tensor->Gather(rows, dbranch);
  return dbranch;
}

// The weight gradients of the products, from what BackwardInput left in Saved.
void Block::BackwardWeight(const Pass& pass, const Saved& saved) const {
  comm::Request none;
  ffn_->BackwardWeight(pass, *saved.ffn, none);
  if (cross_) cross_->attention.BackwardWeight(pass, saved.cross->attention, none);
  attention_.BackwardWeight(pass, saved.attention, none);
}

// Recomputation: what the forward pass did not keep, before the backward pass.

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
  saved.kept[static_cast<int>(Site::kFfn)] = nullptr;  // the output that they mask is not computed
  const Matrix full = pass.tensor->Sharded() ? saved.full_x : saved.ffn_normed;
  pass.tensor->Gather(saved.ffn_normed, full);
  ffn_->ForwardHidden(pass, full, *saved.ffn);
}

// Memory.

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
  AllocateKept(pass, saved);
  if (!pass.tensor->Sharded()) return;
  saved.full_x = pass.Allocate(pass.lives.scratch, pass.Tokens(), dim_);
  saved.full_y = pass.Allocate(pass.lives.scratch, pass.Tokens(), dim_);
}

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

}  // namespace trireme::model
