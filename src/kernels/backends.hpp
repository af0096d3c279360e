// The functions of the back ends, which table.cpp connects to the public kernels, and lists of the
// kernels that the back ends implement.
#pragma once

#include "trireme/kernels/attention.hpp"
#include "trireme/kernels/elementwise.hpp"
#include "trireme/kernels/libraries.hpp"
#include "trireme/kernels/linear.hpp"
#include "trireme/kernels/update.hpp"
#include "trireme/kernels/vocabulary_loss.hpp"

namespace trireme::kernels {

// Adds the gradients of a layer's biases, one column_sum for each.
inline void AddBiasGradients(const device::Stream& stream, const Linear& linear, const Matrix& dy,
                             decltype(kernels::ColumnSum)::Function* column_sum) {
  if (linear.biases == nullptr) return;
  for (const BiasGradients::Sum& part : linear.biases->parts) {
    if (part.sums.Empty()) continue;
    column_sum(stream, dy.Columns(part.first, part.sums.columns), part.sums,
               linear.biases->scratch);
  }
}

// The keys and values of whole sequences, as columns of their qkv.
inline KeyValueBlock WholeBlock(const AttentionShape& shape, const Matrix& qkv) {
  const std::int64_t queries = shape.heads * shape.head_dim;
  return {{{0, shape.length}, {shape.length, shape.length}},
          qkv.Columns(queries, qkv.columns - queries)};
}

// The operands of one pass of attention, as in kernels/attention.hpp.
struct AttentionPass {
  const device::Stream& stream;
  const AttentionShape& shape;
  bool backward, whole;  // whole: the block has all keys, so results are overwritten, not merged
  Part tasks;
  Matrix qkv;
  KeyValueBlock block;
  Dropout dropout;
  Matrix out, lse, scratch;
  Matrix dout = {}, dqkv = {}, dblock = {};  // of the backward pass

  // Positions of the queries.
  const Positions& Queries() const { return whole ? block.positions : shape.positions; }
};

// Implements the four functions of attention by kAttend, which computes any pass.
template <void (*kAttend)(const AttentionPass&)>
struct AttentionBy {
  static void Forward(const device::Stream& stream, const AttentionShape& shape, const Matrix& qkv,
                      const Dropout& dropout, const Matrix& out, const Matrix& lse,
                      const Matrix& scratch) {
    kAttend({stream, shape, false, true, AllTasks(shape), qkv, WholeBlock(shape, qkv), dropout, out,
             lse, scratch});
  }
  static void Backward(const device::Stream& stream, const AttentionShape& shape, const Matrix& qkv,
                       const Dropout& dropout, const Matrix& out, const Matrix& dout,
                       const Matrix& lse, const Matrix& dqkv, const Matrix& scratch) {
    kAttend({stream, shape, true, true, AllTasks(shape), qkv, WholeBlock(shape, qkv), dropout, out,
             lse, scratch, dout, dqkv, WholeBlock(shape, dqkv).data});
  }
  static void PartForward(const device::Stream& stream, const AttentionShape& shape,
                          const Part& tasks, const Matrix& qkv, const KeyValueBlock& block,
                          const Dropout& dropout, const Matrix& out, const Matrix& lse,
                          const Matrix& scratch) {
    kAttend({stream, shape, false, false, tasks, qkv, block, dropout, out, lse, scratch});
  }
  static void PartBackward(const device::Stream& stream, const AttentionShape& shape,
                           const Part& tasks, const Matrix& qkv, const KeyValueBlock& block,
                           const Dropout& dropout, const Matrix& out, const Matrix& dout,
                           const Matrix& lse, const Matrix& dqkv, const Matrix& dblock,
                           const Matrix& scratch) {
    kAttend({stream, shape, true, false, tasks, qkv, block, dropout, out, lse, scratch, dout, dqkv,
             dblock});
  }

