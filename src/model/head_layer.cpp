#include <algorithm>
#include <vector>

#include "initialisers.hpp"
#include "trireme/kernels/cross_entropy.hpp"
#include "trireme/kernels/matrix_multiply.hpp"
#include "trireme/model/layers.hpp"

namespace trireme::model {

using kernels::Form;

HeadLayer::HeadLayer(const Placement& placement, ParameterId embedding)
    : vocabulary_(placement.options.vocabulary),
      slice_(placement.tensor.Slice(vocabulary_)),
      weight_(embedding) {
  if (!placement.options.tie_embeddings) {
    weight_ = AddSlice(
        placement, WeightOf(placement.options, "head", vocabulary_, placement.options.dim), slice_);
  }
}

void HeadLayer::Logits(const Pass& pass, const Matrix& x, const Matrix& logits) const {
  kernels::MatrixMultiply(pass.stream, Form::kPlain, x, Form::kTransposed, pass.Value(weight_),
                          logits, false);
}

void HeadLayer::TileLoss(const Pass& pass, const Matrix& tile, std::int64_t first_row,
                         double smoothing, bool gradient, double* losses) const {
  const std::int32_t* targets = pass.batch->targets.data() + first_row;
  const int parts = pass.tensor->Size(), part = pass.tensor->Rank();
  if (parts == 1) {
    return kernels::CrossEntropy(pass.stream, tile, targets, smoothing, gradient, losses);
  }
  const auto first = static_cast<std::int32_t>(slice_.begin);
  const std::int64_t count = kernels::kSoftmaxStatistics * tile.rows;
  double* all = pass.workspace.statistics.As<double>();
  double* own = all + part * count;
  kernels::SoftmaxStatistics(pass.stream, tile, targets, first, own);
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(parts), count);
  pass.tensor->Transfers().AllGatherInPlace(Dtype::kFloat64, all, counts);
  kernels::CrossEntropySlice(pass.stream, tile, targets, first, vocabulary_, smoothing, gradient,
                             all, parts, part, losses);
}

double HeadLayer::Loss(const Pass& pass, const Matrix& x, double smoothing, double* losses) const {
  std::vector<double> tile_losses(kTileTokens);
  double sum = 0;
  for (std::int64_t begin = 0; begin < x.rows; begin += kTileTokens) {
    const std::int64_t count = std::min(kTileTokens, x.rows - begin);
    const Matrix tile = pass.workspace.tile.Rows(0, count);
    Logits(pass, x.Rows(begin, count), tile);
    TileLoss(pass, tile, begin, smoothing, false, tile_losses.data());
    for (std::int64_t i = 0; i < count; ++i) sum += tile_losses[static_cast<std::size_t>(i)];
    if (losses != nullptr) std::copy_n(tile_losses.begin(), count, losses + begin);
  }
  return sum;
}

double HeadLayer::LossAndBackward(const Pass& pass, const Matrix& x, double smoothing,
                                  const Matrix& dx) const {
  std::vector<double> tile_losses(kTileTokens);
  double sum = 0;
  for (std::int64_t begin = 0; begin < x.rows; begin += kTileTokens) {
    const std::int64_t count = std::min(kTileTokens, x.rows - begin);
    const Matrix tile = pass.workspace.tile.Rows(0, count);
    const Matrix tile_x = x.Rows(begin, count);
    Logits(pass, tile_x, tile);
    TileLoss(pass, tile, begin, smoothing, true, tile_losses.data());
    for (std::int64_t i = 0; i < count; ++i) sum += tile_losses[static_cast<std::size_t>(i)];
    kernels::MatrixMultiply(pass.stream, Form::kPlain, tile, Form::kPlain, pass.Value(weight_),
                            dx.Rows(begin, count), false);
    kernels::MatrixMultiply(pass.stream, Form::kTransposed, tile, Form::kPlain, tile_x,
                            pass.Gradient(weight_), true);
  }
  return sum;
}

}  // namespace trireme::model
