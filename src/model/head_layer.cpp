#include <algorithm>

#include "initialisers.hpp"
#include "trireme/kernels/cross_entropy.hpp"
#include "trireme/kernels/matrix_multiply.hpp"
#include "trireme/model/layers.hpp"

namespace trireme::model {

using kernels::Form;

HeadLayer::HeadLayer(const Options& options, tensor::Registry& registry, ParameterId embedding)
    : weight_(embedding) {
  if (!options.tie_embeddings) {
    weight_ = registry.Add(WeightOf(options, "head", options.vocabulary, options.dim));
  }
}

void HeadLayer::AllocateBackward(const Pass& pass, Saved& saved) const {
  saved.dx = pass.Allocate(pass.Tokens(), pass.Value(weight_).columns);
}

void HeadLayer::Logits(const Pass& pass, const Matrix& x, const Matrix& logits) const {
  kernels::MatrixMultiply(pass.stream, Form::kPlain, x, Form::kTransposed, pass.Value(weight_),
                          logits, false);
}

double HeadLayer::Loss(const Pass& pass, const Matrix& x, double smoothing, double* losses) const {
  std::vector<double> tile_losses(kTileTokens);
  double sum = 0;
  for (std::int64_t begin = 0; begin < x.rows; begin += kTileTokens) {
    const std::int64_t count = std::min(kTileTokens, x.rows - begin);
    const Matrix tile = pass.workspace.tile.Rows(0, count);
    Logits(pass, x.Rows(begin, count), tile);
    kernels::CrossEntropy(pass.stream, tile, pass.batch->targets.data() + begin, smoothing, false,
                          tile_losses.data());
    for (std::int64_t i = 0; i < count; ++i) sum += tile_losses[static_cast<std::size_t>(i)];
    if (losses != nullptr) std::copy_n(tile_losses.begin(), count, losses + begin);
  }
  return sum;
}

double HeadLayer::LossAndBackward(const Pass& pass, const Matrix& x, double smoothing,
                                  Saved& saved) const {
  saved.x = x;
  std::vector<double> tile_losses(kTileTokens);
  double sum = 0;
  for (std::int64_t begin = 0; begin < x.rows; begin += kTileTokens) {
    const std::int64_t count = std::min(kTileTokens, x.rows - begin);
    const Matrix tile = pass.workspace.tile.Rows(0, count);
    const Matrix tile_x = x.Rows(begin, count);
    Logits(pass, tile_x, tile);
    kernels::CrossEntropy(pass.stream, tile, pass.batch->targets.data() + begin, smoothing, true,
                          tile_losses.data());
    for (std::int64_t i = 0; i < count; ++i) sum += tile_losses[static_cast<std::size_t>(i)];
    kernels::MatrixMultiply(pass.stream, Form::kPlain, tile, Form::kPlain, pass.Value(weight_),
                            saved.dx.Rows(begin, count), false);
    kernels::MatrixMultiply(pass.stream, Form::kTransposed, tile, Form::kPlain, tile_x,
                            pass.Gradient(weight_), true);
  }
  return sum;
}

}  // namespace trireme::model