 private:
  static Part AllTasks(const AttentionShape& shape) { return {0, AttentionPartTasks(shape)}; }
};

// Lists of kernels: those that both the CPU and CUDA implement (products, then others), then those
// of the CPU alone. The second argument is the function that a planned device runs instead.
#define TRIREME_PRODUCTS(KERNEL)                                  \
  KERNEL(MatrixMultiply, CountMultiply)                           \
  KERNEL(LinearForward, CountLinearForward)                       \
  KERNEL(LinearActivation, CountLinearActivation)                 \
  KERNEL(LinearInputGradient, CountLinearInputGradient)           \
  KERNEL(LinearActivationGradient, CountLinearActivationGradient) \
  KERNEL(LinearWeightGradient, CountLinearWeightGradient)
#define TRIREME_KERNELS(KERNEL)                                                              \
  KERNEL(AddBias, kPass)                                                                     \
  KERNEL(ResidualForward, kPass)                                                             \
  KERNEL(Clear, kPass)                                                                       \
  KERNEL(Copy, kPass)                                                                        \
  KERNEL(Add, kPass)                                                                         \
  KERNEL(Scale, kPass)                                                                       \
  KERNEL(ActivationForward, kPass)                                                           \
  KERNEL(ActivationBackward, kPass)                                                          \
  KERNEL(DropoutForward, kPass)                                                              \
  KERNEL(EmbeddingForward, PassEmbedding)                                                    \
  KERNEL(EmbeddingBackward, PassEmbeddingGradient)                                           \
  KERNEL(PositionForward, PassPositions)                                                     \
  KERNEL(PositionBackward, PassPositionGradient)                                             \
  KERNEL(NormForward, kPass)                                                                 \
  KERNEL(ResidualNormForward, kPass)                                                         \
  KERNEL(NormBackward, PassNormGradient)                                                     \
  KERNEL(ColumnSum, kPass)                                                                   \
  KERNEL(AttentionScratch, SizeOn<cpu::AttentionScratch, gpu::AttentionScratch>)             \
  KERNEL(Rope, kPass)                                                                        \
  KERNEL(KeepKeyValues, kNothing)                                                            \
  KERNEL(CopyKeyValues, kNothing)                                                            \
  KERNEL(CachedAttention, kNothing)                                                          \
  KERNEL(AttentionPartScratch, SizeOn<cpu::AttentionPartScratch, gpu::AttentionPartScratch>) \
  KERNEL(AttentionPartStart, kPass)                                                          \
  KERNEL(AttentionPartStartBackward, PassStartBackward)                                      \
  KERNEL(VocabularyStatistics, CountVocabularyStatistics)                                    \
  KERNEL(VocabularyLosses, kNothing)                                                         \
  KERNEL(VocabularyGradient, CountVocabularyGradient)                                        \
  KERNEL(AdamW, PassUpdate<2>)                                                               \
  KERNEL(Lion, PassUpdate<1>)                                                                \
  KERNEL(GradientDescent, PassUpdate<0>)                                                     \
  KERNEL(SquareSum, PassRanges)                                                              \
  KERNEL(SquareSums, PassRanges)                                                             \
  KERNEL(Accumulate, PassAccumulate)
#define TRIREME_CPU_KERNELS(KERNEL)   \
  KERNEL(NormBackwardWeight, kPass)   \
  KERNEL(CrossEntropy, kNothing)      \
  KERNEL(SoftmaxStatistics, kNothing) \
  KERNEL(CrossEntropySlice, kNothing) \
  KERNEL(ExactSquareSum, PassRanges)

#define DECLARE(name, ...) decltype(kernels::name)::Function name;

namespace cpu {
TRIREME_PRODUCTS(DECLARE)
TRIREME_KERNELS(DECLARE)
TRIREME_CPU_KERNELS(DECLARE)
decltype(kernels::KeyValueElements)::Function KeyValueElements;
decltype(kernels::VocabularyScratch)::Function VocabularyScratch;
decltype(kernels::VocabularyTileTokens)::Function VocabularyTileTokens;
decltype(kernels::SampleWords)::Function SampleWords;
void Attend(const AttentionPass& pass);
// MatrixMultiply with `then` as in LinearForward. On canonical streams the bits are the same as
// without `then`; on others another algorithm may compute the product.
void MatrixMultiplyThen(const device::Stream& stream, Form form_a, const Matrix& a, Form form_b,
                        const Matrix& b, const Matrix& c, bool accumulate,
                        FunctionRef<void(const Part& rows)> then);
}  // namespace cpu

// Operands lie in the GPU's memory. Calls return once their work is queued; only SquareSum waits
// for its result. Only in builds with CUDA.
namespace cuda {
TRIREME_PRODUCTS(DECLARE)
TRIREME_KERNELS(DECLARE)
void Fill(const device::Stream& stream, const Matrix& x, double value);  // x = value
void Attend(const AttentionPass& pass);
// VocabularyStatistics and VocabularyGradient without their products: logits are [rows, slice].
void LogitStatistics(const device::Stream& stream, const VocabularyTile& tile, const Matrix& logits,
                     double* statistics);
void LogitGradients(const device::Stream& stream, const VocabularyTile& tile, const Matrix& logits,
                    const double* statistics, int parts);
decltype(kernels::Convert)::Function Convert;
decltype(kernels::MakeLibraries)::Function MakeLibraries;
decltype(kernels::WhyNoCudnn) WhyNoCudnn;
decltype(kernels::WhyNoFixedOrder) WhyNoFixedOrder;
decltype(kernels::GpuMathLibraries) GpuMathLibraries;
}  // namespace cuda

#undef DECLARE

}  // namespace trireme::kernels

