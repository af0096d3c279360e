// Which back end computes: the CPU's kernels, or, where the stream is a GPU's, those in CUDA. The
// only place in this folder that knows whether CUDA was built.
#include <algorithm>

#include "backends.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/partition.hpp"

namespace trireme::kernels {

namespace {
constexpr bool kCuda = TRIREME_CUDA != 0;
}  // namespace

void MatrixMultiply(const device::Stream& stream, Form form_a, const tensor::Matrix& a, Form form_b,
                    const tensor::Matrix& b, const tensor::Matrix& c, bool accumulate) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::MatrixMultiply(stream, form_a, a, form_b, b, c, accumulate);
  }
  return cpu::MatrixMultiply(stream, form_a, a, form_b, b, c, accumulate);
}

void MatrixMultiply(const device::Stream& stream, Form form_a, const tensor::Matrix& a, Form form_b,
                    const tensor::Matrix& b, const tensor::Matrix& c, bool accumulate,
                    FunctionRef<void(const Part& rows)> then) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) {
      cuda::MatrixMultiply(stream, form_a, a, form_b, b, c, accumulate);
      return then({0, c.rows});
    }
  }
  return cpu::MatrixMultiply(stream, form_a, a, form_b, b, c, accumulate, then);
}

void LinearForward(const device::Stream& stream, const Linear& linear, const tensor::Matrix& x,
                   const tensor::Matrix& bias, const tensor::Matrix& y,
                   FunctionRef<void(const Part& rows)> then) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::LinearForward(stream, linear, x, bias, y, then);
  }
  return cpu::LinearForward(stream, linear, x, bias, y, then);
}

void LinearActivation(const device::Stream& stream, const Linear& linear, const tensor::Matrix& x,
                      const tensor::Matrix& bias, ActivationKind kind, const Dropout& dropout,
                      const tensor::Matrix& pre, const tensor::Matrix& out) {
  if constexpr (kCuda) {
    if (stream.OnGpu())
      return cuda::LinearActivation(stream, linear, x, bias, kind, dropout, pre, out);
  }
  return cpu::LinearActivation(stream, linear, x, bias, kind, dropout, pre, out);
}

void LinearInputGradient(const device::Stream& stream, const Linear& linear,
                         const tensor::Matrix& dy, const tensor::Matrix& dx) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::LinearInputGradient(stream, linear, dy, dx);
  }
  return cpu::LinearInputGradient(stream, linear, dy, dx);
}

void LinearActivationGradient(const device::Stream& stream, const Linear& linear,
                              const tensor::Matrix& dy, ActivationKind kind,
                              const tensor::Matrix& from, const Dropout& dropout,
                              const tensor::Matrix& dhidden, const tensor::Matrix& dpre) {
  if constexpr (kCuda) {
    if (stream.OnGpu())
      return cuda::LinearActivationGradient(stream, linear, dy, kind, from, dropout, dhidden, dpre);
  }
  return cpu::LinearActivationGradient(stream, linear, dy, kind, from, dropout, dhidden, dpre);
}

void LinearWeightGradient(const device::Stream& stream, const Linear& linear,
                          const tensor::Matrix& x, const tensor::Matrix& dy,
                          const tensor::Matrix& dweight) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::LinearWeightGradient(stream, linear, x, dy, dweight);
  }
  return cpu::LinearWeightGradient(stream, linear, x, dy, dweight);
}

void AddBias(const device::Stream& stream, const tensor::Matrix& x, const tensor::Matrix& bias) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::AddBias(stream, x, bias);
  }
  return cpu::AddBias(stream, x, bias);
}

void ResidualForward(const device::Stream& stream, const tensor::Matrix& residual,
                     const tensor::Matrix& branch, const tensor::Matrix& bias,
                     const Dropout& dropout, const tensor::Matrix& out) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::ResidualForward(stream, residual, branch, bias, dropout, out);
  }
  return cpu::ResidualForward(stream, residual, branch, bias, dropout, out);
}

void Clear(const device::Stream& stream, const tensor::Matrix& x) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::Clear(stream, x);
  }
  return cpu::Clear(stream, x);
}

