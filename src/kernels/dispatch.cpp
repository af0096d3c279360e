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

void MatrixMultiply(const device::Stream& stream, Form form_a, const Matrix& a, Form form_b,
                    const Matrix& b, const Matrix& c, bool accumulate) {
  BackendOf(stream).MatrixMultiply(stream, form_a, a, form_b, b, c, accumulate);
}

void MatrixMultiply(const device::Stream& stream, Form form_a, const Matrix& a, Form form_b,
                    const Matrix& b, const Matrix& c, bool accumulate,
                    FunctionRef<void(const Part& rows)> then) {
  BackendOf(stream).MatrixMultiplyThen(stream, form_a, a, form_b, b, c, accumulate, then);
}

void LinearForward(const device::Stream& stream, const Linear& linear, const Matrix& x,
                   const Matrix& bias, const Matrix& y, FunctionRef<void(const Part& rows)> then) {
  BackendOf(stream).LinearForward(stream, linear, x, bias, y, then);
}

void LinearActivation(const device::Stream& stream, const Linear& linear, const Matrix& x,
                      const Matrix& bias, ActivationKind kind, const Dropout& dropout,
                      const Matrix& pre, const Matrix& out) {
  BackendOf(stream).LinearActivation(stream, linear, x, bias, kind, dropout, pre, out);
}

void LinearInputGradient(const device::Stream& stream, const Linear& linear, const Matrix& dy,
                         const Matrix& dx) {
  BackendOf(stream).LinearInputGradient(stream, linear, dy, dx);
}

void LinearActivationGradient(const device::Stream& stream, const Linear& linear, const Matrix& dy,
                              ActivationKind kind, const Matrix& from, const Dropout& dropout,
                              const Matrix& dhidden, const Matrix& dpre) {
  BackendOf(stream).LinearActivationGradient(stream, linear, dy, kind, from, dropout, dhidden,
                                             dpre);
}

void LinearWeightGradient(const device::Stream& stream, const Linear& linear, const Matrix& x,
                          const Matrix& dy, const Matrix& dweight) {
  BackendOf(stream).LinearWeightGradient(stream, linear, x, dy, dweight);
}

void AddBias(const device::Stream& stream, const Matrix& x, const Matrix& bias) {
  BackendOf(stream).AddBias(stream, x, bias);
}

void ResidualForward(const device::Stream& stream, const Matrix& residual, const Matrix& branch,
                     const Matrix& bias, const Dropout& dropout, const Matrix& out) {
  BackendOf(stream).ResidualForward(stream, residual, branch, bias, dropout, out);
}

void Clear(const device::Stream& stream, const Matrix& x) { BackendOf(stream).Clear(stream, x); }

void Copy(const device::Stream& stream, const Matrix& x, const Matrix& y) {
  BackendOf(stream).Copy(stream, x, y);
}

void Add(const device::Stream& stream, const Matrix& x, const Matrix& y) {
  BackendOf(stream).Add(stream, x, y);
}

void ActivationForward(const device::Stream& stream, ActivationKind kind, const Matrix& pre,
                       const Matrix& bias, const Dropout& dropout, const Matrix& out) {
  BackendOf(stream).ActivationForward(stream, kind, pre, bias, dropout, out);
}

void ActivationBackward(const device::Stream& stream, ActivationKind kind, const Matrix& pre,
                        const Dropout& dropout, const Matrix& dout, const Matrix& dpre) {
  BackendOf(stream).ActivationBackward(stream, kind, pre, dropout, dout, dpre);
}

void DropoutForward(const device::Stream& stream, const Matrix& x, const Dropout& dropout,
                    const Matrix& out) {
  BackendOf(stream).DropoutForward(stream, x, dropout, out);
}

void EmbeddingForward(const device::Stream& stream, const std::int32_t* tokens, std::int32_t first,
                      const Matrix& weight, double scale, const Matrix& out) {
  BackendOf(stream).EmbeddingForward(stream, tokens, first, weight, scale, out);
}

void EmbeddingBackward(const device::Stream& stream, const std::int32_t* tokens, std::int32_t first,
                       double scale, const Matrix& dout, const Matrix& dweight) {
  BackendOf(stream).EmbeddingBackward(stream, tokens, first, scale, dout, dweight);
}

void PositionForward(const device::Stream& stream, const Matrix& positions,
                     const std::int32_t* begins, const Dropout& dropout, const Matrix& x) {
  BackendOf(stream).PositionForward(stream, positions, begins, dropout, x);
}

void PositionBackward(const device::Stream& stream, const std::int32_t* begins,
                      const Dropout& dropout, const Matrix& dout, const Matrix& dpositions) {
  BackendOf(stream).PositionBackward(stream, begins, dropout, dout, dpositions);
}

void NormForward(const device::Stream& stream, NormKind kind, const Matrix& x, const Matrix& weight,
                 const Matrix& bias, double epsilon, const Matrix& y, const Matrix& statistics) {
  BackendOf(stream).NormForward(stream, kind, x, weight, bias, epsilon, y, statistics);
}

void ResidualNormForward(const device::Stream& stream, NormKind kind, const Matrix& residual,
                         const Matrix& branch, const Matrix& bias, const Dropout& dropout,
                         const Matrix& sum, const Matrix& weight, const Matrix& norm_bias,
                         double epsilon, const Matrix& y, const Matrix& statistics) {
  BackendOf(stream).ResidualNormForward(stream, kind, residual, branch, bias, dropout, sum, weight,
                                        norm_bias, epsilon, y, statistics);
}

