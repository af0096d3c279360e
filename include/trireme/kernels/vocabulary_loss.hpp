// The vocabulary head fused with its loss, for a tile of tokens. On the CPU blocks of the
// vocabulary that fit a core's cache are multiplied, exponentiated and multiplied again while they
// are there, so that memory of the size of the logits is written once and read once.
#ifndef TRIREME_KERNELS_VOCABULARY_LOSS_HPP_
#define TRIREME_KERNELS_VOCABULARY_LOSS_HPP_

#include <cstdint>

#include "trireme/device/stream.hpp"
#include "trireme/kernels/cross_entropy.hpp"
#include "trireme/kernels/matrix.hpp"

namespace trireme::kernels {

// A slice of the vocabulary and a tile of tokens.
struct VocabularyTile {
  Matrix x;                       // [rows, dim]
  Matrix weight;                  // [slice, dim], tokens [first, first + slice)
  const std::int32_t* targets = nullptr;  // [rows], global; < 0: masked
  std::int32_t first = 0;
  std::int64_t vocabulary = 0;  // tokens of all slices
  double smoothing = 0;
  bool gradient = false;  // VocabularyGradient follows
  // Rows of zeros in memory after those of weight, and of dweight: products may include them, and
  // leave zeros.
  std::int64_t spare = 0;
};

// Spare rows that a slice should have: a GPU's matrix units read 16 bytes at a time, and products
// of 50,257 columns take slower kernels than those of 50,304. 0 on the CPU.
std::int64_t VocabularySpareRows(const device::Stream& stream, std::int64_t slice);
inline constexpr std::int64_t kVocabularyUnit = 64;  // columns of a GPU's logits are multiples

// Elements of scratch, of x's type, for a tile of up to `rows` tokens on the CPU: rows * slice with
// the gradient, without it a block of the vocabulary per thread.
std::int64_t VocabularyScratch(std::int64_t rows, std::int64_t slice, std::int64_t dim, int threads,
                               bool gradient);
// The same on the stream's device: on a GPU the logits of the tile.
std::int64_t VocabularyScratch(const device::Stream& stream, std::int64_t rows, std::int64_t slice,
                               std::int64_t dim, bool gradient);
// Tokens of a tile, of `rows` in all: enough for the products to run at full speed, and on a GPU
// tiles of about one size, since each reads and writes the whole gradient of the weight. dtype: of
// x.
inline constexpr std::int64_t kVocabularyTileTokens = 512;  // on the CPU
std::int64_t VocabularyTileTokens(const device::Stream& stream, std::int64_t rows,
                                  std::int64_t slice, Dtype dtype);

// Statistics of this slice, as SoftmaxStatistics: [rows, kSoftmaxStatistics] fp64, overwritten.
// scratch: [1, VocabularyScratch], on a boundary of 8 bytes (of 64 for speed); with tile.gradient
// it keeps the operands of VocabularyGradient.
void VocabularyStatistics(const device::Stream& stream, const VocabularyTile& tile,
                          const Matrix& scratch, double* statistics);

// losses[r] (nats, as CrossEntropySlice) of the whole vocabulary. statistics: of all slices,
// [parts, rows, kSoftmaxStatistics].
void VocabularyLosses(const device::Stream& stream, const VocabularyTile& tile,
                      const double* statistics, int parts, double* losses);

// Gradients, after VocabularyStatistics of the same tile, scratch and number of threads. The same
// bits from run to run for one number of threads.
//   statistics  of all slices, as in VocabularyLosses
//   dx          [rows, dim], overwritten: the sum over this slice
//   dweight     [slice, dim], of the sums' type (SumTypeOf), added to
void VocabularyGradient(const device::Stream& stream, const VocabularyTile& tile,
                        const Matrix& scratch, const double* statistics, int parts,
                        const Matrix& dx, const Matrix& dweight);

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_VOCABULARY_LOSS_HPP_
