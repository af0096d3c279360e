// vocabulary_loss on the GPU: the logits of a tile lie in device memory as a whole, [rows, slice],
// and become their gradient in place. VocabularyGradient accumulates into dweight, everything else
// is overwritten. Where the tile has the whole vocabulary and its rows fit into a block's shared
// memory, VocabularyStatistics makes the gradient, too, and VocabularyGradient only multiplies.
#include "backends.hpp"
#include "cuda/vocabulary.cuh"
#include "trireme/device/gpu.hpp"

namespace trireme::kernels {

namespace {

Matrix LogitsOf(const VocabularyTile& tile, const Matrix& scratch) {
  return {scratch.data, tile.x.dtype, tile.x.rows, tile.weight.rows,
          gpu::LogitStride(tile.weight.rows)};
}

// As products take it: with the spare rows or columns, which are zero.
Matrix WithSpareRows(Matrix m, std::int64_t spare) {
  m.rows += spare;
  return m;
}
Matrix WithSpareColumns(Matrix m, std::int64_t spare) {
  m.columns += spare;
  return m;
}

cuda::VocabularyRows RowsOf(const VocabularyTile& tile, int parts) {
  return {tile.targets, tile.first, tile.vocabulary, tile.smoothing, parts};
}

// Whether statistics and gradients are made at once; a card may have less shared memory than the
// supported ones.
bool AtOnce(const device::Stream& stream, const VocabularyTile& tile) {
  return gpu::LogitsReadOnce(tile) && stream.gpu->shared_bytes >= gpu::kLogitsOfBlock;
}

}  // namespace

void cuda::VocabularyStatistics(const device::Stream& stream, const VocabularyTile& tile,
                                const Matrix& scratch, double* statistics) {
  const Matrix logits = LogitsOf(tile, scratch);
  cuda::MatrixMultiply(stream, Form::kPlain, tile.x, Form::kTransposed,
                       WithSpareRows(tile.weight, tile.spare), WithSpareColumns(logits, tile.spare),
                       false);
  const auto statistics_of = AtOnce(stream, tile) ? LogitStatisticsAndGradients : LogitStatistics;
  statistics_of(stream, logits, RowsOf(tile, 1), statistics);
}

void cuda::VocabularyLosses(const device::Stream& stream, const VocabularyTile& tile,
                            const double* statistics, int parts, double* losses) {
  cuda::LogitLosses(stream, tile.x.rows, RowsOf(tile, parts), statistics, losses);
}

void cuda::VocabularyGradient(const device::Stream& stream, const VocabularyTile& tile,
                              const Matrix& scratch, const double* statistics, int parts,
                              const Matrix& dx, const Matrix& dweight) {
  const Matrix logits = LogitsOf(tile, scratch);
  if (!AtOnce(stream, tile)) {
    cuda::LogitGradients(stream, logits, RowsOf(tile, parts), statistics);
  }
  const Matrix whole = WithSpareColumns(logits, tile.spare);
  cuda::MatrixMultiply(stream, Form::kPlain, whole, Form::kPlain,
                       WithSpareRows(tile.weight, tile.spare), dx, false);
  cuda::MatrixMultiply(stream, Form::kTransposed, whole, Form::kPlain, tile.x,
                       WithSpareRows(dweight, tile.spare), true);
}

}  // namespace trireme::kernels
