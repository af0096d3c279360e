// Table of the kernels in CUDA.
#include "backends.hpp"
#include "gpu_sizes.hpp"
#include "trireme/base/error.hpp"

namespace trireme::kernels {

namespace {

// Stands for a kernel that only the CPU has.
struct OnTheCpuOnly {
  template <typename... Arguments>
  using Function = void(Arguments...);
  template <typename... Arguments>
  constexpr operator Function<Arguments...>*() const {  // NOLINT(google-explicit-constructor)
    return [](Arguments...) {
      throw RunError("a kernel that only the CPU has was called on a GPU",
                     "This is a bug in Trireme.");
    };
  }
};
constexpr OnTheCpuOnly kOnTheCpuOnly;

}  // namespace

constinit const Backend kCudaBackend = {
    .MatrixMultiply = cuda::MatrixMultiply,
    .MatrixMultiplyThen = cuda::MatrixMultiply,
    .LinearForward = cuda::LinearForward,
    .LinearActivation = cuda::LinearActivation,
    .LinearInputGradient = cuda::LinearInputGradient,
    .LinearActivationGradient = cuda::LinearActivationGradient,
    .LinearWeightGradient = cuda::LinearWeightGradient,
    .AddBias = cuda::AddBias,
    .ResidualForward = cuda::ResidualForward,
    .Clear = cuda::Clear,
    .Copy = cuda::Copy,
    .Add = cuda::Add,
    .ActivationForward = cuda::ActivationForward,
    .ActivationBackward = cuda::ActivationBackward,
    .DropoutForward = cuda::DropoutForward,
    .EmbeddingForward = cuda::EmbeddingForward,
    .EmbeddingBackward = cuda::EmbeddingBackward,
    .PositionForward = cuda::PositionForward,
    .PositionBackward = cuda::PositionBackward,
    .NormForward = cuda::NormForward,
    .ResidualNormForward = cuda::ResidualNormForward,
    .NormBackward = cuda::NormBackward,
    .NormBackwardInput = kOnTheCpuOnly,
    .NormBackwardWeight = kOnTheCpuOnly,
    .ColumnSum = cuda::ColumnSum,
    .AttentionScratch = cuda::AttentionScratch,
    .AttentionForward = cuda::AttentionForward,
    .AttentionBackward = cuda::AttentionBackward,
    .Rope = cuda::Rope,
    .KeyValueElements = gpu::KeyValueElements,
    .KeepKeyValues = cuda::KeepKeyValues,
    .CopyKeyValues = cuda::CopyKeyValues,
    .CachedAttention = cuda::CachedAttention,
    .AttentionPartScratch = cuda::AttentionPartScratch,
    .AttentionPartStart = cuda::AttentionPartStart,
    .AttentionPartForward = cuda::AttentionPartForward,
    .AttentionPartStartBackward = cuda::AttentionPartStartBackward,
    .AttentionPartBackward = cuda::AttentionPartBackward,
    .CrossEntropy = kOnTheCpuOnly,
    .SoftmaxStatistics = kOnTheCpuOnly,
    .CrossEntropySlice = kOnTheCpuOnly,
    .VocabularyScratch = gpu::VocabularyScratch,
    .VocabularyTileTokens = gpu::VocabularyTileTokens,
    .VocabularyStatistics = cuda::VocabularyStatistics,
    .VocabularyLosses = cuda::VocabularyLosses,
    .VocabularyGradient = cuda::VocabularyGradient,
    .AdamW = cuda::AdamW,
    .GradientDescent = cuda::GradientDescent,
    .SquareSum = cuda::SquareSum,
    .SquareSums = cuda::SquareSums,
    .ExactSquareSum = kOnTheCpuOnly,
    .Accumulate = cuda::Accumulate,
    .Convert = cuda::Convert,
    .MakeLibraries = cuda::MakeLibraries,
};

}  // namespace trireme::kernels
