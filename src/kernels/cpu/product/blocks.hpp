// Pieces of our own matrix product: its operands, the sizes of packed blocks, packing the right
// operand, and multiplying rows by a packed superblock.
#ifndef TRIREME_SRC_KERNELS_CPU_PRODUCT_BLOCKS_HPP_
#define TRIREME_SRC_KERNELS_CPU_PRODUCT_BLOCKS_HPP_

#include <omp.h>

#include <algorithm>
#include <type_traits>

#include "cpu/thread_scratch.hpp"
#include "multiply.hpp"

namespace trireme::kernels {

inline constexpr std::int64_t kRightBytes = 512
                                            << 10;  // a superblock: stays in the second-level cache
inline constexpr std::int64_t kLeftBytes = 336 * 256 * 4;  // a chunk of rows: a third of a 1 MiB L2
inline constexpr std::int64_t kSlack = 64;                 // words: a vector beyond the last panel
inline constexpr std::int64_t kLeastPerThread =
    64 * 64 * 64;  // multiply-adds worth waking a thread for

inline std::int64_t RoundUp(std::int64_t x, std::int64_t unit) {
  return (x + unit - 1) / unit * unit;
}

struct Range {
  std::int64_t begin, end;
};
inline Range ShareOf(std::int64_t count, std::int64_t parts, std::int64_t part) {
  return {count * part / parts, count * (part + 1) / parts};
}

template <typename Kernels>
struct Product {
  using T = typename Kernels::Scalar;
  const Kernels& kernels;
  ProductSource<T> left, right;  // lanes: rows of a, columns of b
  std::int64_t rows, columns, inner;
  T* c;
  std::int64_t stride;
  bool accumulate;
};

// Words of packed memory for `inner` inner indices.
template <typename Kernels>
std::int64_t WordsOf(std::int64_t inner) {
  return CeilDivide(inner, kInnerOfWord<typename Kernels::Word>);
}

template <typename T>
ProductSource<T> From(const ProductSource<T>& source, std::int64_t lane, std::int64_t k) {
  return {source.data + lane * source.lane_stride + k * source.inner_stride, source.lane_stride,
          source.inner_stride};
}

template <typename K>
Product<K> PieceOf(const Product<K>& p, Range rows, Range columns) {
  Product<K> piece = p;
  piece.left = From(p.left, rows.begin, 0);
  piece.right = From(p.right, columns.begin, 0);
  piece.rows = rows.end - rows.begin;
  piece.columns = columns.end - columns.begin;
  piece.c = p.c + rows.begin * p.stride + columns.begin;
  return piece;
}

template <typename T>
ProductSource<T> SourceOf(const Matrix& m, bool lanes_are_rows) {
  return {m.As<T>(), lanes_are_rows ? m.stride : 1, lanes_are_rows ? 1 : m.stride};
}

template <typename K>
Product<K> ProductOf(const K& kernels, Form form_a, const Matrix& a, Form form_b,
                     const Matrix& b, const Matrix& c, bool accumulate) {
  using T = typename K::Scalar;
  return {kernels,
          SourceOf<T>(a, form_a == Form::kPlain),
          SourceOf<T>(b, form_b == Form::kTransposed),
          c.rows,
          c.columns,
          form_a == Form::kPlain ? a.columns : a.rows,
          c.As<T>(),
          c.stride,
          accumulate};
}

// Number of threads for a product: at most the stream's, inside a parallel region 1.
template <typename K>
std::int64_t ThreadsOf(const device::Stream& stream, const Product<K>& p) {
  const std::int64_t useful =
      std::max<std::int64_t>(1, p.rows * p.columns * p.inner / kLeastPerThread);
  return omp_in_parallel() != 0 ? 1 : std::clamp<std::int64_t>(stream.threads, 1, useful);
}

// Sizes of the packed pieces.
template <typename K>
struct Blocks {
  std::int64_t wide, deep;  // a superblock of the right operand: columns, inner
  std::int64_t chunk;       // rows of the left one
  std::int64_t right_bytes, left_bytes;

