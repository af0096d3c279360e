// The functions of the back ends: those of namespace cpu and cuda implement the public kernel of
// the same name, which table.cpp connects with them.
#pragma once

#include "trireme/kernels/attention.hpp"
#include "trireme/kernels/elementwise.hpp"
#include "trireme/kernels/libraries.hpp"
#include "trireme/kernels/linear.hpp"
#include "trireme/kernels/update.hpp"
#include "trireme/kernels/vocabulary_loss.hpp"

namespace trireme::kernels {

// Adds the gradients of a layer's biases, each by a pass of its own.
inline void AddBiasGradients(const device::Stream& stream, const Linear& linear, const Matrix& dy,
                             decltype(kernels::ColumnSum)::Function* column_sum) {
  if (linear.biases == nullptr) return;
  for (const BiasGradients::Sum& part : linear.biases->parts) {
    if (part.sums.Empty()) continue;
    column_sum(stream, dy.Columns(part.first, part.sums.columns), part.sums,
               linear.biases->scratch);
  }
}

namespace cpu {
decltype(kernels::MatrixMultiply)::Function MatrixMultiply;
decltype(kernels::MatrixMultiplyThen)::Function MatrixMultiplyThen;
decltype(kernels::LinearForward)::Function LinearForward;
decltype(kernels::LinearActivation)::Function LinearActivation;
decltype(kernels::LinearInputGradient)::Function LinearInputGradient;
decltype(kernels::LinearActivationGradient)::Function LinearActivationGradient;
decltype(kernels::LinearWeightGradient)::Function LinearWeightGradient;
decltype(kernels::AddBias)::Function AddBias;
decltype(kernels::ResidualForward)::Function ResidualForward;
decltype(kernels::Clear)::Function Clear;
decltype(kernels::Copy)::Function Copy;
decltype(kernels::Add)::Function Add;
decltype(kernels::ActivationForward)::Function ActivationForward;
decltype(kernels::ActivationBackward)::Function ActivationBackward;
decltype(kernels::DropoutForward)::Function DropoutForward;
decltype(kernels::EmbeddingForward)::Function EmbeddingForward;
decltype(kernels::EmbeddingBackward)::Function EmbeddingBackward;
decltype(kernels::PositionForward)::Function PositionForward;
decltype(kernels::PositionBackward)::Function PositionBackward;
decltype(kernels::NormForward)::Function NormForward;
decltype(kernels::ResidualNormForward)::Function ResidualNormForward;
decltype(kernels::NormBackward)::Function NormBackward;
decltype(kernels::NormBackwardInput)::Function NormBackwardInput;
decltype(kernels::NormBackwardWeight)::Function NormBackwardWeight;
decltype(kernels::ColumnSum)::Function ColumnSum;
decltype(kernels::AttentionScratch)::Function AttentionScratch;
decltype(kernels::AttentionForward)::Function AttentionForward;
decltype(kernels::AttentionBackward)::Function AttentionBackward;
decltype(kernels::Rope)::Function Rope;
decltype(kernels::KeyValueElements)::Function KeyValueElements;
decltype(kernels::KeepKeyValues)::Function KeepKeyValues;
decltype(kernels::CopyKeyValues)::Function CopyKeyValues;
decltype(kernels::CachedAttention)::Function CachedAttention;
decltype(kernels::AttentionPartScratch)::Function AttentionPartScratch;
decltype(kernels::AttentionPartStart)::Function AttentionPartStart;
decltype(kernels::AttentionPartForward)::Function AttentionPartForward;
decltype(kernels::AttentionPartStartBackward)::Function AttentionPartStartBackward;
decltype(kernels::AttentionPartBackward)::Function AttentionPartBackward;
decltype(kernels::CrossEntropy)::Function CrossEntropy;
decltype(kernels::SoftmaxStatistics)::Function SoftmaxStatistics;
decltype(kernels::CrossEntropySlice)::Function CrossEntropySlice;
decltype(kernels::VocabularyScratch)::Function VocabularyScratch;
decltype(kernels::VocabularyTileTokens)::Function VocabularyTileTokens;
decltype(kernels::VocabularyStatistics)::Function VocabularyStatistics;
decltype(kernels::VocabularyLosses)::Function VocabularyLosses;
decltype(kernels::VocabularyGradient)::Function VocabularyGradient;
decltype(kernels::AdamW)::Function AdamW;
decltype(kernels::GradientDescent)::Function GradientDescent;
decltype(kernels::SquareSum)::Function SquareSum;
decltype(kernels::SquareSums)::Function SquareSums;
decltype(kernels::ExactSquareSum)::Function ExactSquareSum;
decltype(kernels::Accumulate)::Function Accumulate;
}  // namespace cpu

// Operands lie in the GPU's memory, and calls return when their work is queued, unless stated
// otherwise. Built with CUDA only.
namespace cuda {
decltype(kernels::MatrixMultiply)::Function MatrixMultiply;
decltype(kernels::MatrixMultiplyThen)::Function MatrixMultiplyThen;
decltype(kernels::LinearForward)::Function LinearForward;
decltype(kernels::LinearActivation)::Function LinearActivation;
decltype(kernels::LinearInputGradient)::Function LinearInputGradient;
decltype(kernels::LinearActivationGradient)::Function LinearActivationGradient;
decltype(kernels::LinearWeightGradient)::Function LinearWeightGradient;
decltype(kernels::AddBias)::Function AddBias;
decltype(kernels::ResidualForward)::Function ResidualForward;
decltype(kernels::Clear)::Function Clear;
decltype(kernels::Copy)::Function Copy;
decltype(kernels::Add)::Function Add;
decltype(kernels::ActivationForward)::Function ActivationForward;
decltype(kernels::ActivationBackward)::Function ActivationBackward;
decltype(kernels::DropoutForward)::Function DropoutForward;
decltype(kernels::EmbeddingForward)::Function EmbeddingForward;
decltype(kernels::EmbeddingBackward)::Function EmbeddingBackward;
decltype(kernels::PositionForward)::Function PositionForward;
decltype(kernels::PositionBackward)::Function PositionBackward;
decltype(kernels::NormForward)::Function NormForward;
decltype(kernels::ResidualNormForward)::Function ResidualNormForward;
decltype(kernels::NormBackward)::Function NormBackward;
decltype(kernels::ColumnSum)::Function ColumnSum;
decltype(kernels::AttentionScratch)::Function AttentionScratch;
decltype(kernels::AttentionPartScratch)::Function AttentionPartScratch;
decltype(kernels::AttentionForward)::Function AttentionForward;
decltype(kernels::AttentionBackward)::Function AttentionBackward;
decltype(kernels::Rope)::Function Rope;
decltype(kernels::KeepKeyValues)::Function KeepKeyValues;
decltype(kernels::CopyKeyValues)::Function CopyKeyValues;
decltype(kernels::CachedAttention)::Function CachedAttention;
decltype(kernels::AttentionPartStart)::Function AttentionPartStart;
decltype(kernels::AttentionPartForward)::Function AttentionPartForward;
decltype(kernels::AttentionPartStartBackward)::Function AttentionPartStartBackward;
decltype(kernels::AttentionPartBackward)::Function AttentionPartBackward;
decltype(kernels::VocabularyStatistics)::Function VocabularyStatistics;
decltype(kernels::VocabularyLosses)::Function VocabularyLosses;
decltype(kernels::VocabularyGradient)::Function VocabularyGradient;
decltype(kernels::AdamW)::Function AdamW;
decltype(kernels::GradientDescent)::Function GradientDescent;
decltype(kernels::SquareSum)::Function SquareSum;  // waits for the result
decltype(kernels::SquareSums)::Function SquareSums;
decltype(kernels::Accumulate)::Function Accumulate;
decltype(kernels::Convert)::Function Convert;
decltype(kernels::MakeLibraries)::Function MakeLibraries;
decltype(kernels::WhyNoCudnn) WhyNoCudnn;
decltype(kernels::WhyNoFixedOrder) WhyNoFixedOrder;
decltype(kernels::GpuMathLibraries) GpuMathLibraries;
}  // namespace cuda

}  // namespace trireme::kernels