namespace trireme::kernels::gpu {

// Memory sizes of our own GPU kernels: scratch, tiles, fp8 operands. All follow from shapes, so
// that they are known without CUDA, for a planned GPU.

inline constexpr int kMostHeadDim = 256;  // largest head_dim of attention
// RunError if head_dim is above kMostHeadDim.
void CheckHeadDim(const AttentionShape& shape);

// Whether each row is aligned to 16 bytes, as cuDNN and products in fp8 require.
inline bool RowsAligned(const Matrix& m) {
  constexpr std::uintptr_t kBytes = 16;
  const auto stride = static_cast<std::uintptr_t>(m.stride) * SizeOf(m.dtype);
  return reinterpret_cast<std::uintptr_t>(m.data) % kBytes == 0 && stride % kBytes == 0;
}

// Number of elements of attention's delta = rowsum(dO * O), [sequences, heads, length], the first
// part of its scratch, rounded up to 128 bytes.
std::int64_t AttentionDelta(const AttentionShape& shape);

// Elements from one row of logits to the next: in bf16 each row begins at a multiple of 128 bytes.
std::int64_t LogitStride(std::int64_t slice);
// Bytes of a row of logits that a thread block keeps in shared memory: two blocks fit on a
// multiprocessor of an H100 (228 KiB), one on that of an A100 (164 KiB).
inline constexpr std::int64_t kLogitsOfBlock = std::int64_t{112} << 10;
// Whether the statistics pass also computes the gradient of the logits, so that logits are read
// only once: if the tile has the whole vocabulary and a row fits into kLogitsOfBlock.
bool LogitsReadOnce(const VocabularyTile& tile);

// Sizes of a key/value cache. A row of head_dim elements is padded to whole vectors of every type
// (CachedRow). A long cache is attended to in pieces of CachedPiece(positions) positions, each of
// which yields a row and kCachedExtra further numbers.
inline constexpr std::int64_t kCachedExtra = 8;
std::int64_t CachedRow(std::int64_t head_dim);
std::int64_t CachedPiece(std::int64_t positions);

// fp8 operands of linear layers: values, weights and gradients (the roles) have scales of their
// own; a product has two operands (the places).
inline constexpr int kFp8Roles = 3;
inline constexpr int kFp8Places = 2;
inline constexpr std::int64_t kFp8Unit = 16;  // dimensions of fp8 products are multiples of this
// Tensors with scales: kFp8Roles per linear layer, and kFp8Places * kFp8Roles for operands outside
// of training. Each has a scale and a maximum, 4 bytes each, and the inverse of the scale, which
// cuBLASLt requires at a multiple of 16 bytes.
inline constexpr int kFp8InverseStep = 4;  // numbers from one inverse scale to the next
std::int64_t Fp8ScaleBytes(int sites);
// Number of elements of a weight that is kept in fp8, plain and transposed together; 0 if the layer
// has no number (site) or its shape does not suit fp8.
std::int64_t Fp8WeightElements(const Linear& linear);

// The public functions of the same names, for our own kernels on any GPU: the stream is not read.
// RunError as in CheckHeadDim.
decltype(kernels::AttentionScratch)::Function AttentionScratch;
decltype(kernels::AttentionPartScratch)::Function AttentionPartScratch;
decltype(kernels::VocabularyScratch)::Function VocabularyScratch;
decltype(kernels::VocabularyTileTokens)::Function VocabularyTileTokens;
decltype(kernels::KeyValueElements)::Function KeyValueElements;

}  // namespace trireme::kernels::gpu
