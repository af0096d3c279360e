// The vocabulary head fused with its loss, for a tile of tokens. On the CPU, blocks of the
// vocabulary that fit a core's cache are multiplied, exponentiated and multiplied again while
// cached, so that the memory of the logits is written once and read once.
#pragma once

#include <algorithm>
#include <cstdint>

#include "trireme/base/partition.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/kernels/kernel.hpp"
#include "trireme/kernels/matrix.hpp"

namespace trireme::kernels {

// Softmax and cross-entropy on a tile of logits.

// What a training loss is beside the cross entropy. With Z = sum_v exp(logits[v]), z adds z (ln
// Z)^2 to what is differentiated, not to `losses`; it keeps ln Z near 0 (Chowdhery et al. 2022,
// section 5).
struct LossTerms {
  double smoothing = 0;  // share of the target's probability spread over the vocabulary
  double z = 0;
  // What z adds to the factor of p in the gradient: d z (ln Z)^2 / d logit = 2 z ln Z p.
  double Ahead(double log_sum) const { return 2 * z * log_sum; }
};

// losses[r] = -(1 - e) ln p[target] - e / V sum_v ln p[v], with p = softmax(logits[r]) and e =
// terms.smoothing; 0 for masked rows (targets[r] < 0).
//   logits   [rows, vocabulary]; overwritten: with `gradient` by d (losses[r] + z (ln Z)^2) /
//            d logits (0 if masked), without it by scratch values
//   targets  [rows]
//   losses   [rows], nats, overwritten
extern const Kernel<void(const Matrix& logits, const std::int32_t* targets, const LossTerms& terms,
                         bool gradient, double* losses)>
    CrossEntropy;

// The same for slices of the vocabulary: two passes, between which ranks exchange statistics.
inline constexpr std::int64_t kSoftmaxStatistics = 4;  // numbers per row

// Statistics of a slice (not empty). Logits of masked rows do not change; their statistics are 0.
//   logits      [rows, slice], for tokens [first, first + slice); become exp(logit - largest)
//   statistics  [rows, 4] fp64, dense, overwritten: largest logit, sum of exp(logit - largest), the
//               target's logit (0 if another slice has it), sum of logits
//   targets     [rows], global ids; < 0: masked
extern const Kernel<void(const Matrix& logits, const std::int32_t* targets, std::int32_t first,
                         double* statistics)>
    SoftmaxStatistics;

// losses[r] over the whole vocabulary, the same bits on every rank; not finite if a logit is not.
//   statistics  [parts, rows, 4], of all slices; number `part` is the slice of these logits
//   logits      as SoftmaxStatistics left them; with `gradient` they become this slice of the
//               gradient
//   targets     [rows], global ids; < 0: masked
//   losses      [rows], nats, overwritten
extern const Kernel<void(const Matrix& logits, const std::int32_t* targets, std::int32_t first,
                         std::int64_t vocabulary, const LossTerms& terms, bool gradient,
                         const double* statistics, int parts, int part, double* losses)>
    CrossEntropySlice;

// A tile of tokens, and the slice of the vocabulary for which this rank computes their logits.
struct VocabularyTile {
  Matrix x;                               // [rows, dim]
  Matrix weight;                          // [slice, dim], of tokens [first, first + slice)
  const std::int32_t* targets = nullptr;  // [rows], global; < 0: masked
  std::int32_t first = 0;
  std::int64_t vocabulary = 0;  // number of tokens of all slices together
  LossTerms terms = {};
  bool gradient = false;  // whether VocabularyGradient will follow
  // [slice], added to the logits of all tokens but a row's target; null: nothing. Only on the CPU.
  const double* offsets = nullptr;
  // Number of zero rows that follow those of weight, and of dweight, in memory: products may
  // include them, and leave them zero.
  std::int64_t spare = 0;
};

// Number of spare rows that a slice should have: a GPU's matrix units read 16 bytes at a time, and
// products with 50,257 columns use slower kernels than products with 50,304. 0 on the CPU.
std::int64_t VocabularySpareRows(const device::Stream& stream, std::int64_t slice);
// The number of columns of a GPU's logits is a multiple of this.
inline constexpr std::int64_t kVocabularyUnit = 64;

// Elements of scratch, of x's type, for a tile of up to `rows` tokens. With `gradient`: rows *
// slice. Without: on the CPU a block of the vocabulary per thread, on a GPU the tile's logits.
extern const Kernel<std::int64_t(std::int64_t rows, std::int64_t slice, std::int64_t dim,
                                 bool gradient)>
    VocabularyScratch;
// Number of tokens per tile, for `rows` tokens in all: enough for products at full speed. On a GPU
// tiles have about equal sizes, as each reads and writes the whole weight gradient. dtype: of x.
inline constexpr std::int64_t kVocabularyTileTokens = 512;  // on the CPU
extern const Kernel<std::int64_t(std::int64_t rows, std::int64_t slice, Dtype dtype)>
    VocabularyTileTokens;

// Statistics of this slice, as in SoftmaxStatistics: [rows, kSoftmaxStatistics] fp64, overwritten.
// scratch: [1, VocabularyScratch], aligned to 8 bytes (64 for speed); with tile.gradient it keeps
// the operands of VocabularyGradient.
extern const Kernel<void(const VocabularyTile& tile, const Matrix& scratch, double* statistics)>
    VocabularyStatistics;

// losses[r] over the whole vocabulary, nats, as in CrossEntropySlice. statistics: [parts, rows,
// kSoftmaxStatistics], of all slices.
extern const Kernel<void(const VocabularyTile& tile, const double* statistics, int parts,
                         double* losses)>
    VocabularyLosses;

// Gradients. Call it after VocabularyStatistics with the same tile, scratch and number of threads.
// Repeated runs with the same number of threads give the same bits.
//   statistics  of all slices, as in VocabularyLosses
//   dx          [rows, dim], overwritten: the sum over this slice
//   dweight     [slice, dim], of the sums' type (SumTypeOf), added to
extern const Kernel<void(const VocabularyTile& tile, const Matrix& scratch,
                         const double* statistics, int parts, const Matrix& dx,
                         const Matrix& dweight)>
    VocabularyGradient;

// The words of a sampled softmax (Jean et al. 2015, arXiv:1412.2007): the sum of exponentials over
// the vocabulary is estimated by a sum over some words, each times exp(offset) except a row's own
// target. The first `count / 2` tokens of the vocabulary are always among them; the other tokens
// are cut into strata of nearly equal size, of which each gives one word, drawn for the step and
// weighted by the stratum's size.
struct WordDraw {
  std::int64_t count = 0;       // words over all slices, without those that are only targets
  std::int64_t vocabulary = 0;  // tokens of all slices
  Part slice = {};              // tokens of this rank; not empty
  std::uint32_t seed = 0;
  std::int64_t step = 0;
};
struct SampledWords {
  std::int64_t most = 0;            // room for so many words
  std::int32_t* places = nullptr;   // [slice]: place of a token among the words, or -1
  std::int32_t* words = nullptr;    // [most]: rows of the slice, ascending
  double* offsets = nullptr;        // [most]: so low for words that are only targets that no other
                                    // row counts them
  std::int32_t* targets = nullptr;  // [tokens]: places of the targets, for VocabularyTile
};
// Most words of a slice for `tokens` targets.
inline std::int64_t MostWords(const WordDraw& draw, std::int64_t tokens) {
  return std::min(draw.slice.Size(), 1 + draw.count + tokens);
}
// Fills in the words of the slice: the drawn ones, the targets, and the slice's first token, so
// that there is one. Returns their number. targets: [tokens], global ids; < 0: masked. Only on
// CPUs.
extern const Kernel<std::int64_t(const WordDraw& draw, const std::int32_t* targets,
                                 std::int64_t tokens, const SampledWords& words)>
    SampleWords;

}  // namespace trireme::kernels
