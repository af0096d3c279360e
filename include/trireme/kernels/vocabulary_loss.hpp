// The vocabulary head fused with its loss, for a tile of tokens: blocks of the vocabulary small
// enough for a core's cache are multiplied, exponentiated and multiplied again while they are
// there, so that what is as large as the logits is written once and read once.
#ifndef TRIREME_KERNELS_VOCABULARY_LOSS_HPP_
#define TRIREME_KERNELS_VOCABULARY_LOSS_HPP_

#include <cstdint>

#include "trireme/device/stream.hpp"
#include "trireme/kernels/cross_entropy.hpp"
#include "trireme/tensor/matrix.hpp"

namespace trireme::kernels {

// A slice of the vocabulary and a tile of tokens.
struct VocabularyTile {
  tensor::Matrix x;                       // [rows, dim]
  tensor::Matrix weight;                  // [slice, dim], tokens [first, first + slice)
  const std::int32_t* targets = nullptr;  // [rows], global; < 0: masked
  std::int32_t first = 0;
  std::int64_t vocabulary = 0;  // of all slices
  double smoothing = 0;
  bool gradient = false;  // VocabularyGradient follows
  // Rows of zeros behind those of weight, in memory, and of what dweight has there: products may
  // take them along, and leave zeros.
  std::int64_t spare = 0;
};

// So many of them are worth having: a GPU's matrix units read 16 bytes at a time, and products of
// 50,257 columns take other, slower kernels than those of 50,304. 0 on the CPU.
std::int64_t VocabularySpareRows(const device::Stream& stream, std::int64_t slice);
inline constexpr std::int64_t kVocabularyUnit = 64;  // columns of a GPU's logits are multiples

// Elements of x's type that a tile of so many rows takes, or fewer: rows * slice of them with the
// gradient, otherwise a block of the vocabulary a thread.
std::int64_t VocabularyScratch(std::int64_t rows, std::int64_t slice, std::int64_t dim, int threads,
                               bool gradient);
// The same for wherever the stream computes: on a GPU the tile's logits, in x's type.
std::int64_t VocabularyScratch(const device::Stream& stream, std::int64_t rows, std::int64_t slice,
                               std::int64_t dim, bool gradient);
// Tokens of a tile where there are `rows` in all: enough for the products to run at full speed, and
// on a GPU tiles of about one size, since each goes over the weight's whole gradient. dtype: of x.
inline constexpr std::int64_t kVocabularyTileTokens = 512;  // on the CPU
std::int64_t VocabularyTileTokens(const device::Stream& stream, std::int64_t rows,
                                  std::int64_t slice, Dtype dtype);

// statistics: [rows, kSoftmaxStatistics] fp64 of this slice, as SoftmaxStatistics has them.
// scratch: [1, VocabularyScratch], on a boundary of 8 bytes (of 64 for speed); with tile.gradient
// it holds what VocabularyGradient needs.
void VocabularyStatistics(const device::Stream& stream, const VocabularyTile& tile,
                          const tensor::Matrix& scratch, double* statistics);

// losses[r] (nats, as CrossEntropySlice) of the whole vocabulary from all slices' statistics:
// [parts, rows, kSoftmaxStatistics].
void VocabularyLosses(const device::Stream& stream, const VocabularyTile& tile,
                      const double* statistics, int parts, double* losses);

// Behind VocabularyStatistics of the same tile, scratch and number of threads, with all slices'
// statistics as for VocabularyLosses: dx = sum over this slice, [rows, dim], overwritten;
// dweight += , [slice, dim], of the sums' type (SumTypeOf). The same bits from run to run for one
// number of threads.
void VocabularyGradient(const device::Stream& stream, const VocabularyTile& tile,
                        const tensor::Matrix& scratch, const double* statistics, int parts,
                        const tensor::Matrix& dx, const tensor::Matrix& dweight);

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_VOCABULARY_LOSS_HPP_
