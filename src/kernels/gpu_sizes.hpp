// Sizes of scratch and tiles of our own GPU kernels. All follow from shapes, so that they are known
// without CUDA, for a GPU that is only planned.
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

// Of the public functions of the same name; nothing of the stream is read. RunError as
// CheckHeadDim.
AttentionScratchFunction AttentionScratch;
AttentionPartScratchFunction AttentionPartScratch;
VocabularyScratchFunction VocabularyScratch;
decltype(kernels::VocabularyTileTokens) VocabularyTileTokens;

}  // namespace trireme::kernels::gpu

#endif  // TRIREME_SRC_KERNELS_GPU_SIZES_HPP_
