// HeadLayer: tiles of logits with their losses and gradients, fused or by canonical slices.
#include "trireme/model/head_layer.hpp"

#include <algorithm>

#include "trireme/base/error.hpp"
#include "trireme/kernels/linear.hpp"

namespace trireme::model {

// TokenLosses: the losses of tokens, copied to host memory, and their sum.

TokenLosses::TokenLosses(const device::Stream& stream, std::int64_t most)
    : stream_(stream), most_(most) {
  if (most_ == 0) return;
  storage_ =
      device::AllocatePinned(most_ * static_cast<std::int64_t>(sizeof(double)), stream_.Where());
}

void TokenLosses::Expect(std::int64_t tokens, double* copy) {
  if (most_ > 0 && tokens > most_) {
    throw RunError("more tokens at once than a model was planned for", "This is a bug in Trireme.");
  }
  tokens_ = most_ > 0 ? tokens : 0;
  copy_ = copy;
  known_ = false;
}

double* TokenLosses::At(std::int64_t token) const {
  return most_ == 0 ? nullptr : static_cast<double*>(storage_.get()) + token;
}

const ExactSum& TokenLosses::Sum() {
  if (known_) return sum_;
  known_ = true;
  sum_ = {};
  if (tokens_ == 0) return sum_;
  device::Synchronise(stream_);
  const auto* losses = static_cast<const double*>(storage_.get());
  for (std::int64_t i = 0; i < tokens_; ++i) sum_.Add(losses[i]);
  if (copy_ != nullptr) std::copy_n(losses, tokens_, copy_);
  return sum_;
}

using kernels::Form;

HeadLayer::HeadLayer(const ParameterPlace& place, ParameterId embedding)
    : vocabulary_(place.options.vocabulary),
      dim_(place.options.dim),
      sampled_(std::min(place.options.sampled_softmax, vocabulary_)),
      slice_(place.tensor.Slice(vocabulary_)),
      spare_(kernels::VocabularySpareRows(place.stream, slice_.Size())),
      weight_(embedding) {
  if (place.options.tie_embeddings) return;
  kernels::Parameter weight = WeightOf(place.options, "head", vocabulary_, dim_);
  weight.spare = spare_ * dim_;
  weight_ = AddSlice(place, std::move(weight), slice_);
}

namespace {
constexpr std::int64_t kVector = 32;  // slices of a row are aligned to so many elements
std::int64_t Padded(std::int64_t columns) { return CeilDivide(columns, kVector) * kVector; }
}  // namespace

Part HeadLayer::SliceOf(const Pass& pass, int slice) const {
  return pass.tensor->SliceOf(vocabulary_, slice);
}

std::int64_t HeadLayer::TileColumns(const parallel::TensorGroup& tensor) const {
  std::int64_t columns = 0;
  for (int slice = 0; slice < tensor.Slices(); ++slice) {
    columns += Padded(tensor.SliceOf(vocabulary_, slice).Size());
  }
  return columns;
}

Matrix HeadLayer::TileOf(const Pass& pass, std::int64_t rows, int slice) const {
  std::int64_t begin = 0;
  for (int before = 0; before < slice; ++before) begin += Padded(SliceOf(pass, before).Size());
  return pass.workspace.tile.Rows(0, rows).Columns(begin, SliceOf(pass, slice).Size());
}

Matrix HeadLayer::WeightSlice(const Pass& pass, int slice) const {
  const Part part = SliceOf(pass, slice);
  return pass.Value(weight_).Rows(part.begin - slice_.begin, part.Size());
}

void HeadLayer::Logits(const Pass& pass, const Matrix& x, const Matrix& logits) const {
  kernels::MatrixMultiply(pass.stream, Form::kPlain, x, Form::kTransposed, pass.Value(weight_),
                          logits, false);
}

void HeadLayer::CachedLogits(const Pass& pass, const Matrix& x, const Matrix& logits) const {
  kernels::Linear linear = pass.Thin(Layer(*pass.registry));
  linear.thin = true;  // even if the pass begins texts: few rows are asked for
  Matrix all = logits;
  linear.weight.rows += spare_;
  all.columns += spare_;
  kernels::LinearForward(pass.stream, linear, x, {}, all, [](const Part&) {});
}

void HeadLayer::TileLogits(const Pass& pass, const Matrix& x) const {
  for (int slice = 0; slice < pass.tensor->Slices(); ++slice) {
    kernels::MatrixMultiply(pass.stream, Form::kPlain, x, Form::kTransposed,
                            WeightSlice(pass, slice), TileOf(pass, x.rows, slice), false);
  }
}

void HeadLayer::TileLoss(const Pass& pass, std::int64_t rows, std::int64_t first_row,
                         const kernels::LossTerms& terms, bool gradient, double* losses) const {
  const std::int32_t* targets = pass.tokens.targets + first_row;
  const parallel::TensorGroup& tensor = *pass.tensor;
  const int parts = tensor.AllSlices();
  if (parts == 1) {
    return kernels::CrossEntropy(pass.stream, TileOf(pass, rows, 0), targets, terms, gradient,
                                 losses);
  }
  const std::int64_t count = kernels::kSoftmaxStatistics * rows;
  double* all = pass.workspace.statistics.As<double>();
  const auto first = [&](int slice) {
    return static_cast<std::int32_t>(SliceOf(pass, slice).begin);
  };
  for (int slice = 0; slice < tensor.Slices(); ++slice) {
    kernels::SoftmaxStatistics(pass.stream, TileOf(pass, rows, slice), targets, first(slice),
                               all + (tensor.FirstSlice() + slice) * count);
  }
  GatherStatistics(pass, count);
  for (int slice = 0; slice < tensor.Slices(); ++slice) {
    kernels::CrossEntropySlice(pass.stream, TileOf(pass, rows, slice), targets, first(slice),
                               vocabulary_, terms, gradient, all, parts,
                               tensor.FirstSlice() + slice, losses);
  }
}

// Gathers all slices' softmax statistics in place (count: numbers per slice). Collective.
void HeadLayer::GatherStatistics(const Pass& pass, std::int64_t count) const {
  const parallel::TensorGroup& tensor = *pass.tensor;
  if (tensor.Size() == 1) return;
  const std::int64_t own = tensor.Slices() * count;
  tensor.Transfers().AllGatherInPlace(Dtype::kFloat64, pass.workspace.statistics.As<double>(),
                                      comm::Counts::Cut(tensor.Size() * own, own));
}

// The losses of the rows of x; unless dx is Empty(), also the gradients of x and the weight.
void HeadLayer::FusedTile(const Pass& pass, const kernels::VocabularyTile& tile, double* losses,
                          const Matrix& dx, const Matrix& dweight) const {
  const Matrix& scratch = pass.workspace.tile;
  const std::int64_t count = kernels::kSoftmaxStatistics * tile.x.rows;
  double* statistics = pass.workspace.statistics.As<double>();
  kernels::VocabularyStatistics(pass.stream, tile, scratch,
                                statistics + pass.tensor->Rank() * count);
  GatherStatistics(pass, count);
  kernels::VocabularyLosses(pass.stream, tile, statistics, pass.tensor->Size(), losses);
  if (!tile.gradient) return;
  kernels::VocabularyGradient(pass.stream, tile, scratch, statistics, pass.tensor->Size(), dx,
                              dweight);
}

kernels::WordDraw HeadLayer::Draw(const Pass& pass) const {
  return {.count = sampled_,
          .vocabulary = vocabulary_,
          .slice = slice_,
          .seed = pass.seed,
          .step = pass.Dry() ? 0 : pass.batch->step};
}

void HeadLayer::AllocateSample(const Pass& pass, device::Arena& arena, Workspace& workspace) const {
  if (sampled_ == 0) return;
  const std::int64_t most = kernels::MostWords(Draw(pass), pass.Tokens());
  const auto numbers = [&](std::int64_t count) {
    return arena.Allocate(count * static_cast<std::int64_t>(sizeof(std::int32_t)));
  };
  void* const offsets = arena.Allocate(BytesOf(Dtype::kFloat64, most));
  workspace.sampled_weight = pass.Allocate(&arena, most, dim_);
  workspace.sampled_gradient = pass.AllocateSums(&arena, most, dim_);
  workspace.sampled_words = {.most = most,
                             .places = static_cast<std::int32_t*>(numbers(slice_.Size())),
                             .words = static_cast<std::int32_t*>(numbers(most)),
                             .offsets = static_cast<double*>(offsets),
                             .targets = static_cast<std::int32_t*>(numbers(pass.Tokens()))};
}

void HeadLayer::CanonicalTile(const Pass& pass, const Matrix& x, std::int64_t first_row,
                              const kernels::LossTerms& terms, double* losses,
                              const Matrix& dx) const {
  TileLogits(pass, x);
  TileLoss(pass, x.rows, first_row, terms, !dx.Empty(), losses);
  if (dx.Empty()) return;
  const Matrix gradient = pass.registry->SecondGradient(weight_);
  SumSlices(pass, dx, [&](int slice, const Matrix& out) {
    kernels::MatrixMultiply(pass.stream, Form::kPlain, TileOf(pass, x.rows, slice), Form::kPlain,
                            WeightSlice(pass, slice), out, false);
  });
  for (int slice = 0; slice < pass.tensor->Slices(); ++slice) {
    const Part part = SliceOf(pass, slice);
    kernels::MatrixMultiply(pass.stream, Form::kTransposed, TileOf(pass, x.rows, slice),
                            Form::kPlain, x, gradient.Rows(part.begin - slice_.begin, part.Size()),
                            true);
  }
}

std::int64_t HeadLayer::TileTokens(const Pass& pass) const {
  const std::int64_t rows = std::max<std::int64_t>(1, pass.Tokens());
  // Uses the largest slice: all ranks need equal tiles, since they exchange statistics per tile.
  const std::int64_t slice = CeilDivide(vocabulary_, std::int64_t{pass.tensor->Size()});
  return kernels::VocabularyTileTokens(pass.stream, rows, slice, pass.Type());
}

void HeadLayer::Loss(const Pass& pass, const Matrix& x, const kernels::LossTerms& terms,
                     const Matrix& dx) const {
  const kernels::SampledWords& words = pass.workspace.sampled_words;
  const bool sampled = pass.training && words.most > 0;
  kernels::VocabularyTile fused{.x = {},
                                .weight = pass.Value(weight_),
                                .targets = pass.tokens.targets,
                                .first = static_cast<std::int32_t>(slice_.begin),
                                .vocabulary = vocabulary_,
                                .terms = terms,
                                .gradient = !dx.Empty(),
                                .spare = spare_};
  Matrix dweight = dx.Empty() ? dx : pass.registry->SecondGradient(weight_);
  if (sampled) {
    const std::int64_t count =
        kernels::SampleWords(pass.stream, Draw(pass), pass.tokens.targets, pass.Tokens(), words);
    fused.weight = pass.workspace.sampled_weight.Rows(0, count);
    fused.targets = words.targets;
    fused.first = 0;
    fused.offsets = words.offsets;
    kernels::EmbeddingForward(pass.stream, words.words, 0, pass.Value(weight_), 1, fused.weight);
    dweight = pass.workspace.sampled_gradient.Rows(0, count);
    device::SetZero(pass.stream, dweight.data, BytesOf(dweight.dtype, dweight.Size()));
  }
  double* tile_losses = pass.workspace.losses.As<double>();
  const std::int64_t tile = pass.workspace.losses.columns;
  for (std::int64_t begin = 0; begin < x.rows; begin += tile) {
    const std::int64_t count = std::min(tile, x.rows - begin);
    const Matrix tile_x = x.Rows(begin, count);
    const Matrix tile_dx = dx.Empty() ? dx : dx.Rows(begin, count);
    if (pass.tensor->Canonical()) {
      CanonicalTile(pass, tile_x, begin, terms, tile_losses, tile_dx);
    } else {
      kernels::VocabularyTile part = fused;
      part.x = tile_x;
      part.targets += begin;
      FusedTile(pass, part, tile_losses, tile_dx, dweight);
    }
    device::StartCopyOut(pass.stream, tile_losses, pass.losses + begin,
                         count * static_cast<std::int64_t>(sizeof(double)));
    if (!dx.Empty()) pass.Progress();
  }
  if (sampled && !dx.Empty()) {
    kernels::EmbeddingBackward(pass.stream, words.words, 0, 1, dweight,
                               pass.registry->SecondGradient(weight_));
  }
}

Matrix HeadLayer::AllocateTile(const Pass& pass, device::Arena& arena, bool gradient) const {
  const std::int64_t rows = TileTokens(pass);
  if (pass.tensor->Canonical()) return pass.Allocate(&arena, rows, TileColumns(*pass.tensor));
  const auto scratch = [&](std::int64_t words, bool dx) {
    return kernels::VocabularyScratch(pass.stream, rows, words, dim_, dx);
  };
  const bool sampled = gradient && sampled_ > 0;  // evaluations take the whole slice
  const std::int64_t words =
      sampled ? kernels::MostWords(Draw(pass), pass.Tokens()) : slice_.Size();
  const std::int64_t elements =
      std::max(scratch(words, gradient), sampled ? scratch(slice_.Size(), false) : 0);
  // Logits() needs room for one token's logits.
  return pass.Allocate(&arena, 1, std::max(elements, slice_.Size()));
}

}  // namespace trireme::model