namespace trireme::kernels::gpu {

// Sizes of a GPU's memory for our own kernels: scratch, tiles, fp8 operands. All follow from
// shapes, so that they are known without CUDA, for a GPU that is only planned.

inline constexpr int kMostHeadDim = 256;  // of attention
// RunError if head_dim is above kMostHeadDim.
void CheckHeadDim(const AttentionShape& shape);

// Elements of attention's delta = rowsum(dO * O), [sequences, heads, length], the first part of its
// scratch, rounded up to 128 bytes.
std::int64_t AttentionDelta(const AttentionShape& shape);

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
inline constexpr std::int64_t kFp8Unit = 16;  // all dimensions of an fp8 product are multiples
// Tensors with scales: kFp8Roles per linear layer, and kFp8Places * kFp8Roles for operands outside
// of training. Each has a scale and a maximum, of 4 bytes, and the scale's inverse, which cuBLASLt
// reads on a boundary of 16 bytes.
inline constexpr int kFp8InverseStep = 4;  // numbers from one inverse to the next
std::int64_t Fp8ScaleBytes(int sites);
// Elements of a weight that is kept in fp8, as it is and transposed; 0 if the layer has no number
// or its shape does not fit.
std::int64_t Fp8WeightElements(const Linear& linear);

// As the public functions of the same name, for our own kernels on any GPU: nothing of the stream
// is read. RunError as CheckHeadDim.
decltype(kernels::AttentionScratch)::Function AttentionScratch;
decltype(kernels::AttentionPartScratch)::Function AttentionPartScratch;
decltype(kernels::VocabularyScratch)::Function VocabularyScratch;
decltype(kernels::VocabularyTileTokens)::Function VocabularyTileTokens;
decltype(kernels::KeyValueElements)::Function KeyValueElements;

}  // namespace trireme::kernels::gpu
