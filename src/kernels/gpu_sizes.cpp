// Memory sizes of our own GPU kernels.
#include "backends.hpp"

#include <algorithm>
#include <string>

#include "trireme/base/error.hpp"

namespace trireme::kernels {

void gpu::CheckHeadDim(const AttentionShape& shape) {
  if (shape.head_dim <= kMostHeadDim) return;
  throw RunError("attention on a GPU: heads of " + std::to_string(shape.head_dim) +
                     " are wider than " + std::to_string(kMostHeadDim),
                 "Choose more heads (model.heads) or a smaller model.head_dim.");
}

std::int64_t gpu::AttentionDelta(const AttentionShape& shape) {
  constexpr std::int64_t kUnit = 32;  // elements: parts of scratch are aligned to 128 bytes
  return CeilDivide(shape.sequences * shape.length * shape.heads, kUnit) * kUnit;
}

std::int64_t gpu::LogitStride(std::int64_t slice) {
  return CeilDivide(slice, kVocabularyUnit) * kVocabularyUnit;
}

bool gpu::LogitsReadOnce(const VocabularyTile& tile) {
  const std::int64_t bytes = tile.weight.rows * static_cast<std::int64_t>(SizeOf(tile.x.dtype));
  return tile.gradient && tile.weight.rows == tile.vocabulary && bytes <= kLogitsOfBlock;
}

std::int64_t gpu::CachedRow(std::int64_t head_dim) {
  constexpr std::int64_t kUnit = 8;  // elements: 16 bytes in bf16
  return CeilDivide(head_dim, kUnit) * kUnit;
}

std::int64_t gpu::CachedPiece(std::int64_t positions) {
  // Enough pieces to occupy a card with one sequence, each large enough to be worth a block.
  constexpr std::int64_t kMostPieces = 32, kLeast = 256, kTile = 64;
  return std::max(kLeast, CeilDivide(CeilDivide(positions, kMostPieces), kTile) * kTile);
}

std::int64_t gpu::KeyValueElements(const device::Stream&, const AttentionShape& shape,
                                   std::int64_t positions) {
  constexpr std::int64_t kSums = 2;  // an fp32 sum takes the room of two bf16 elements
  const std::int64_t row = CachedRow(shape.head_dim);
  const std::int64_t pieces = CeilDivide(positions, CachedPiece(positions));
  const std::int64_t parts = pieces > 1 ? kSums * shape.heads * pieces * (row + kCachedExtra) : 0;
  return 2 * shape.kv_heads * positions * row + parts;
}

std::int64_t gpu::Fp8ScaleBytes(int sites) {
  constexpr std::int64_t kNumbers = 2 + kFp8InverseStep, kBytes = 4;
  return kNumbers * kBytes * (std::int64_t{sites} + kFp8Places) * kFp8Roles;
}

std::int64_t gpu::Fp8WeightElements(const Linear& linear) {
  const Matrix& weight = linear.weight;
  const bool fits = weight.rows % kFp8Unit == 0 && weight.columns % kFp8Unit == 0;
  return linear.site >= 0 && fits ? 2 * weight.Size() : 0;
}

std::int64_t KeptWeightBytes(std::span<const Linear> layers) {
  std::int64_t bytes = 0;
  for (const Linear& linear : layers) bytes += gpu::Fp8WeightElements(linear);
  return bytes;
}

std::int64_t gpu::AttentionScratch(const device::Stream&, const AttentionShape& shape, Dtype,
                                   bool) {
  CheckHeadDim(shape);
  return AttentionDelta(shape);
}

std::int64_t gpu::AttentionPartScratch(const device::Stream&, const AttentionShape& shape,
                                       std::int64_t, Dtype, bool) {
  CheckHeadDim(shape);
  return AttentionDelta(shape) + shape.sequences * shape.length * shape.heads * shape.head_dim;
}

std::int64_t gpu::VocabularyScratch(const device::Stream&, std::int64_t rows, std::int64_t slice,
                                    std::int64_t, bool) {
  return rows * LogitStride(slice);
}

std::int64_t gpu::VocabularyTileTokens(const device::Stream&, std::int64_t rows, std::int64_t slice,
                                       Dtype dtype) {
  // Beyond some thousand rows products gain no speed; half a gigabyte of logits is a small part of
  // any card's memory.
  constexpr std::int64_t kMostBytes = std::int64_t{512} << 20, kUnit = 128, kMost = 8192;
  const std::int64_t row_bytes =
      std::max<std::int64_t>(1, LogitStride(slice)) * static_cast<std::int64_t>(SizeOf(dtype));
  const std::int64_t most = std::clamp(kMostBytes / row_bytes / kUnit * kUnit, kUnit, kMost);
  if (rows <= most) return rows;
  const std::int64_t even = CeilDivide(rows, CeilDivide(rows, most));
  return CeilDivide(even, kUnit) * kUnit;
}

}  // namespace trireme::kernels