void Copy(const device::Stream& stream, const tensor::Matrix& x, const tensor::Matrix& y) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::Copy(stream, x, y);
  }
  return cpu::Copy(stream, x, y);
}

void Add(const device::Stream& stream, const tensor::Matrix& x, const tensor::Matrix& y) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::Add(stream, x, y);
  }
  return cpu::Add(stream, x, y);
}

void ActivationForward(const device::Stream& stream, ActivationKind kind, const tensor::Matrix& pre,
                       const tensor::Matrix& bias, const Dropout& dropout,
                       const tensor::Matrix& out) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::ActivationForward(stream, kind, pre, bias, dropout, out);
  }
  return cpu::ActivationForward(stream, kind, pre, bias, dropout, out);
}

void ActivationBackward(const device::Stream& stream, ActivationKind kind,
                        const tensor::Matrix& pre, const Dropout& dropout,
                        const tensor::Matrix& dout, const tensor::Matrix& dpre) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::ActivationBackward(stream, kind, pre, dropout, dout, dpre);
  }
  return cpu::ActivationBackward(stream, kind, pre, dropout, dout, dpre);
}

void DropoutForward(const device::Stream& stream, const tensor::Matrix& x, const Dropout& dropout,
                    const tensor::Matrix& out) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::DropoutForward(stream, x, dropout, out);
  }
  return cpu::DropoutForward(stream, x, dropout, out);
}

void EmbeddingForward(const device::Stream& stream, const std::int32_t* tokens, std::int32_t first,
                      const tensor::Matrix& weight, double scale, const tensor::Matrix& out) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::EmbeddingForward(stream, tokens, first, weight, scale, out);
  }
  return cpu::EmbeddingForward(stream, tokens, first, weight, scale, out);
}

void EmbeddingBackward(const device::Stream& stream, const std::int32_t* tokens, std::int32_t first,
                       double scale, const tensor::Matrix& dout, const tensor::Matrix& dweight) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::EmbeddingBackward(stream, tokens, first, scale, dout, dweight);
  }
  return cpu::EmbeddingBackward(stream, tokens, first, scale, dout, dweight);
}

void PositionForward(const device::Stream& stream, const tensor::Matrix& positions,
                     const Dropout& dropout, const tensor::Matrix& x) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::PositionForward(stream, positions, dropout, x);
  }
  return cpu::PositionForward(stream, positions, dropout, x);
}

void PositionBackward(const device::Stream& stream, const Dropout& dropout,
                      const tensor::Matrix& dout, const tensor::Matrix& dpositions) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::PositionBackward(stream, dropout, dout, dpositions);
  }
  return cpu::PositionBackward(stream, dropout, dout, dpositions);
}

void NormForward(const device::Stream& stream, NormKind kind, const tensor::Matrix& x,
                 const tensor::Matrix& weight, const tensor::Matrix& bias, double epsilon,
                 const tensor::Matrix& y, const tensor::Matrix& statistics) {
  if constexpr (kCuda) {
    if (stream.OnGpu())
      return cuda::NormForward(stream, kind, x, weight, bias, epsilon, y, statistics);
  }
  return cpu::NormForward(stream, kind, x, weight, bias, epsilon, y, statistics);
}

void ResidualNormForward(const device::Stream& stream, NormKind kind,
                         const tensor::Matrix& residual, const tensor::Matrix& branch,
                         const tensor::Matrix& bias, const Dropout& dropout,
                         const tensor::Matrix& sum, const tensor::Matrix& weight,
                         const tensor::Matrix& norm_bias, double epsilon, const tensor::Matrix& y,
                         const tensor::Matrix& statistics) {
  if constexpr (kCuda) {
    if (stream.OnGpu())
      return cuda::ResidualNormForward(stream, kind, residual, branch, bias, dropout, sum, weight,
                                       norm_bias, epsilon, y, statistics);
  }
  return cpu::ResidualNormForward(stream, kind, residual, branch, bias, dropout, sum, weight,
                                  norm_bias, epsilon, y, statistics);
}

void NormBackward(const device::Stream& stream, const NormBackwardPass& pass) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::NormBackward(stream, pass);
  }
  return cpu::NormBackward(stream, pass);
}

