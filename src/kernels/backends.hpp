// Kernels of each back end, and one table of functions per back end. The functions of namespace cpu
// and cuda have the types of the public functions of the same name, which call the table of the
// stream (dispatch.cpp).
#ifndef TRIREME_SRC_KERNELS_BACKENDS_HPP_
#define TRIREME_SRC_KERNELS_BACKENDS_HPP_

#include "trireme/kernels/attention.hpp"
#include "trireme/kernels/elementwise.hpp"
#include "trireme/kernels/libraries.hpp"
#include "trireme/kernels/linear.hpp"
#include "trireme/kernels/update.hpp"
#include "trireme/kernels/vocabulary_loss.hpp"

namespace trireme::kernels {

// Types of overloaded functions.
using MultiplyFunction = void(const device::Stream&, Form, const Matrix&, Form, const Matrix&,
                              const Matrix&, bool);
using MultiplyThenFunction = void(const device::Stream&, Form, const Matrix&, Form, const Matrix&,
                                  const Matrix&, bool, FunctionRef<void(const Part&)>);
using SquareSumFunction = double(const device::Stream&, Dtype, std::span<const FlatRange>);
using ExactSquareSumFunction = void(const device::Stream&, Dtype, std::span<const FlatRange>,
                                    ExactSum&);
using AttentionScratchFunction = std::int64_t(const device::Stream&, const AttentionShape&, Dtype,
                                              bool);
using AttentionPartScratchFunction = std::int64_t(const device::Stream&, const AttentionShape&,
                                                  std::int64_t, Dtype, bool);
using VocabularyScratchFunction = std::int64_t(const device::Stream&, std::int64_t, std::int64_t,
                                               std::int64_t, bool);

struct Backend {
  MultiplyFunction* MatrixMultiply;
  MultiplyThenFunction* MatrixMultiplyThen;
  decltype(kernels::LinearForward)* LinearForward;
  decltype(kernels::LinearActivation)* LinearActivation;
  decltype(kernels::LinearInputGradient)* LinearInputGradient;
  decltype(kernels::LinearActivationGradient)* LinearActivationGradient;
  decltype(kernels::LinearWeightGradient)* LinearWeightGradient;
  decltype(kernels::AddBias)* AddBias;
  decltype(kernels::ResidualForward)* ResidualForward;
  decltype(kernels::Clear)* Clear;
  decltype(kernels::Copy)* Copy;
  decltype(kernels::Add)* Add;
  decltype(kernels::ActivationForward)* ActivationForward;
  decltype(kernels::ActivationBackward)* ActivationBackward;
  decltype(kernels::DropoutForward)* DropoutForward;
  decltype(kernels::EmbeddingForward)* EmbeddingForward;
  decltype(kernels::EmbeddingBackward)* EmbeddingBackward;
  decltype(kernels::PositionForward)* PositionForward;
  decltype(kernels::PositionBackward)* PositionBackward;
  decltype(kernels::NormForward)* NormForward;
  decltype(kernels::ResidualNormForward)* ResidualNormForward;
  decltype(kernels::NormBackward)* NormBackward;
  decltype(kernels::NormBackwardInput)* NormBackwardInput;
  decltype(kernels::NormBackwardWeight)* NormBackwardWeight;
  decltype(kernels::ColumnSum)* ColumnSum;
  AttentionScratchFunction* AttentionScratch;
  decltype(kernels::AttentionForward)* AttentionForward;
  decltype(kernels::AttentionBackward)* AttentionBackward;
  decltype(kernels::Rope)* Rope;
  decltype(kernels::KeyValueElements)* KeyValueElements;
  decltype(kernels::KeepKeyValues)* KeepKeyValues;
  decltype(kernels::CopyKeyValues)* CopyKeyValues;
  decltype(kernels::CachedAttention)* CachedAttention;
  AttentionPartScratchFunction* AttentionPartScratch;
  decltype(kernels::AttentionPartStart)* AttentionPartStart;
  decltype(kernels::AttentionPartForward)* AttentionPartForward;
  decltype(kernels::AttentionPartStartBackward)* AttentionPartStartBackward;
  decltype(kernels::AttentionPartBackward)* AttentionPartBackward;
  decltype(kernels::CrossEntropy)* CrossEntropy;
  decltype(kernels::SoftmaxStatistics)* SoftmaxStatistics;
  decltype(kernels::CrossEntropySlice)* CrossEntropySlice;
  VocabularyScratchFunction* VocabularyScratch;
  decltype(kernels::VocabularyTileTokens)* VocabularyTileTokens;
  decltype(kernels::VocabularyStatistics)* VocabularyStatistics;
  decltype(kernels::VocabularyLosses)* VocabularyLosses;
  decltype(kernels::VocabularyGradient)* VocabularyGradient;
  decltype(kernels::AdamW)* AdamW;
  decltype(kernels::GradientDescent)* GradientDescent;
  SquareSumFunction* SquareSum;
  decltype(kernels::SquareSums)* SquareSums;
  ExactSquareSumFunction* ExactSquareSum;
  decltype(kernels::Accumulate)* Accumulate;
  decltype(kernels::Convert)* Convert;
  decltype(kernels::MakeLibraries)* MakeLibraries;
};
extern const Backend kCpuBackend;      // cpu/backend.cpp
extern const Backend kCudaBackend;     // cuda/backend.cpp; defined with CUDA only
extern const Backend kPlannedBackend;  // planned/backend.cpp

namespace cpu {
MultiplyFunction MatrixMultiply;
MultiplyThenFunction MatrixMultiply;
decltype(kernels::LinearForward) LinearForward;
decltype(kernels::LinearActivation) LinearActivation;
decltype(kernels::LinearInputGradient) LinearInputGradient;
decltype(kernels::LinearActivationGradient) LinearActivationGradient;
decltype(kernels::LinearWeightGradient) LinearWeightGradient;
decltype(kernels::AddBias) AddBias;
decltype(kernels::ResidualForward) ResidualForward;
decltype(kernels::Clear) Clear;
decltype(kernels::Copy) Copy;
decltype(kernels::Add) Add;
decltype(kernels::ActivationForward) ActivationForward;
decltype(kernels::ActivationBackward) ActivationBackward;
decltype(kernels::DropoutForward) DropoutForward;
decltype(kernels::EmbeddingForward) EmbeddingForward;
decltype(kernels::EmbeddingBackward) EmbeddingBackward;
decltype(kernels::PositionForward) PositionForward;
decltype(kernels::PositionBackward) PositionBackward;
decltype(kernels::NormForward) NormForward;
decltype(kernels::ResidualNormForward) ResidualNormForward;
decltype(kernels::NormBackward) NormBackward;
decltype(kernels::NormBackwardInput) NormBackwardInput;
decltype(kernels::NormBackwardWeight) NormBackwardWeight;
decltype(kernels::ColumnSum) ColumnSum;
decltype(kernels::AttentionForward) AttentionForward;
decltype(kernels::AttentionBackward) AttentionBackward;
decltype(kernels::Rope) Rope;
decltype(kernels::KeyValueElements) KeyValueElements;
decltype(kernels::KeepKeyValues) KeepKeyValues;
decltype(kernels::CopyKeyValues) CopyKeyValues;
decltype(kernels::CachedAttention) CachedAttention;
decltype(kernels::AttentionPartStart) AttentionPartStart;
decltype(kernels::AttentionPartForward) AttentionPartForward;
decltype(kernels::AttentionPartStartBackward) AttentionPartStartBackward;
decltype(kernels::AttentionPartBackward) AttentionPartBackward;
decltype(kernels::CrossEntropy) CrossEntropy;
decltype(kernels::SoftmaxStatistics) SoftmaxStatistics;
decltype(kernels::CrossEntropySlice) CrossEntropySlice;
decltype(kernels::VocabularyStatistics) VocabularyStatistics;
decltype(kernels::VocabularyLosses) VocabularyLosses;
decltype(kernels::VocabularyGradient) VocabularyGradient;
decltype(kernels::AdamW) AdamW;
decltype(kernels::GradientDescent) GradientDescent;
SquareSumFunction SquareSum;
decltype(kernels::SquareSums) SquareSums;
ExactSquareSumFunction ExactSquareSum;
decltype(kernels::Accumulate) Accumulate;
}  // namespace cpu

// Operands lie in the GPU's memory, and calls return when their work is queued, unless stated
// otherwise. Built with CUDA only.
namespace cuda {
MultiplyFunction MatrixMultiply;
MultiplyThenFunction MatrixMultiply;
decltype(kernels::LinearForward) LinearForward;
decltype(kernels::LinearActivation) LinearActivation;
decltype(kernels::LinearInputGradient) LinearInputGradient;
decltype(kernels::LinearActivationGradient) LinearActivationGradient;
decltype(kernels::LinearWeightGradient) LinearWeightGradient;
decltype(kernels::AddBias) AddBias;
decltype(kernels::ResidualForward) ResidualForward;
decltype(kernels::Clear) Clear;
decltype(kernels::Copy) Copy;
decltype(kernels::Add) Add;
decltype(kernels::ActivationForward) ActivationForward;
decltype(kernels::ActivationBackward) ActivationBackward;
decltype(kernels::DropoutForward) DropoutForward;
decltype(kernels::EmbeddingForward) EmbeddingForward;
decltype(kernels::EmbeddingBackward) EmbeddingBackward;
decltype(kernels::PositionForward) PositionForward;
decltype(kernels::PositionBackward) PositionBackward;
decltype(kernels::NormForward) NormForward;
decltype(kernels::ResidualNormForward) ResidualNormForward;
decltype(kernels::NormBackward) NormBackward;
decltype(kernels::ColumnSum) ColumnSum;
AttentionScratchFunction AttentionScratch;
AttentionPartScratchFunction AttentionPartScratch;
decltype(kernels::AttentionForward) AttentionForward;
decltype(kernels::AttentionBackward) AttentionBackward;
decltype(kernels::Rope) Rope;
decltype(kernels::KeepKeyValues) KeepKeyValues;
decltype(kernels::CopyKeyValues) CopyKeyValues;
decltype(kernels::CachedAttention) CachedAttention;
decltype(kernels::AttentionPartStart) AttentionPartStart;
decltype(kernels::AttentionPartForward) AttentionPartForward;
decltype(kernels::AttentionPartStartBackward) AttentionPartStartBackward;
decltype(kernels::AttentionPartBackward) AttentionPartBackward;
decltype(kernels::VocabularyStatistics) VocabularyStatistics;
decltype(kernels::VocabularyLosses) VocabularyLosses;
decltype(kernels::VocabularyGradient) VocabularyGradient;
decltype(kernels::AdamW) AdamW;
decltype(kernels::GradientDescent) GradientDescent;
SquareSumFunction SquareSum;  // waits for the result
decltype(kernels::SquareSums) SquareSums;
decltype(kernels::Accumulate) Accumulate;
decltype(kernels::Convert) Convert;
decltype(kernels::MakeLibraries) MakeLibraries;
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

#endif  // TRIREME_SRC_KERNELS_BACKENDS_HPP_
