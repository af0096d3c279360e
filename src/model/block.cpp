// A block is its two sub-layers and how residuals and norms join them:
//   pre:   middle = x + drop(attention(norm(x)));   y = middle + drop(ffn(norm(middle)))
//   post:  middle = norm(x + drop(attention(x)));   y = norm(middle + drop(ffn(middle)))
#include <fmt/format.h>

#include "trireme/model/layers.hpp"

namespace trireme::model {

namespace {
constexpr std::uint32_t kAttentionSite = 0, kFfnSite = 1;  // of Purpose::kResidualDropout

std::string Prefix(std::uint32_t layer) { return fmt::format("blocks.{}", layer); }
}  // namespace

Block::Block(const Options& options, tensor::Registry& registry, std::uint32_t layer)
    : pre_(options.norm_position == NormPosition::kPre),
      dropout_(options.dropout),
      layer_(layer),
      dim_(options.dim),
      attention_norm_(options, registry, Prefix(layer) + ".attention.norm"),
      attention_(options, registry, Prefix(layer) + ".attention", layer),
      ffn_norm_(options, registry, Prefix(layer) + ".ffn.norm"),
      ffn_(options, registry, Prefix(layer) + ".ffn", layer) {}

kernels::Dropout Block::Residual(const Pass& pass, std::uint32_t site) const {
  return pass.MakeDropout(dropout_, Purpose::kResidualDropout, layer_, site);
}

void Block::Allocate(const Pass& pass, Saved& saved) const {
  attention_norm_.Allocate(pass, saved.attention_norm);
  attention_.Allocate(pass, saved.attention);
  ffn_norm_.Allocate(pass, saved.ffn_norm);
  ffn_.Allocate(pass, saved.ffn);
  saved.middle = pass.Allocate(pass.Tokens(), dim_);
  if (pre_) {
    saved.normed = pass.Allocate(pass.Tokens(), dim_);
    saved.ffn_normed = pass.Allocate(pass.Tokens(), dim_);
  } else {
    saved.sum = pass.Allocate(pass.Tokens(), dim_);
    saved.ffn_sum = pass.Allocate(pass.Tokens(), dim_);
  }
}

void Block::AllocateBackward(const Pass& pass, Saved& saved) const {
  attention_.AllocateBackward(pass, saved.attention);
  ffn_.AllocateBackward(pass, saved.ffn);
  saved.dbranch = pass.Allocate(pass.Tokens(), dim_);
  saved.dffn_branch = pass.Allocate(pass.Tokens(), dim_);
  saved.dmiddle = pass.Allocate(pass.Tokens(), dim_);
  if (pre_) {
    saved.dnormed = pass.Allocate(pass.Tokens(), dim_);
    saved.dffn_normed = pass.Allocate(pass.Tokens(), dim_);
  } else {
    saved.dsum = pass.Allocate(pass.Tokens(), dim_);
    saved.dffn_sum = pass.Allocate(pass.Tokens(), dim_);
  }
}

void Block::Forward(const Pass& pass, const Matrix& x, const Matrix& rope, Saved& saved,
                    const Matrix& y) const {
  saved.x = x;
  return pre_ ? ForwardPre(pass, rope, saved, y) : ForwardPost(pass, rope, saved, y);
}

void Block::ForwardPre(const Pass& pass, const Matrix& rope, Saved& saved, const Matrix& y) const {
  attention_norm_.Forward(pass, saved.x, saved.attention_norm, saved.normed);
  attention_.Forward(pass, saved.normed, rope, saved.attention, saved.middle);
  kernels::ResidualForward(pass.stream, saved.x, saved.middle, pass.Value(attention_.OutputBias()),
                           Residual(pass, kAttentionSite), saved.middle);
  ffn_norm_.Forward(pass, saved.middle, saved.ffn_norm, saved.ffn_normed);
  ffn_.Forward(pass, saved.ffn_normed, saved.ffn, y);
  kernels::ResidualForward(pass.stream, saved.middle, y, pass.Value(ffn_.OutputBias()),
                           Residual(pass, kFfnSite), y);
}

void Block::ForwardPost(const Pass& pass, const Matrix& rope, Saved& saved, const Matrix& y) const {
  attention_.Forward(pass, saved.x, rope, saved.attention, saved.sum);
  kernels::ResidualForward(pass.stream, saved.x, saved.sum, pass.Value(attention_.OutputBias()),
                           Residual(pass, kAttentionSite), saved.sum);
  attention_norm_.Forward(pass, saved.sum, saved.attention_norm, saved.middle);
  ffn_.Forward(pass, saved.middle, saved.ffn, saved.ffn_sum);
  kernels::ResidualForward(pass.stream, saved.middle, saved.ffn_sum, pass.Value(ffn_.OutputBias()),
                           Residual(pass, kFfnSite), saved.ffn_sum);
  ffn_norm_.Forward(pass, saved.ffn_sum, saved.ffn_norm, y);
}

void Block::BackwardInput(const Pass& pass, const Matrix& dy, const Matrix& rope, Saved& saved,
                          const Matrix& dx) const {
  return pre_ ? BackwardInputPre(pass, dy, rope, saved, dx)
              : BackwardInputPost(pass, dy, rope, saved, dx);
}

void Block::BackwardInputPre(const Pass& pass, const Matrix& dy, const Matrix& rope, Saved& saved,
                             const Matrix& dx) const {
  kernels::DropoutForward(pass.stream, dy, Residual(pass, kFfnSite), saved.dffn_branch);
  ffn_.BackwardInput(pass, saved.dffn_branch, saved.ffn, saved.dffn_normed);
  kernels::Copy(pass.stream, dy, saved.dmiddle);
  ffn_norm_.BackwardInput(pass, saved.dffn_normed, saved.ffn_norm, saved.dmiddle, true);
  kernels::DropoutForward(pass.stream, saved.dmiddle, Residual(pass, kAttentionSite),
                          saved.dbranch);
  attention_.BackwardInput(pass, saved.dbranch, rope, saved.attention, saved.dnormed);
  kernels::Copy(pass.stream, saved.dmiddle, dx);
  attention_norm_.BackwardInput(pass, saved.dnormed, saved.attention_norm, dx, true);
}

void Block::BackwardInputPost(const Pass& pass, const Matrix& dy, const Matrix& rope, Saved& saved,
                              const Matrix& dx) const {
  ffn_norm_.BackwardInput(pass, dy, saved.ffn_norm, saved.dffn_sum, false);
  kernels::DropoutForward(pass.stream, saved.dffn_sum, Residual(pass, kFfnSite), saved.dffn_branch);
  ffn_.BackwardInput(pass, saved.dffn_branch, saved.ffn, saved.dmiddle);
  kernels::Add(pass.stream, saved.dffn_sum, saved.dmiddle);
  attention_norm_.BackwardInput(pass, saved.dmiddle, saved.attention_norm, saved.dsum, false);
  kernels::DropoutForward(pass.stream, saved.dsum, Residual(pass, kAttentionSite), saved.dbranch);
  attention_.BackwardInput(pass, saved.dbranch, rope, saved.attention, dx);
  kernels::Add(pass.stream, saved.dsum, dx);
}

void Block::BackwardWeight(const Pass& pass, Saved& saved) const {
  ffn_.BackwardWeight(pass, saved.ffn);
  ffn_norm_.BackwardWeight(pass, saved.ffn_norm);
  attention_.BackwardWeight(pass, saved.attention);
  attention_norm_.BackwardWeight(pass, saved.attention_norm);
}

}  // namespace trireme::model