void ColumnSum(const device::Stream& stream, const tensor::Matrix& x, const tensor::Matrix& sums,
               const tensor::Matrix& scratch) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::ColumnSum(stream, x, sums, scratch);
  }
  return cpu::ColumnSum(stream, x, sums, scratch);
}

void AttentionForward(const device::Stream& stream, const AttentionShape& shape,
                      const tensor::Matrix& qkv, const Dropout& dropout, const tensor::Matrix& out,
                      const tensor::Matrix& lse, const tensor::Matrix& scratch) {
  if constexpr (kCuda) {
    if (stream.OnGpu())
      return cuda::AttentionForward(stream, shape, qkv, dropout, out, lse, scratch);
  }
  return cpu::AttentionForward(stream, shape, qkv, dropout, out, lse, scratch);
}

void AttentionBackward(const device::Stream& stream, const AttentionShape& shape,
                       const tensor::Matrix& qkv, const Dropout& dropout, const tensor::Matrix& out,
                       const tensor::Matrix& dout, const tensor::Matrix& lse,
                       const tensor::Matrix& dqkv, const tensor::Matrix& scratch) {
  if constexpr (kCuda) {
    if (stream.OnGpu())
      return cuda::AttentionBackward(stream, shape, qkv, dropout, out, dout, lse, dqkv, scratch);
  }
  return cpu::AttentionBackward(stream, shape, qkv, dropout, out, dout, lse, dqkv, scratch);
}

void Rope(const device::Stream& stream, const AttentionShape& shape, const tensor::Matrix& table,
          bool inverse, const tensor::Matrix& qkv) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::Rope(stream, shape, table, inverse, qkv);
  }
  return cpu::Rope(stream, shape, table, inverse, qkv);
}

void AttentionPartStart(const device::Stream& stream, const tensor::Matrix& out,
                        const tensor::Matrix& lse) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::AttentionPartStart(stream, out, lse);
  }
  return cpu::AttentionPartStart(stream, out, lse);
}

void AttentionPartForward(const device::Stream& stream, const AttentionShape& shape,
                          const Part& tasks, const tensor::Matrix& qkv, const KeyValueBlock& block,
                          const Dropout& dropout, const tensor::Matrix& out,
                          const tensor::Matrix& lse, const tensor::Matrix& scratch) {
  if constexpr (kCuda) {
    if (stream.OnGpu())
      return cuda::AttentionPartForward(stream, shape, tasks, qkv, block, dropout, out, lse,
                                        scratch);
  }
  return cpu::AttentionPartForward(stream, shape, tasks, qkv, block, dropout, out, lse, scratch);
}

void AttentionPartStartBackward(const device::Stream& stream, const AttentionShape& shape,
                                const tensor::Matrix& dqkv) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::AttentionPartStartBackward(stream, shape, dqkv);
  }
  return cpu::AttentionPartStartBackward(stream, shape, dqkv);
}

void AttentionPartBackward(const device::Stream& stream, const AttentionShape& shape,
                           const Part& tasks, const tensor::Matrix& qkv, const KeyValueBlock& block,
                           const Dropout& dropout, const tensor::Matrix& out,
                           const tensor::Matrix& dout, const tensor::Matrix& lse,
                           const tensor::Matrix& dqkv, const tensor::Matrix& dblock,
                           const tensor::Matrix& scratch) {
  if constexpr (kCuda) {
    if (stream.OnGpu())
      return cuda::AttentionPartBackward(stream, shape, tasks, qkv, block, dropout, out, dout, lse,
                                         dqkv, dblock, scratch);
  }
  return cpu::AttentionPartBackward(stream, shape, tasks, qkv, block, dropout, out, dout, lse, dqkv,
                                    dblock, scratch);
}

void VocabularyStatistics(const device::Stream& stream, const VocabularyTile& tile,
                          const tensor::Matrix& scratch, double* statistics) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::VocabularyStatistics(stream, tile, scratch, statistics);
  }
  return cpu::VocabularyStatistics(stream, tile, scratch, statistics);
}

