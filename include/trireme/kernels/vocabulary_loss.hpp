// The vocabulary head fused with its loss, for a tile of tokens. On the CPU blocks of the
// vocabulary that fit a core's cache are multiplied, exponentiated and multiplied again while they
// are there, so that memory of the size of the logits is written once and read once.
#pragma once

#include <cstdint>

#include "trireme/device/stream.hpp"
#include "trireme/kernels/kernel.hpp"
#include "trireme/kernels/matrix.hpp"

namespace trireme::kernels {

// Softmax and cross-entropy on a tile of logits.

// losses[r] = -(1 - e) ln p[target] - e / V sum_v ln p[v], p = softmax(logits[r]), e = smoothing; 0
// for masked rows (targets[r] < 0).
//   logits   [rows, vocabulary]; with `gradient` they become d losses[r] / d logits (0 if masked),
//            without they are used as scratch: their values are lost either way
//   targets  [rows]
//   losses   [rows], nats, overwritten
extern const Kernel<void(const Matrix& logits, const std::int32_t* targets, double smoothing,
                         bool gradient, double* losses)>
    CrossEntropy;

// The same with a slice of the vocabulary per rank, in two passes with an exchange of statistics
// between them.
inline constexpr std::int64_t kSoftmaxStatistics = 4;  // numbers per row

// Statistics of a slice, which is not empty. Masked rows are left as they are, their statistics 0.
//   logits      [rows, slice], of tokens [first, first + slice); become exp(logit - largest)
//   statistics  [rows, 4] fp64, dense, overwritten: largest logit, sum of exp(logit - largest), the
//               target's logit (0 if another slice has it), sum of logits
//   targets     [rows], global ids; < 0: masked
extern const Kernel<void(const Matrix& logits, const std::int32_t* targets, std::int32_t first,
                         double* statistics)>
    SoftmaxStatistics;

// losses[r] of the whole vocabulary, the same bits on every rank; not finite if a logit is not.
//   statistics  [parts, rows, 4], of all slices; `part` is the slice of these logits
//   logits      as SoftmaxStatistics left them; with `gradient` they become this slice of the
//               gradient
//   targets     [rows], global ids; < 0: masked
//   losses      [rows], nats, overwritten
extern const Kernel<void(const Matrix& logits, const std::int32_t* targets, std::int32_t first,
                         std::int64_t vocabulary, double smoothing, bool gradient,
                         const double* statistics, int parts, int part, double* losses)>
    CrossEntropySlice;

// A slice of the vocabulary and a tile of tokens.
struct VocabularyTile {
  Matrix x;                               // [rows, dim]
  Matrix weight;                          // [slice, dim], tokens [first, first + slice)
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

// Elements of scratch, of x's type, for a tile of up to `rows` tokens: with the gradient rows *
// slice, without it a block of the vocabulary per thread on the CPU, the logits of the tile on a
// GPU.
extern const Kernel<std::int64_t(std::int64_t rows, std::int64_t slice, std::int64_t dim,
                                 bool gradient)>
    VocabularyScratch;
// Tokens of a tile, of `rows` in all: enough for the products to run at full speed, and on a GPU
// tiles of about one size, since each reads and writes the whole gradient of the weight. dtype: of
// x.
inline constexpr std::int64_t kVocabularyTileTokens = 512;  // on the CPU
extern const Kernel<std::int64_t(std::int64_t rows, std::int64_t slice, Dtype dtype)>
    VocabularyTileTokens;

// Statistics of this slice, as SoftmaxStatistics: [rows, kSoftmaxStatistics] fp64, overwritten.
// scratch: [1, VocabularyScratch], on a boundary of 8 bytes (of 64 for speed); with tile.gradient
// it keeps the operands of VocabularyGradient.
extern const Kernel<void(const VocabularyTile& tile, const Matrix& scratch, double* statistics)>
    VocabularyStatistics;

// losses[r] (nats, as CrossEntropySlice) of the whole vocabulary. statistics: of all slices,
// [parts, rows, kSoftmaxStatistics].
extern const Kernel<void(const VocabularyTile& tile, const double* statistics, int parts,
                         double* losses)>
    VocabularyLosses;

// Gradients, after VocabularyStatistics of the same tile, scratch and number of threads. The same
// bits from run to run for one number of threads.
//   statistics  of all slices, as in VocabularyLosses
//   dx          [rows, dim], overwritten: the sum over this slice
//   dweight     [slice, dim], of the sums' type (SumTypeOf), added to
extern const Kernel<void(const VocabularyTile& tile, const Matrix& scratch,
                         const double* statistics, int parts, const Matrix& dx,
                         const Matrix& dweight)>
    VocabularyGradient;

}  // namespace trireme::kernels
