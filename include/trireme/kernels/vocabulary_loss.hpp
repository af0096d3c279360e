// The vocabulary head fused with its loss, for a tile of tokens: blocks of the vocabulary small
// enough for a core's cache are multiplied, exponentiated, and multiplied again, so that logits
// cross the memory once each way (Milakov and Gimelshein 2018: softmax statistics on the fly).
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
};

// Elements of scratch of x's type for tiles of so many rows.
std::int64_t VocabularyScratch(std::int64_t rows, std::int64_t slice, std::int64_t dim,
                               int threads);

// statistics: [rows, kSoftmaxStatistics] fp64 of this slice, as SoftmaxStatistics has them. scratch
// keeps exp(logit - a block's largest) for VocabularyGradient.
void VocabularyStatistics(const device::Stream& stream, const VocabularyTile& tile,
                          const tensor::Matrix& scratch, double* statistics);

// losses[r] (nats, as CrossEntropySlice) of the whole vocabulary from all slices' statistics.
void VocabularyLosses(const VocabularyTile& tile, std::int64_t rows, const double* statistics,
                      int parts, double* losses);

// Behind VocabularyStatistics, with all slices' statistics [parts, rows, 4] (`part` is this one):
// dx = sum over this slice, [rows, dim], overwritten; dweight += , [slice, dim]. The same bits from
// run to run for one number of threads.
void VocabularyGradient(const device::Stream& stream, const VocabularyTile& tile,
                        const tensor::Matrix& scratch, const double* statistics, int parts,
                        int part, const tensor::Matrix& dx, const tensor::Matrix& dweight);

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_VOCABULARY_LOSS_HPP_
