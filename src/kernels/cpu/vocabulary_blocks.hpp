// Cut of a slice of the vocabulary into parts and blocks, and the layout of a tile's scratch.
#ifndef TRIREME_SRC_KERNELS_CPU_VOCABULARY_BLOCKS_HPP_
#define TRIREME_SRC_KERNELS_CPU_VOCABULARY_BLOCKS_HPP_

#include <algorithm>
#include <cstdint>

#include "trireme/base/partition.hpp"
#include "trireme/kernels/cross_entropy.hpp"

namespace trireme::kernels {

// Cut of a slice into parts, one per thread, and of parts into blocks.
class VocabularyCut {
 public:
  VocabularyCut(std::int64_t slice, std::int64_t dim, int threads)
      : slice_(slice),
        units_(CeilDivide(slice, kUnit)),
        width_(std::clamp(4 * RoundUp(dim), kNarrowest, kWidest)),
        parts_(static_cast<int>(std::clamp<std::int64_t>(units_, 1, threads))) {}

  static std::int64_t RoundUp(std::int64_t n) { return CeilDivide(n, kUnit) * kUnit; }
  std::int64_t Slice() const { return slice_; }
  std::int64_t Columns() const { return units_ * kUnit; }  // of the slice, rounded up
  int Parts() const { return parts_; }                     // none is empty
  Part ColumnsOf(int part) const {
    const Part range = PartOf(units_, part, parts_);
    return {range.begin * kUnit, std::min(range.end * kUnit, slice_)};
  }
  // Largest number of blocks of a part.
  std::int64_t Blocks() const { return CeilDivide(LargestPart(), width_); }
  std::int64_t Width() const { return std::min(width_, LargestPart()); }

  // Calls body(block, columns) for each block of a part; blocks are numbered over all parts and of
  // nearly equal width.
  template <typename Body>
  void ForBlocks(int part, Body body) const {
    const Part columns = ColumnsOf(part);
    const std::int64_t blocks = std::max<std::int64_t>(CeilDivide(columns.Size(), width_), 1);
    const std::int64_t width = RoundUp(CeilDivide(columns.Size(), blocks));
    std::int64_t block = part * Blocks();
    for (std::int64_t begin = columns.begin; begin < columns.end; begin += width) {
      body(block++, Part{begin, std::min(begin + width, columns.end)});
    }
  }

 private:
  static constexpr std::int64_t kUnit = 32;  // rows of blocks start on boundaries of 128 bytes
  // 512 tokens of a narrowest block fill a core's cache of 1 MiB. The wider dim, the wider a block
  // has to be to outweigh what its products do again: packing x, reading and writing the sums.
  static constexpr std::int64_t kNarrowest = 512, kWidest = 4096;

  std::int64_t LargestPart() const { return CeilDivide(units_, parts_) * kUnit; }

  std::int64_t slice_, units_, width_;
  int parts_;
};

// Offsets in the scratch, in elements.
struct VocabularyLayout {
  std::int64_t statistics = 0;  // fp64 [parts, rows, 4]
  std::int64_t log_sums = 0;    // fp64 [rows]: ln of the sum of exp(logit)
  std::int64_t pulls = 0;       // fp64 [rows]: p[target] - (1 - smoothing)
  std::int64_t references =
      0;  // [parts, blocks, rows]: logits that a block's exponentials are relative to
  std::int64_t sums = 0;    // [parts, rows, dim]: of exponentials times W
  std::int64_t scaled = 0;  // [parts, rows, dim]: x exp(reference - log_sum)
  std::int64_t totals = 0;  // [parts + 1, dim]: sums of W, and of x
  std::int64_t exps = 0;    // [rows, width] for every block, or one per part
  std::int64_t size = 0;

  VocabularyLayout(const VocabularyCut& cut, std::int64_t rows, std::int64_t dim, bool gradient) {
    const auto take = [this](std::int64_t elements) {
      const std::int64_t at = size;
      size += VocabularyCut::RoundUp(elements);
      return at;
    };
    constexpr std::int64_t kDouble = 2;  // elements at most
    statistics = take(kDouble * cut.Parts() * rows * kSoftmaxStatistics);
    if (!gradient) {
      exps = take(rows * cut.Parts() * cut.Width());
      return;
    }
    log_sums = take(kDouble * rows);
    pulls = take(kDouble * rows);
    references = take(cut.Parts() * cut.Blocks() * rows);
    sums = take(cut.Parts() * rows * dim);
    scaled = take(cut.Parts() * rows * dim);
    totals = take((cut.Parts() + 1) * dim);
    exps = take(rows * cut.Columns());
  }
};

}  // namespace trireme::kernels

#endif  // TRIREME_SRC_KERNELS_CPU_VOCABULARY_BLOCKS_HPP_