  Blocks(const K& kernels, std::int64_t rows, std::int64_t columns, std::int64_t inner) {
    constexpr std::int64_t kSize = sizeof(typename K::Word);
    const std::int64_t words = kRightBytes / kSize, unit = kernels.columns;
    const std::int64_t block = WordsOf<K>(kernels.block),
                       shallow = std::min(WordsOf<K>(inner), block);
    wide = std::min(RoundUp(columns, unit), std::max(unit, words / shallow / unit * unit));
    deep = std::min(inner, std::max<std::int64_t>(1, words / wide / block) * kernels.block);
    const std::int64_t panels = CeilDivide(rows, kernels.rows);
    const std::int64_t most =
        std::max<std::int64_t>(1, kLeftBytes / (block * kSize) / kernels.rows);
    chunk = CeilDivide(panels, CeilDivide(panels, most)) * kernels.rows;
    right_bytes = RoundUp((wide * WordsOf<K>(deep) + kSlack) * kSize, kPage);
    left_bytes = RoundUp((chunk * shallow + kSlack) * kSize, kPage);
  }
};

// Packs this thread's share of a superblock of the right operand: whole panels of whole inner
// blocks.
template <typename K>
void PackRight(const Product<K>& p, Range inner, Range columns, std::int64_t thread,
               std::int64_t threads, typename K::Word* packed) {
  const std::int64_t unit = p.kernels.columns, width = columns.end - columns.begin;
  const std::int64_t panels = CeilDivide(width, unit), deep = p.kernels.block;
  const std::int64_t blocks = CeilDivide(inner.end - inner.begin, deep);
  const Range share = ShareOf(blocks * panels, threads, thread);
  for (std::int64_t at = share.begin; at < share.end;) {
    const std::int64_t block = at / panels, panel = at % panels;
    const std::int64_t count = std::min(share.end - at, panels - panel);
    const std::int64_t k = inner.begin + block * deep;
    const std::int64_t depth = std::min(deep, inner.end - k);
    p.kernels.pack_right(
        From(p.right, columns.begin + panel * unit, k),
        std::min(count * unit, width - panel * unit), depth,
        packed + unit * (block * WordsOf<K>(deep) * panels + panel * WordsOf<K>(depth)));
    at += count;
  }
}

// Whether the left operand is multiplied unpacked: it meets few columns, hence is read few times,
// and its lines do not collide in the cache.
template <typename K>
bool AsItLies(const Product<K>& p, std::int64_t columns) {
  if constexpr (!std::is_same_v<typename K::Scalar, typename K::Word>) return false;
  constexpr std::int64_t kApart = 4096 / sizeof(typename K::Scalar);
  return columns <= 2 * p.kernels.columns &&
         std::max(p.left.lane_stride, p.left.inner_stride) % kApart != 0;
}

// c = (add ? c : 0) + left right of one block of the inner dimension. The memory of the left
// operand that is read next lies `next` elements further on.
template <typename K>
void MultiplyBlock(const K& kernels, const ProductSource<typename K::Scalar>& left, bool as_it_lies,
                   std::int64_t next, const typename K::Word* right, std::int64_t inner,
                   std::int64_t rows, std::int64_t columns, typename K::Scalar* c,
                   std::int64_t stride, bool add, typename K::Word* packed) {
  const std::int64_t words = WordsOf<K>(inner);
  if constexpr (std::is_same_v<typename K::Scalar, typename K::Word>) {
    if (as_it_lies) {
      return kernels.multiply(
          {left.data, kernels.rows * left.lane_stride, left.lane_stride, left.inner_stride}, right,
          words, rows, columns, c, stride, add, {left.data, 0, 0, 0});
    }
  }
  if (left.inner_stride == 1) {
    return kernels.multiply_rows(left.data, left.lane_stride, right, inner, rows, columns, c,
                                 stride, add, next);
  }
  kernels.pack_left(left, rows, inner, packed);
  kernels.multiply({packed, kernels.rows * words, 1, kernels.rows}, right, words, rows, columns, c,
                   stride, add, {left.data + next, inner, rows, left.inner_stride});
}

// c[rows, columns] += left · right, within one superblock, whose columns p has.
template <typename K>
void MultiplyPacked(const Product<K>& p, const Blocks<K>& blocks, Range rows, Range columns,
                    Range inner, const typename K::Word* right, typename K::Word* left) {
  const std::int64_t padded = RoundUp(p.columns, p.kernels.columns);
  const std::int64_t width = columns.end - columns.begin;
  const bool as_it_lies = AsItLies(p, width);
  const std::int64_t chunk = p.left.inner_stride == 1 ? p.kernels.rows : blocks.chunk;
  for (std::int64_t i = rows.begin; i < rows.end; i += chunk) {
    const std::int64_t height = std::min(chunk, rows.end - i);
    for (std::int64_t k = inner.begin; k < inner.end; k += p.kernels.block) {
      const std::int64_t depth = std::min(p.kernels.block, inner.end - k);
      // Offset of the memory that is read next: the next block of these rows, or the first of the
      // next rows.
      const std::int64_t next = k + depth < inner.end ? depth * p.left.inner_stride
                                                      : chunk * p.left.lane_stride -
                                                            (k - inner.begin) * p.left.inner_stride;
      MultiplyBlock(
          p.kernels, From(p.left, i, k), as_it_lies, next,
          right + WordsOf<K>(k - inner.begin) * padded + columns.begin * WordsOf<K>(depth), depth,
          height, width, p.c + i * p.stride + columns.begin, p.stride, p.accumulate || k > 0, left);
    }
  }
}

}  // namespace trireme::kernels

#endif  // TRIREME_SRC_KERNELS_CPU_PRODUCT_BLOCKS_HPP_
