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

}  // namespace trireme::model