void VocabularyLosses(const device::Stream& stream, const VocabularyTile& tile,
                      const double* statistics, int parts, double* losses) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::VocabularyLosses(stream, tile, statistics, parts, losses);
  }
  return cpu::VocabularyLosses(stream, tile, statistics, parts, losses);
}

void VocabularyGradient(const device::Stream& stream, const VocabularyTile& tile,
                        const tensor::Matrix& scratch, const double* statistics, int parts,
                        const tensor::Matrix& dx, const tensor::Matrix& dweight) {
  if constexpr (kCuda) {
    if (stream.OnGpu())
      return cuda::VocabularyGradient(stream, tile, scratch, statistics, parts, dx, dweight);
  }
  return cpu::VocabularyGradient(stream, tile, scratch, statistics, parts, dx, dweight);
}

void AdamW(const device::Stream& stream, Dtype dtype, std::span<const UpdateRange> ranges,
           const UpdateScalars* scalars, bool clear) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::AdamW(stream, dtype, ranges, scalars, clear);
  }
  return cpu::AdamW(stream, dtype, ranges, scalars, clear);
}

void GradientDescent(const device::Stream& stream, Dtype dtype, std::span<const UpdateRange> ranges,
                     const UpdateScalars* scalars, bool clear) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::GradientDescent(stream, dtype, ranges, scalars, clear);
  }
  return cpu::GradientDescent(stream, dtype, ranges, scalars, clear);
}

double SquareSum(const device::Stream& stream, Dtype dtype, std::span<const FlatRange> ranges) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::SquareSum(stream, dtype, ranges);
  }
  return cpu::SquareSum(stream, dtype, ranges);
}

void SquareSums(const device::Stream& stream, Dtype dtype, std::span<const FlatRange> ranges,
                double* sums) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::SquareSums(stream, dtype, ranges, sums);
  }
  return cpu::SquareSums(stream, dtype, ranges, sums);
}

void Accumulate(const device::Stream& stream, Dtype dtype, std::int64_t count, const void* from,
                void* to) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::Accumulate(stream, dtype, count, from, to);
  }
  return cpu::Accumulate(stream, dtype, count, from, to);
}

std::unique_ptr<Products> MakeProducts(const device::Stream& stream, int sites) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::MakeProducts(stream, sites);
  }
  return nullptr;
}

std::string GpuMathLibraries() {
  if constexpr (kCuda) return cuda::GpuMathLibraries();
  return "";
}

std::int64_t AttentionScratch(const device::Stream& stream, const AttentionShape& shape,
                              Dtype dtype, bool dropout) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::AttentionScratch(stream, shape, dtype, dropout);
  }
  return AttentionScratch(shape, stream.threads);
}

std::int64_t AttentionPartScratch(const device::Stream& stream, const AttentionShape& shape,
                                  std::int64_t most_keys) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::AttentionPartScratch(stream, shape, most_keys);
  }
  return AttentionPartScratch(shape, most_keys, stream.threads);
}

std::int64_t VocabularyScratch(const device::Stream& stream, std::int64_t rows, std::int64_t slice,
                               std::int64_t dim, bool gradient) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::VocabularyScratch(stream, rows, slice, dim, gradient);
  }
  return VocabularyScratch(rows, slice, dim, stream.threads, gradient);
}

std::int64_t VocabularySpareRows(const device::Stream& stream, std::int64_t slice) {
  if (!stream.OnGpu()) return 0;
  return CeilDivide(slice, kVocabularyUnit) * kVocabularyUnit - slice;
}

std::int64_t VocabularyTileTokens(const device::Stream& stream, std::int64_t rows,
                                  std::int64_t slice, Dtype dtype) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::VocabularyTileTokens(stream, rows, slice, dtype);
  }
  return std::min(kVocabularyTileTokens, rows);
}

void Convert(const device::Stream& stream, std::int64_t count, Dtype from_type, const void* from,
             Dtype to_type, void* to) {
  if constexpr (kCuda) {
    if (stream.OnGpu()) return cuda::Convert(stream, count, from_type, from, to_type, to);
  }
  throw RunError("the CPU stores no bf16", "This is a bug in Trireme.");
}

}  // namespace trireme::kernels
