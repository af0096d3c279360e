// Sizes of a GPU's memory for our own kernels: scratch, tiles, fp8 operands. All follow from
// shapes, so that they are known without CUDA, for a GPU that is only planned.
#ifndef TRIREME_SRC_KERNELS_GPU_SIZES_HPP_
#define TRIREME_SRC_KERNELS_GPU_SIZES_HPP_

#include "backends.hpp"

namespace trireme::kernels::gpu {

inline constexpr int kMostHeadDim = 256;  // of attention
// RunError if head_dim is above kMostHeadDim.
void CheckHeadDim(const AttentionShape& shape);

// Elements of attention's `inner` (dout . out), [sequences, heads, length], the first part of its
// scratch, rounded up to 128 bytes.
std::int64_t AttentionInner(const AttentionShape& shape);

// Elements from one row of logits to the next: rows begin on 128 bytes in bf16.
std::int64_t LogitStride(std::int64_t slice);
// Logits of a row that a block keeps in shared memory, in bytes: two blocks fit on a multiprocessor
// of an H100 (228 KiB), one on that of an A100 (164 KiB).
inline constexpr std::int64_t kLogitsOfBlock = std::int64_t{112} << 10;
// Whether the tile's gradients are made together with the statistics, from logits that are read
// once: it has the whole vocabulary, and a row fits into kLogitsOfBlock. Else they are read again.
bool LogitsReadOnce(const VocabularyTile& tile);

// A cache of keys and values. Rows of head_dim elements are filled up to whole vectors of every
// type; a long cache is attended to in pieces of CachedPiece(positions) positions, whose results
// have kCachedExtra numbers more than a row.
inline constexpr std::int64_t kCachedExtra = 8;
std::int64_t CachedRow(std::int64_t head_dim);
std::int64_t CachedPiece(std::int64_t positions);

// fp8 operands of linear layers: values, weights and gradients have a scale each; a product has two
// operands.
inline constexpr int kFp8Roles = 3;
inline constexpr int kFp8Places = 2;
// Tensors with scales: kFp8Roles per linear layer, and kFp8Places * kFp8Roles for operands outside
// of training. Each has a scale and a maximum, of 4 bytes, and the scale's inverse, which cuBLASLt
// reads on a boundary of 16 bytes.
inline constexpr int kFp8InverseStep = 4;  // numbers from one inverse to the next
std::int64_t Fp8ScaleBytes(int sites);

// As the public functions of the same name, for our own kernels on any GPU: nothing of the stream
// is read. RunError as CheckHeadDim.
AttentionScratchFunction AttentionScratch;
AttentionPartScratchFunction AttentionPartScratch;
VocabularyScratchFunction VocabularyScratch;
decltype(kernels::VocabularyTileTokens) VocabularyTileTokens;
decltype(kernels::KeyValueElements) KeyValueElements;

}  // namespace trireme::kernels::gpu

#endif  // TRIREME_SRC_KERNELS_GPU_SIZES_HPP_