void NormBackward(const device::Stream& stream, const NormBackwardPass& pass) {
  BackendOf(stream).NormBackward(stream, pass);
}

void ColumnSum(const device::Stream& stream, const Matrix& x, const Matrix& sums,
               const Matrix& scratch) {
  BackendOf(stream).ColumnSum(stream, x, sums, scratch);
}

void AttentionForward(const device::Stream& stream, const AttentionShape& shape, const Matrix& qkv,
                      const Dropout& dropout, const Matrix& out, const Matrix& lse,
                      const Matrix& scratch) {
  BackendOf(stream).AttentionForward(stream, shape, qkv, dropout, out, lse, scratch);
}

void AttentionBackward(const device::Stream& stream, const AttentionShape& shape, const Matrix& qkv,
                       const Dropout& dropout, const Matrix& out, const Matrix& dout,
                       const Matrix& lse, const Matrix& dqkv, const Matrix& scratch) {
  BackendOf(stream).AttentionBackward(stream, shape, qkv, dropout, out, dout, lse, dqkv, scratch);
}

void Rope(const device::Stream& stream, const AttentionShape& shape, const Matrix& table,
          bool inverse, const Matrix& qkv) {
  BackendOf(stream).Rope(stream, shape, table, inverse, qkv);
}

std::int64_t KeyValueElements(const device::Stream& stream, const AttentionShape& shape,
                              std::int64_t positions) {
  return BackendOf(stream).KeyValueElements(stream, shape, positions);
}

void KeepKeyValues(const device::Stream& stream, const AttentionShape& shape,
                   const Matrix& key_values, const CachedRows& rows, const KeyValueCache& cache) {
  BackendOf(stream).KeepKeyValues(stream, shape, key_values, rows, cache);
}

void CopyKeyValues(const device::Stream& stream, const AttentionShape& shape, const SlotCopy& copy,
                   const KeyValueCache& cache) {
  BackendOf(stream).CopyKeyValues(stream, shape, copy, cache);
}

void CachedAttention(const device::Stream& stream, const AttentionShape& shape, const Matrix& qkv,
                     const CachedRows& rows, const KeyValueCache& cache, const Matrix& out) {
  BackendOf(stream).CachedAttention(stream, shape, qkv, rows, cache, out);
}

void AttentionPartStart(const device::Stream& stream, const Matrix& out, const Matrix& lse) {
  BackendOf(stream).AttentionPartStart(stream, out, lse);
}

void AttentionPartForward(const device::Stream& stream, const AttentionShape& shape,
                          const Part& tasks, const Matrix& qkv, const KeyValueBlock& block,
                          const Dropout& dropout, const Matrix& out, const Matrix& lse,
                          const Matrix& scratch) {
  BackendOf(stream).AttentionPartForward(stream, shape, tasks, qkv, block, dropout, out, lse,
                                         scratch);
}

void AttentionPartStartBackward(const device::Stream& stream, const AttentionShape& shape,
                                const Matrix& dqkv, const Matrix& scratch) {
  BackendOf(stream).AttentionPartStartBackward(stream, shape, dqkv, scratch);
}

void AttentionPartBackward(const device::Stream& stream, const AttentionShape& shape,
                           const Part& tasks, const Matrix& qkv, const KeyValueBlock& block,
                           const Dropout& dropout, const Matrix& out, const Matrix& dout,
                           const Matrix& lse, const Matrix& dqkv, const Matrix& dblock,
                           const Matrix& scratch) {
  BackendOf(stream).AttentionPartBackward(stream, shape, tasks, qkv, block, dropout, out, dout, lse,
                                          dqkv, dblock, scratch);
}

void VocabularyStatistics(const device::Stream& stream, const VocabularyTile& tile,
                          const Matrix& scratch, double* statistics) {
  BackendOf(stream).VocabularyStatistics(stream, tile, scratch, statistics);
}

void VocabularyLosses(const device::Stream& stream, const VocabularyTile& tile,
                      const double* statistics, int parts, double* losses) {
  BackendOf(stream).VocabularyLosses(stream, tile, statistics, parts, losses);
}

void VocabularyGradient(const device::Stream& stream, const VocabularyTile& tile,
                        const Matrix& scratch, const double* statistics, int parts,
                        const Matrix& dx, const Matrix& dweight) {
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

void NormBackwardInput(const device::Stream& stream, NormKind kind, const Matrix& dy,
                       const Matrix& x, const Matrix& weight, const Matrix& statistics,
                       const Matrix& dx, bool accumulate) {
  BackendOf(stream).NormBackwardInput(stream, kind, dy, x, weight, statistics, dx, accumulate);
}

void NormBackwardWeight(const device::Stream& stream, const Matrix& dy, const Matrix& x,
                        const Matrix& statistics, const Matrix& dweight, const Matrix& dbias,
                        const Matrix& scratch) {
  BackendOf(stream).NormBackwardWeight(stream, dy, x, statistics, dweight, dbias, scratch);
}

void CrossEntropy(const device::Stream& stream, const Matrix& logits, const std::int32_t* targets,
                  double smoothing, bool gradient, double* losses) {
  BackendOf(stream).CrossEntropy(stream, logits, targets, smoothing, gradient, losses);
}

void SoftmaxStatistics(const device::Stream& stream, const Matrix& logits,
                       const std::int32_t* targets, std::int32_t first, double* statistics) {
  BackendOf(stream).SoftmaxStatistics(stream, logits, targets, first, statistics);
}

void CrossEntropySlice(const device::Stream& stream, const Matrix& logits,
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
