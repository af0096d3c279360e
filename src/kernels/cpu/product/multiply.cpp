// Our own matrix product: overwrites c or adds to it. All threads together pack the right operand,
// a superblock at a time; each thread packs its rows of the left operand, a chunk of rows of one
// inner block at a time (the scheme of Goto and van de Geijn 2008).
#include "multiply.hpp"

#include <omp.h>
#include <algorithm>
#include <type_traits>

#include "cpu/matrix_library.hpp"
#include "cpu/rows.hpp"

namespace trireme::kernels {

// Pieces of the product: its operands, sizes of packed blocks, packing the right operand, and
// multiplying rows by a packed superblock.

inline constexpr std::int64_t kRightBytes = 512
                                            << 10;  // a packed superblock: stays in the L2 cache
inline constexpr std::int64_t kLeftBytes = 336 * 256 * 4;  // a packed chunk: a third of a 1 MiB L2
inline constexpr std::int64_t kSlack = 64;  // words: room for a vector beyond the last panel
inline constexpr std::int64_t kLeastPerThread =
    64 * 64 * 64;  // multiply-adds that are worth waking a thread

inline std::int64_t RoundUp(std::int64_t x, std::int64_t unit) {
  return (x + unit - 1) / unit * unit;
}

inline Part ShareOf(std::int64_t count, std::int64_t parts, std::int64_t part) {
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

// Packed words that hold `inner` inner indices.
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
Product<K> PieceOf(const Product<K>& p, Part rows, Part columns) {
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
Product<K> ProductOf(const K& kernels, const MatrixProduct& of) {
  using T = typename K::Scalar;
  return {kernels,
          SourceOf<T>(of.a, of.form_a == Form::kPlain),
          SourceOf<T>(of.b, of.form_b == Form::kTransposed),
          of.c.rows,
          of.c.columns,
          of.Inner(),
          of.c.As<T>(),
          of.c.stride,
          of.accumulate};
}

// Number of threads for a product: at most the stream's; 1 inside a parallel region.
template <typename K>
std::int64_t ThreadsOf(const device::Stream& stream, const Product<K>& p) {
  const std::int64_t useful =
      std::max<std::int64_t>(1, p.rows * p.columns * p.inner / kLeastPerThread);
  return omp_in_parallel() != 0 ? 1 : std::clamp<std::int64_t>(stream.threads, 1, useful);
}

// Sizes of the packed pieces.
template <typename K>
struct Blocks {
  std::int64_t wide, deep;  // size of a superblock of the right operand: columns, inner indices
  std::int64_t chunk;       // rows of the left operand per chunk
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

// Packs this thread's share of a superblock: whole panels of whole inner blocks.
template <typename K>
void PackRight(const Product<K>& p, Part inner, Part columns, std::int64_t thread,
               std::int64_t threads, typename K::Word* packed) {
  const std::int64_t unit = p.kernels.columns, width = columns.end - columns.begin;
  const std::int64_t panels = CeilDivide(width, unit), deep = p.kernels.block;
  const std::int64_t blocks = CeilDivide(inner.end - inner.begin, deep);
  const Part share = ShareOf(blocks * panels, threads, thread);
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

// Whether the left operand is used without packing: with few columns it is read only a few times;
// its rows must not collide in the cache.
template <typename K>
bool AsItLies(const Product<K>& p, std::int64_t columns) {
  if constexpr (!std::is_same_v<typename K::Scalar, typename K::Word>) return false;
  constexpr std::int64_t kApart = 4096 / sizeof(typename K::Scalar);
  return columns <= 2 * p.kernels.columns &&
         std::max(p.left.lane_stride, p.left.inner_stride) % kApart != 0;
}

// c = (add ? c : 0) + left right for one block of the inner dimension. next: offset in elements
// from `left` to the memory of the left operand that will be read next, for prefetching.
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

// c += left right within one superblock. p: restricted to the superblock's columns.
template <typename K>
void MultiplyPacked(const Product<K>& p, const Blocks<K>& blocks, Part rows, Part columns,
                    Part inner, const typename K::Word* right, typename K::Word* left) {
  const std::int64_t padded = RoundUp(p.columns, p.kernels.columns);
  const std::int64_t width = columns.end - columns.begin;
  const bool as_it_lies = AsItLies(p, width);
  const std::int64_t chunk = p.left.inner_stride == 1 ? p.kernels.rows : blocks.chunk;
  for (std::int64_t i = rows.begin; i < rows.end; i += chunk) {
    const std::int64_t height = std::min(chunk, rows.end - i);
    for (std::int64_t k = inner.begin; k < inner.end; k += p.kernels.block) {
      const std::int64_t depth = std::min(p.kernels.block, inner.end - k);
      // Offset of the memory read next: this chunk's next block, or the next chunk's first.
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

namespace {

// How a product is divided: a grid of parts of c, one part per thread. together: all threads pack
// the right operand once, with barriers; else each thread packs all that its part needs.
struct Grid {
  std::int64_t down = 1, across = 1;
  bool together = false;
};

template <typename K>
Part ColumnsOf(const Product<K>& p, const Grid& grid, std::int64_t part) {
  const std::int64_t unit = p.kernels.columns;
  const Part panels = ShareOf(CeilDivide(p.columns, unit), grid.across, part % grid.across);
  return {std::min(p.columns, panels.begin * unit), std::min(p.columns, panels.end * unit)};
}
template <typename K>
Part RowsOf(const Product<K>& p, const Grid& grid, std::int64_t part) {
  return ShareOf(p.rows, grid.down, part / grid.across);
}

// The grid whose largest part has the least cost, counted in multiply-adds; packing an element
// costs about kPacking of them. `together` only if that saves much.
template <typename K>
Grid ChooseGrid(const Product<K>& p, std::int64_t threads) {
  constexpr double kPacking = 10, kMuch = 0.8;
  Grid alone, together;
  double least_alone = 0, least_together = 0;
  for (std::int64_t across = 1; across <= threads; ++across) {
    if (threads % across != 0) continue;
    const std::int64_t unit = p.kernels.columns, down = threads / across;
    const double panels = static_cast<double>(CeilDivide(CeilDivide(p.columns, unit), across));
    const double wide = panels * static_cast<double>(unit);
    const double rows = static_cast<double>(CeilDivide(p.rows, down));
    const double own = rows * wide + kPacking * rows;
    const double cost_alone = own + kPacking * wide;
    const double cost_together =
        own + kPacking * static_cast<double>(p.columns) / static_cast<double>(threads);
    if (across == 1 || cost_alone < least_alone) {
      least_alone = cost_alone;
      alone = {down, across, false};
    }
    if (across == 1 || cost_together < least_together) {
      least_together = cost_together;
      together = {down, across, true};
    }
  }
  return least_together < kMuch * least_alone ? together : alone;
}

// One thread's share of the grid's parts. Barriers only if there are several threads.
template <typename K>
void RunThread(const Product<K>& p, const Blocks<K>& blocks, const Grid& grid, std::int64_t thread,
               std::int64_t threads, typename K::Word* right, typename K::Word* left) {
  for (std::int64_t j = 0; j < p.columns; j += blocks.wide) {
    const Part columns{j, std::min(p.columns, j + blocks.wide)};
    const Product<K> of = PieceOf(p, {0, p.rows}, columns);
    for (std::int64_t k = 0; k < p.inner; k += blocks.deep) {
      const Part inner{k, std::min(p.inner, k + blocks.deep)};
      PackRight(p, inner, columns, thread, threads, right);
      if (threads > 1) {
#pragma omp barrier
      }
      for (std::int64_t part = thread; part < grid.down * grid.across; part += threads) {
        const Part share = ColumnsOf(of, grid, part);
        if (share.begin >= share.end) continue;
        MultiplyPacked(of, blocks, RowsOf(of, grid, part), share, inner, right, left);
      }
      if (threads > 1) {
#pragma omp barrier
      }
    }
  }
}

struct PackedOperands {};  // names a thread's scratch (ThreadScratch)

template <typename K>
void Run(const Product<K>& p, std::int64_t threads) {
  const Grid grid = ChooseGrid(p, threads);
  const Part rows = RowsOf(p, grid, threads - 1);  // the last part is one of the largest
  const std::int64_t widest = RoundUp(CeilDivide(p.columns, grid.across), p.kernels.columns);
  const Blocks<K> blocks(p.kernels, rows.end - rows.begin, grid.together ? p.columns : widest,
                         p.inner);
  const std::int64_t rights = grid.together ? 1 : threads;
  std::byte* memory = ThreadScratch<PackedOperands, std::byte>(rights * blocks.right_bytes +
                                                               threads * blocks.left_bytes);
  const auto right = [&](std::int64_t i) {
    return reinterpret_cast<typename K::Word*>(memory + i * blocks.right_bytes);
  };
  const auto left = [&](std::int64_t i) {
    return reinterpret_cast<typename K::Word*>(memory + rights * blocks.right_bytes +
                                               i * blocks.left_bytes);
  };
  if (threads == 1) return RunThread(p, blocks, grid, 0, 1, right(0), left(0));
#pragma omp parallel num_threads(static_cast <int>(threads))
  {
    const std::int64_t thread = omp_get_thread_num(), team = omp_get_num_threads();
    if (grid.together) {
      RunThread(p, blocks, grid, thread, team, right(0), left(thread));
    } else {
      for (std::int64_t part = thread; part < threads; part += team) {
        RunThread(PieceOf(p, RowsOf(p, grid, part), ColumnsOf(p, grid, part)), blocks, Grid{}, 0, 1,
                  right(thread), left(thread));
      }
    }
  }
}

// Our own matrix product by blocks of rows, for callers that work on each complete row: all threads
// together pack the whole right operand; then each thread multiplies blocks of rows that stay in
// its cache, and passes each block on when it is complete.

// Largest packed right operand. A larger one would be read from the third-level cache for each
// block of rows, which costs more than a second pass over c (measured: 1024 x 3072 x 768).
constexpr std::int64_t kMostRightBytes = 2 << 20;
constexpr std::int64_t kBlockBytes = 512 << 10;  // bytes of c per block: half of a 1 MiB L2
constexpr std::int64_t kLeastPanels = 4, kMostPanels = 36;  // per block: 56 to 504 rows (AVX-512)

// Packs the right operand: superblocks of blocks.wide columns one after the other.
template <typename K>
void PackAll(const Product<K>& p, const Blocks<K>& blocks, std::int64_t thread,
             std::int64_t threads, typename K::Word* right) {
  for (std::int64_t j = 0; j < p.columns; j += blocks.wide) {
    PackRight(p, {0, p.inner}, {j, std::min(p.columns, j + blocks.wide)}, thread, threads,
              right + j * WordsOf<K>(p.inner));
  }
}

template <typename K>
void MultiplyRowsOf(const Product<K>& p, const Blocks<K>& blocks, Part rows,
                    const typename K::Word* right, typename K::Word* left) {
  for (std::int64_t j = 0; j < p.columns; j += blocks.wide) {
    const Part columns{j, std::min(p.columns, j + blocks.wide)};
    const Product<K> of = PieceOf(p, {0, p.rows}, columns);
    const std::int64_t padded = RoundUp(of.columns, p.kernels.columns);
    for (std::int64_t k = 0; k < p.inner; k += blocks.deep) {
      MultiplyPacked(of, blocks, rows, {0, of.columns}, {k, std::min(p.inner, k + blocks.deep)},
                     right + j * WordsOf<K>(p.inner) + padded * WordsOf<K>(k), left);
    }
  }
}

// Names another scratch than that of products without `then`, since `then` may call such products.
struct PackedForRows {};

// Returns false if the right operand is too large to be packed whole.
template <typename K>
bool RunRows(const Product<K>& p, std::int64_t threads, FunctionRef<void(const Part&)> then) {
  using Word = typename K::Word;
  const std::int64_t unit = p.kernels.rows, panels = CeilDivide(p.rows, unit);
  const std::int64_t row_bytes = p.columns * static_cast<std::int64_t>(sizeof(typename K::Scalar));
  const std::int64_t words = RoundUp(p.columns, p.kernels.columns) * WordsOf<K>(p.inner);
  const std::int64_t right_bytes =
      RoundUp((words + kSlack) * static_cast<std::int64_t>(sizeof(Word)), kPage);
  if (right_bytes > kMostRightBytes) return false;
  const std::int64_t most = std::clamp(kBlockBytes / row_bytes / unit, kLeastPanels, kMostPanels);
  // Rounded up to a multiple of the number of threads.
  const std::int64_t count = std::min(panels, RoundUp(CeilDivide(panels, most), threads));
  const Blocks<K> blocks(p.kernels, CeilDivide(panels, count) * unit, p.columns, p.inner);
  std::byte* memory =
      ThreadScratch<PackedForRows, std::byte>(right_bytes + threads * blocks.left_bytes);
  const auto run = [&](std::int64_t thread, std::int64_t team) {
    auto* left = reinterpret_cast<Word*>(memory + right_bytes + thread * blocks.left_bytes);
    for (std::int64_t i = thread; i < count; i += team) {
      const Part share = ShareOf(panels, count, i);
      const Part rows{share.begin * unit, std::min(p.rows, share.end * unit)};
      MultiplyRowsOf(p, blocks, rows, reinterpret_cast<Word*>(memory), left);
      then(rows);
    }
  };
  if (threads == 1) {
    PackAll(p, blocks, 0, 1, reinterpret_cast<Word*>(memory));
    run(0, 1);
    return true;
  }
#pragma omp parallel num_threads(static_cast <int>(threads))
  {
    PackAll(p, blocks, omp_get_thread_num(), omp_get_num_threads(),
            reinterpret_cast<Word*>(memory));
#pragma omp barrier
    run(omp_get_thread_num(), omp_get_num_threads());
  }
  return true;
}

template <typename K>
bool Multiply(const K& kernels, const device::Stream& stream, const MatrixProduct& product,
              const FunctionRef<void(const Part&)>* then) {
  const Product<K> p = ProductOf(kernels, product);
  if (then != nullptr) return RunRows(p, ThreadsOf(stream, p), *then);
  Run(p, ThreadsOf(stream, p));
  return true;
}

}  // namespace

bool ProductMultiply(const ProductSet& kernels, const device::Stream& stream,
                     const MatrixProduct& product, const FunctionRef<void(const Part&)>* then) {
  if (product.c.dtype == Dtype::kFloat64) return Multiply(kernels.fp64, stream, product, then);
  return Multiply(kernels.fp32, stream, product, then);
}

bool RoundedMultiply(const ProductSet& kernels, const device::Stream& stream,
                     const MatrixProduct& product, const FunctionRef<void(const Part&)>* then) {
  return Multiply(kernels.rounded, stream, product, then);
}

bool Bf16Multiply(const Bf16Kernels& kernels, const device::Stream& stream,
                  const MatrixProduct& product, const FunctionRef<void(const Part&)>* then) {
  return Multiply(kernels.product, stream, product, then);
}

}  // namespace trireme::kernels
