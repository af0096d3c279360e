// Public kernels: each calls the function of its name in the table of the stream's back end. The
// only place in this folder that knows whether CUDA was built.
#include "backends.hpp"

namespace trireme::kernels {

namespace {

constexpr bool kCuda = TRIREME_CUDA != 0;

const Backend& BackendOf(const device::Stream& stream) {
  switch (stream.Where()) {
    case device::Kind::kPlanned:
      return kPlannedBackend;
    case device::Kind::kCuda:
      if constexpr (kCuda) return kCudaBackend;
      break;
    case device::Kind::kCpu:
      break;
  }
  return kCpuBackend;
}

}  // namespace

void MatrixMultiply(const device::Stream& stream, Form form_a, const tensor::Matrix& a, Form form_b,
                    const tensor::Matrix& b, const tensor::Matrix& c, bool accumulate) {
  BackendOf(stream).MatrixMultiply(stream, form_a, a, form_b, b, c, accumulate);
}

void MatrixMultiply(const device::Stream& stream, Form form_a, const tensor::Matrix& a, Form form_b,
                    const tensor::Matrix& b, const tensor::Matrix& c, bool accumulate,
                    FunctionRef<void(const Part& rows)> then) {
  BackendOf(stream).MatrixMultiplyThen(stream, form_a, a, form_b, b, c, accumulate, then);
}

void LinearForward(const device::Stream& stream, const Linear& linear, const tensor::Matrix& x,
                   const tensor::Matrix& bias, const tensor::Matrix& y,
                   FunctionRef<void(const Part& rows)> then) {
  BackendOf(stream).LinearForward(stream, linear, x, bias, y, then);
}

void LinearActivation(const device::Stream& stream, const Linear& linear, const tensor::Matrix& x,
                      const tensor::Matrix& bias, ActivationKind kind, const Dropout& dropout,
                      const tensor::Matrix& pre, const tensor::Matrix& out) {
  BackendOf(stream).LinearActivation(stream, linear, x, bias, kind, dropout, pre, out);
}

void LinearInputGradient(const device::Stream& stream, const Linear& linear,
                         const tensor::Matrix& dy, const tensor::Matrix& dx) {
  BackendOf(stream).LinearInputGradient(stream, linear, dy, dx);
}

void LinearActivationGradient(const device::Stream& stream, const Linear& linear,
                              const tensor::Matrix& dy, ActivationKind kind,
                              const tensor::Matrix& from, const Dropout& dropout,
                              const tensor::Matrix& dhidden, const tensor::Matrix& dpre) {
  BackendOf(stream).LinearActivationGradient(stream, linear, dy, kind, from, dropout, dhidden,
                                             dpre);
}

void LinearWeightGradient(const device::Stream& stream, const Linear& linear,
                          const tensor::Matrix& x, const tensor::Matrix& dy,
                          const tensor::Matrix& dweight) {
  BackendOf(stream).LinearWeightGradient(stream, linear, x, dy, dweight);
}

void AddBias(const device::Stream& stream, const tensor::Matrix& x, const tensor::Matrix& bias) {
  BackendOf(stream).AddBias(stream, x, bias);
}

void ResidualForward(const device::Stream& stream, const tensor::Matrix& residual,
                     const tensor::Matrix& branch, const tensor::Matrix& bias,
                     const Dropout& dropout, const tensor::Matrix& out) {
  BackendOf(stream).ResidualForward(stream, residual, branch, bias, dropout, out);
}

void Clear(const device::Stream& stream, const tensor::Matrix& x) {
  BackendOf(stream).Clear(stream, x);
}

void Copy(const device::Stream& stream, const tensor::Matrix& x, const tensor::Matrix& y) {
  BackendOf(stream).Copy(stream, x, y);
}

void Add(const device::Stream& stream, const tensor::Matrix& x, const tensor::Matrix& y) {
  BackendOf(stream).Add(stream, x, y);
}

void ActivationForward(const device::Stream& stream, ActivationKind kind, const tensor::Matrix& pre,
                       const tensor::Matrix& bias, const Dropout& dropout,
                       const tensor::Matrix& out) {
  BackendOf(stream).ActivationForward(stream, kind, pre, bias, dropout, out);
}

void ActivationBackward(const device::Stream& stream, ActivationKind kind,
                        const tensor::Matrix& pre, const Dropout& dropout,
                        const tensor::Matrix& dout, const tensor::Matrix& dpre) {
  BackendOf(stream).ActivationBackward(stream, kind, pre, dropout, dout, dpre);
}

void DropoutForward(const device::Stream& stream, const tensor::Matrix& x, const Dropout& dropout,
                    const tensor::Matrix& out) {
  BackendOf(stream).DropoutForward(stream, x, dropout, out);
}

void EmbeddingForward(const device::Stream& stream, const std::int32_t* tokens, std::int32_t first,
                      const tensor::Matrix& weight, double scale, const tensor::Matrix& out) {
  BackendOf(stream).EmbeddingForward(stream, tokens, first, weight, scale, out);
}

void EmbeddingBackward(const device::Stream& stream, const std::int32_t* tokens, std::int32_t first,
                       double scale, const tensor::Matrix& dout, const tensor::Matrix& dweight) {
  BackendOf(stream).EmbeddingBackward(stream, tokens, first, scale, dout, dweight);
}

void PositionForward(const device::Stream& stream, const tensor::Matrix& positions,
                     const std::int32_t* begins, const Dropout& dropout, const tensor::Matrix& x) {
  BackendOf(stream).PositionForward(stream, positions, begins, dropout, x);
}

void PositionBackward(const device::Stream& stream, const std::int32_t* begins,
                      const Dropout& dropout, const tensor::Matrix& dout,
                      const tensor::Matrix& dpositions) {
  BackendOf(stream).PositionBackward(stream, begins, dropout, dout, dpositions);
}

void NormForward(const device::Stream& stream, NormKind kind, const tensor::Matrix& x,
                 const tensor::Matrix& weight, const tensor::Matrix& bias, double epsilon,
                 const tensor::Matrix& y, const tensor::Matrix& statistics) {
  BackendOf(stream).NormForward(stream, kind, x, weight, bias, epsilon, y, statistics);
}

void ResidualNormForward(const device::Stream& stream, NormKind kind,
                         const tensor::Matrix& residual, const tensor::Matrix& branch,
                         const tensor::Matrix& bias, const Dropout& dropout,
                         const tensor::Matrix& sum, const tensor::Matrix& weight,
                         const tensor::Matrix& norm_bias, double epsilon, const tensor::Matrix& y,
                         const tensor::Matrix& statistics) {
  BackendOf(stream).ResidualNormForward(stream, kind, residual, branch, bias, dropout, sum, weight,
                                        norm_bias, epsilon, y, statistics);
}

void NormBackward(const device::Stream& stream, const NormBackwardPass& pass) {
  BackendOf(stream).NormBackward(stream, pass);
}

void ColumnSum(const device::Stream& stream, const tensor::Matrix& x, const tensor::Matrix& sums,
               const tensor::Matrix& scratch) {
  BackendOf(stream).ColumnSum(stream, x, sums, scratch);
}

void AttentionForward(const device::Stream& stream, const AttentionShape& shape,
                      const tensor::Matrix& qkv, const Dropout& dropout, const tensor::Matrix& out,
                      const tensor::Matrix& lse, const tensor::Matrix& scratch) {
  BackendOf(stream).AttentionForward(stream, shape, qkv, dropout, out, lse, scratch);
}

void AttentionBackward(const device::Stream& stream, const AttentionShape& shape,
                       const tensor::Matrix& qkv, const Dropout& dropout, const tensor::Matrix& out,
                       const tensor::Matrix& dout, const tensor::Matrix& lse,
                       const tensor::Matrix& dqkv, const tensor::Matrix& scratch) {
  BackendOf(stream).AttentionBackward(stream, shape, qkv, dropout, out, dout, lse, dqkv, scratch);
}

void Rope(const device::Stream& stream, const AttentionShape& shape, const tensor::Matrix& table,
          bool inverse, const tensor::Matrix& qkv) {
  BackendOf(stream).Rope(stream, shape, table, inverse, qkv);
}

std::int64_t KeyValueElements(const device::Stream& stream, const AttentionShape& shape,
                              std::int64_t positions) {
  return BackendOf(stream).KeyValueElements(stream, shape, positions);
}

void KeepKeyValues(const device::Stream& stream, const AttentionShape& shape,
                   const tensor::Matrix& key_values, const CachedRows& rows,
                   const KeyValueCache& cache) {
  BackendOf(stream).KeepKeyValues(stream, shape, key_values, rows, cache);
}

void CopyKeyValues(const device::Stream& stream, const AttentionShape& shape, const SlotCopy& copy,
                   const KeyValueCache& cache) {
  BackendOf(stream).CopyKeyValues(stream, shape, copy, cache);
}

void CachedAttention(const device::Stream& stream, const AttentionShape& shape,
                     const tensor::Matrix& qkv, const CachedRows& rows, const KeyValueCache& cache,
                     const tensor::Matrix& out) {
  BackendOf(stream).CachedAttention(stream, shape, qkv, rows, cache, out);
}

void AttentionPartStart(const device::Stream& stream, const tensor::Matrix& out,
                        const tensor::Matrix& lse) {
  BackendOf(stream).AttentionPartStart(stream, out, lse);
}

void AttentionPartForward(const device::Stream& stream, const AttentionShape& shape,
                          const Part& tasks, const tensor::Matrix& qkv, const KeyValueBlock& block,
                          const Dropout& dropout, const tensor::Matrix& out,
                          const tensor::Matrix& lse, const tensor::Matrix& scratch) {
  BackendOf(stream).AttentionPartForward(stream, shape, tasks, qkv, block, dropout, out, lse,
                                         scratch);
}

void AttentionPartStartBackward(const device::Stream& stream, const AttentionShape& shape,
                                const tensor::Matrix& dqkv) {
  BackendOf(stream).AttentionPartStartBackward(stream, shape, dqkv);
}

void AttentionPartBackward(const device::Stream& stream, const AttentionShape& shape,
                           const Part& tasks, const tensor::Matrix& qkv, const KeyValueBlock& block,
                           const Dropout& dropout, const tensor::Matrix& out,
                           const tensor::Matrix& dout, const tensor::Matrix& lse,
                           const tensor::Matrix& dqkv, const tensor::Matrix& dblock,
                           const tensor::Matrix& scratch) {
  BackendOf(stream).AttentionPartBackward(stream, shape, tasks, qkv, block, dropout, out, dout, lse,
                                          dqkv, dblock, scratch);
}

void VocabularyStatistics(const device::Stream& stream, const VocabularyTile& tile,
                          const tensor::Matrix& scratch, double* statistics) {
  BackendOf(stream).VocabularyStatistics(stream, tile, scratch, statistics);
}

void VocabularyLosses(const device::Stream& stream, const VocabularyTile& tile,
                      const double* statistics, int parts, double* losses) {
  BackendOf(stream).VocabularyLosses(stream, tile, statistics, parts, losses);
}

void VocabularyGradient(const device::Stream& stream, const VocabularyTile& tile,
                        const tensor::Matrix& scratch, const double* statistics, int parts,
                        const tensor::Matrix& dx, const tensor::Matrix& dweight) {
  BackendOf(stream).VocabularyGradient(stream, tile, scratch, statistics, parts, dx, dweight);
}

void AdamW(const device::Stream& stream, Dtype dtype, std::span<const UpdateRange> ranges,
           const UpdateScalars* scalars, bool clear) {
  BackendOf(stream).AdamW(stream, dtype, ranges, scalars, clear);
}

void GradientDescent(const device::Stream& stream, Dtype dtype, std::span<const UpdateRange> ranges,
                     const UpdateScalars* scalars, bool clear) {
  BackendOf(stream).GradientDescent(stream, dtype, ranges, scalars, clear);
}

double SquareSum(const device::Stream& stream, Dtype dtype, std::span<const FlatRange> ranges) {
  return BackendOf(stream).SquareSum(stream, dtype, ranges);
}

void SquareSums(const device::Stream& stream, Dtype dtype, std::span<const FlatRange> ranges,
                double* sums) {
  BackendOf(stream).SquareSums(stream, dtype, ranges, sums);
}

void Accumulate(const device::Stream& stream, Dtype dtype, std::int64_t count, const void* from,
                void* to) {
  BackendOf(stream).Accumulate(stream, dtype, count, from, to);
}

void NormBackwardInput(const device::Stream& stream, NormKind kind, const tensor::Matrix& dy,
                       const tensor::Matrix& x, const tensor::Matrix& weight,
                       const tensor::Matrix& statistics, const tensor::Matrix& dx,
                       bool accumulate) {
  BackendOf(stream).NormBackwardInput(stream, kind, dy, x, weight, statistics, dx, accumulate);
}

void NormBackwardWeight(const device::Stream& stream, const tensor::Matrix& dy,
                        const tensor::Matrix& x, const tensor::Matrix& statistics,
                        const tensor::Matrix& dweight, const tensor::Matrix& dbias,
                        const tensor::Matrix& scratch) {
  BackendOf(stream).NormBackwardWeight(stream, dy, x, statistics, dweight, dbias, scratch);
}

void CrossEntropy(const device::Stream& stream, const tensor::Matrix& logits,
                  const std::int32_t* targets, double smoothing, bool gradient, double* losses) {
  BackendOf(stream).CrossEntropy(stream, logits, targets, smoothing, gradient, losses);
}

void SoftmaxStatistics(const device::Stream& stream, const tensor::Matrix& logits,
                       const std::int32_t* targets, std::int32_t first, double* statistics) {
  BackendOf(stream).SoftmaxStatistics(stream, logits, targets, first, statistics);
}

void CrossEntropySlice(const device::Stream& stream, const tensor::Matrix& logits,
                       const std::int32_t* targets, std::int32_t first, std::int64_t vocabulary,
                       double smoothing, bool gradient, const double* statistics, int parts,
                       int part, double* losses) {
  BackendOf(stream).CrossEntropySlice(stream, logits, targets, first, vocabulary, smoothing,
                                      gradient, statistics, parts, part, losses);
}

void ExactSquareSum(const device::Stream& stream, Dtype dtype, std::span<const FlatRange> ranges,
                    ExactSum& sum) {
  BackendOf(stream).ExactSquareSum(stream, dtype, ranges, sum);
}

void Convert(const device::Stream& stream, std::int64_t count, Dtype from_type, const void* from,
             Dtype to_type, void* to) {
  BackendOf(stream).Convert(stream, count, from_type, from, to_type, to);
}

std::int64_t AttentionScratch(const device::Stream& stream, const AttentionShape& shape,
                              Dtype dtype, bool dropout) {
  return BackendOf(stream).AttentionScratch(stream, shape, dtype, dropout);
}

std::int64_t AttentionPartScratch(const device::Stream& stream, const AttentionShape& shape,
                                  std::int64_t most_keys, Dtype dtype, bool dropout) {
  return BackendOf(stream).AttentionPartScratch(stream, shape, most_keys, dtype, dropout);
}

std::int64_t AttentionPartHalf(const device::Stream& stream, const AttentionShape& shape) {
  std::int64_t unit = stream.threads;
  if (stream.OnGpu()) unit = shape.sequences > 1 ? shape.kv_heads : 1;
  const std::int64_t all = AttentionPartTasks(shape), half = CeilDivide(all, std::int64_t{2});
  return std::min(all, CeilDivide(half, unit) * unit);
}

std::int64_t VocabularyScratch(const device::Stream& stream, std::int64_t rows, std::int64_t slice,
                               std::int64_t dim, bool gradient) {
  return BackendOf(stream).VocabularyScratch(stream, rows, slice, dim, gradient);
}

std::int64_t VocabularyTileTokens(const device::Stream& stream, std::int64_t rows,
                                  std::int64_t slice, Dtype dtype) {
  return BackendOf(stream).VocabularyTileTokens(stream, rows, slice, dtype);
}

std::int64_t VocabularySpareRows(const device::Stream& stream, std::int64_t slice) {
  if (!stream.OnGpu()) return 0;
  return CeilDivide(slice, kVocabularyUnit) * kVocabularyUnit - slice;
}

std::unique_ptr<Libraries> MakeLibraries(const device::Stream& stream, int sites) {
  return BackendOf(stream).MakeLibraries(stream, sites);
}

std::string WhyNoCudnn() {
  if constexpr (kCuda) return cuda::WhyNoCudnn();
  return "this program was built without CUDA";
}

std::string WhyNoFixedOrder(const device::Stream& stream, std::int64_t length) {
  if constexpr (kCuda) return cuda::WhyNoFixedOrder(stream, length);
  return "";
}

std::string GpuMathLibraries() {
  if constexpr (kCuda) return cuda::GpuMathLibraries();
  return "";
}

}  // namespace trireme::kernels
