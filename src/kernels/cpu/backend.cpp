// Table of the CPU's kernels.
#include "backends.hpp"

#include <algorithm>

#include "trireme/base/error.hpp"

namespace trireme::kernels {

namespace {

std::int64_t WholeAttentionScratch(const device::Stream& stream, const AttentionShape& shape, Dtype,
                                   bool) {
  return AttentionScratch(shape, stream.threads);
}

std::int64_t PartScratch(const device::Stream& stream, const AttentionShape& shape,
                         std::int64_t most_keys, Dtype, bool) {
  return AttentionPartScratch(shape, most_keys, stream.threads);
}

std::int64_t TileScratch(const device::Stream& stream, std::int64_t rows, std::int64_t slice,
                         std::int64_t dim, bool gradient) {
  return VocabularyScratch(rows, slice, dim, stream.threads, gradient);
}

std::int64_t TileTokens(const device::Stream&, std::int64_t rows, std::int64_t, Dtype) {
  return std::min(kVocabularyTileTokens, rows);
}

void NoConversion(const device::Stream&, std::int64_t, Dtype, const void*, Dtype, void*) {
  throw RunError("the CPU stores no bf16", "This is a bug in Trireme.");
}

std::unique_ptr<Libraries> NoLibraries(const device::Stream&, int) { return nullptr; }

}  // namespace

constinit const Backend kCpuBackend = {
    .MatrixMultiply = cpu::MatrixMultiply,
    .MatrixMultiplyThen = cpu::MatrixMultiply,
    .LinearForward = cpu::LinearForward,
    .LinearActivation = cpu::LinearActivation,
    .LinearInputGradient = cpu::LinearInputGradient,
    .LinearActivationGradient = cpu::LinearActivationGradient,
    .LinearWeightGradient = cpu::LinearWeightGradient,
    .AddBias = cpu::AddBias,
    .ResidualForward = cpu::ResidualForward,
    .Clear = cpu::Clear,
    .Copy = cpu::Copy,
    .Add = cpu::Add,
    .ActivationForward = cpu::ActivationForward,
    .ActivationBackward = cpu::ActivationBackward,
    .DropoutForward = cpu::DropoutForward,
    .EmbeddingForward = cpu::EmbeddingForward,
    .EmbeddingBackward = cpu::EmbeddingBackward,
    .PositionForward = cpu::PositionForward,
    .PositionBackward = cpu::PositionBackward,
    .NormForward = cpu::NormForward,
    .ResidualNormForward = cpu::ResidualNormForward,
    .NormBackward = cpu::NormBackward,
    .NormBackwardInput = cpu::NormBackwardInput,
    .NormBackwardWeight = cpu::NormBackwardWeight,
    .ColumnSum = cpu::ColumnSum,
    .AttentionScratch = WholeAttentionScratch,
    .AttentionForward = cpu::AttentionForward,
    .AttentionBackward = cpu::AttentionBackward,
    .Rope = cpu::Rope,
    .KeyValueElements = cpu::KeyValueElements,
    .KeepKeyValues = cpu::KeepKeyValues,
    .CopyKeyValues = cpu::CopyKeyValues,
    .CachedAttention = cpu::CachedAttention,
    .AttentionPartScratch = PartScratch,
    .AttentionPartStart = cpu::AttentionPartStart,
    .AttentionPartForward = cpu::AttentionPartForward,
    .AttentionPartStartBackward = cpu::AttentionPartStartBackward,
    .AttentionPartBackward = cpu::AttentionPartBackward,
    .CrossEntropy = cpu::CrossEntropy,
    .SoftmaxStatistics = cpu::SoftmaxStatistics,
    .CrossEntropySlice = cpu::CrossEntropySlice,
    .VocabularyScratch = TileScratch,
    .VocabularyTileTokens = TileTokens,
    .VocabularyStatistics = cpu::VocabularyStatistics,
    .VocabularyLosses = cpu::VocabularyLosses,
    .VocabularyGradient = cpu::VocabularyGradient,
    .AdamW = cpu::AdamW,
    .GradientDescent = cpu::GradientDescent,
    .SquareSum = cpu::SquareSum,
    .SquareSums = cpu::SquareSums,
    .ExactSquareSum = cpu::ExactSquareSum,
    .Accumulate = cpu::Accumulate,
    .Convert = NoConversion,
    .MakeLibraries = NoLibraries,
};

}  // namespace trireme::kernels
