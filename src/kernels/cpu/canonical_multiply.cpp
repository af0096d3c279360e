// canonical_multiply: c is overwritten or accumulated into. The right operand is packed by all
// threads together, a superblock at a time; each thread packs the rows of the left one that it
// multiplies, a chunk of one inner block at a time (the scheme of Goto and van de Geijn 2008).
#include "canonical_multiply.hpp"

#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>

namespace trireme::kernels {

namespace {

constexpr std::int64_t kRightBytes = 1 << 20;       // a superblock: stays in the shared caches
constexpr std::int64_t kLeftBytes = 336 * 256 * 4;  // a chunk of rows: a third of a 1 MiB L2
constexpr std::int64_t kPage = 4096;                // of memory, and what a thread's part begins on
constexpr std::int64_t kLeastPerThread = 64 * 64 * 64;  // multiply-adds worth waking a thread for

std::int64_t RoundUp(std::int64_t x, std::int64_t unit) { return (x + unit - 1) / unit * unit; }
std::int64_t CeilDivide(std::int64_t x, std::int64_t y) { return (x + y - 1) / y; }

// Packed operands of a calling thread's products: grows to the largest and stays.
class Workspace {
 public:
  std::byte* Get(std::int64_t bytes) {
    if (bytes > bytes_) {
      data_.reset();
      bytes_ = 0;
      data_.reset(std::aligned_alloc(kPage, static_cast<std::size_t>(RoundUp(bytes, kPage))));
      if (!data_) throw std::bad_alloc();
      bytes_ = bytes;
    }
    return static_cast<std::byte*>(data_.get());
  }

 private:
  struct Free {
    void operator()(void* data) const { std::free(data); }
  };
  std::unique_ptr<void, Free> data_;
  std::int64_t bytes_ = 0;
};

struct Range {
  std::int64_t begin, end;
};
Range ShareOf(std::int64_t count, std::int64_t parts, std::int64_t part) {
  return {count * part / parts, count * (part + 1) / parts};
}

template <typename T>
struct Product {
  const CanonicalKernelsOf<T>& kernels;
  CanonicalSource<T> left, right;  // lanes: rows of a, columns of b
  std::int64_t rows, columns, inner;
  T* c;
  std::int64_t stride;
  bool accumulate;

  // Sizes of blocks.
  std::int64_t wide, deep;  // a superblock: columns, inner
  std::int64_t chunk;       // rows
  T* packed_right;
  std::byte* packed_left;  // LeftBytes() a thread

  std::int64_t LeftBytes() const {
    const std::int64_t lanes = RoundUp(std::min(chunk, rows), kernels.rows);
    return RoundUp((lanes * std::min(inner, kInnerBlock) + 64) * std::int64_t{sizeof(T)}, kPage);
  }
  std::int64_t RightBytes() const {
    return RoundUp((wide * deep + 64) * std::int64_t{sizeof(T)}, kPage);
  }
};

template <typename T>
void ChooseBlocks(Product<T>& p) {
  const std::int64_t elements = kRightBytes / std::int64_t{sizeof(T)};
  const std::int64_t shallow = std::min(p.inner, kInnerBlock), unit = p.kernels.columns;
  p.wide = std::min(RoundUp(p.columns, unit), std::max(unit, elements / shallow / unit * unit));
  p.deep =
      std::min(p.inner, std::max<std::int64_t>(1, elements / p.wide / kInnerBlock) * kInnerBlock);
  const std::int64_t most = kLeftBytes / (kInnerBlock * std::int64_t{sizeof(T)});
  p.chunk = std::max<std::int64_t>(1, most / p.kernels.rows) * p.kernels.rows;
}

template <typename T>
CanonicalSource<T> From(const CanonicalSource<T>& source, std::int64_t lane, std::int64_t k) {
  return {source.data + lane * source.lane_stride + k * source.inner_stride, source.lane_stride,
          source.inner_stride};
}

// This thread's share of the superblock at (k0, j0): whole panels of whole inner blocks.
template <typename T>
void PackRight(const Product<T>& p, Range inner, Range columns, std::int64_t thread,
               std::int64_t threads) {
  const std::int64_t unit = p.kernels.columns, width = columns.end - columns.begin;
  const std::int64_t panels = CeilDivide(width, unit);
  const std::int64_t blocks = CeilDivide(inner.end - inner.begin, kInnerBlock);
  const Range share = ShareOf(blocks * panels, threads, thread);
  for (std::int64_t at = share.begin; at < share.end;) {
    const std::int64_t block = at / panels, panel = at % panels;
    const std::int64_t count = std::min(share.end - at, panels - panel);
    const std::int64_t k = inner.begin + block * kInnerBlock;
    const std::int64_t depth = std::min(kInnerBlock, inner.end - k);
    p.kernels.pack_right(
        From(p.right, columns.begin + panel * unit, k),
        std::min(count * unit, width - panel * unit), depth,
        p.packed_right + block * kInnerBlock * panels * unit + panel * unit * depth);
    at += count;
  }
}

// Rows and columns of the superblock as a grid of threads: the one whose largest part costs least,
// in tiles; a panel of the left operand that a thread packs costs about a third of one.
struct Split {
  std::int64_t down, across;
};
template <typename T>
Split ChooseSplit(const Product<T>& p, std::int64_t columns, std::int64_t threads) {
  const std::int64_t panels = CeilDivide(columns, p.kernels.columns);
  Split best{threads, 1};
  double least = 0;
  for (std::int64_t across = 1; across <= std::min(threads, panels); ++across) {
    if (threads % across != 0) continue;
    const double down = static_cast<double>(CeilDivide(p.rows, threads / across)) /
                        static_cast<double>(p.kernels.rows);
    const double cost = down * (static_cast<double>(CeilDivide(panels, across)) + 0.33);
    if (across > 1 && cost >= least) continue;
    best = {threads / across, across};
    least = cost;
  }
  return best;
}

// This thread's part of c += (the superblock's share of the product).
template <typename T>
void MultiplyPart(const Product<T>& p, Range inner, Range columns, std::int64_t thread,
                  std::int64_t threads) {
  const std::int64_t unit = p.kernels.columns, width = columns.end - columns.begin;
  const std::int64_t panels = CeilDivide(width, unit);
  const Split split = ChooseSplit(p, width, threads);
  const Range rows = ShareOf(p.rows, split.down, thread / split.across);
  const Range mine = ShareOf(panels, split.across, thread % split.across);
  const std::int64_t first = mine.begin * unit, last = std::min(width, mine.end * unit);
  if (first >= last) return;
  T* packed = reinterpret_cast<T*>(p.packed_left + thread * p.LeftBytes());
  for (std::int64_t i = rows.begin; i < rows.end; i += p.chunk) {
    const std::int64_t height = std::min(p.chunk, rows.end - i);
    for (std::int64_t k = inner.begin; k < inner.end; k += kInnerBlock) {
      const std::int64_t depth = std::min(kInnerBlock, inner.end - k);
      p.kernels.pack_left(From(p.left, i, k), height, depth, packed);
      p.kernels.multiply(packed, p.packed_right + (k - inner.begin) * panels * unit + first * depth,
                         depth, height, last - first, p.c + i * p.stride + columns.begin + first,
                         p.stride, p.accumulate || k > 0);
    }
  }
}

// What one of the team's threads does. Barriers only where there is a team.
template <typename T>
void RunThread(const Product<T>& p, std::int64_t thread, std::int64_t threads) {
  for (std::int64_t j = 0; j < p.columns; j += p.wide) {
    const Range columns{j, std::min(p.columns, j + p.wide)};
    for (std::int64_t k = 0; k < p.inner; k += p.deep) {
      const Range inner{k, std::min(p.inner, k + p.deep)};
      PackRight(p, inner, columns, thread, threads);
      if (threads > 1) {
#pragma omp barrier
      }
      MultiplyPart(p, inner, columns, thread, threads);
      if (threads > 1) {
#pragma omp barrier
      }
    }
  }
}

template <typename T>
CanonicalSource<T> SourceOf(const tensor::Matrix& m, bool lanes_are_rows) {
  return {m.As<T>(), lanes_are_rows ? m.stride : 1, lanes_are_rows ? 1 : m.stride};
}

template <typename T>
void Run(const CanonicalKernelsOf<T>& kernels, const device::Stream& stream, Form form_a,
         const tensor::Matrix& a, Form form_b, const tensor::Matrix& b, const tensor::Matrix& c,
         bool accumulate) {
  Product<T> p{kernels,
               SourceOf<T>(a, form_a == Form::kPlain),
               SourceOf<T>(b, form_b == Form::kTransposed),
               c.rows,
               c.columns,
               form_a == Form::kPlain ? a.columns : a.rows,
               c.As<T>(),
               c.stride,
               accumulate,
               0,
               0,
               0,
               nullptr,
               nullptr};
  ChooseBlocks(p);
  const std::int64_t useful =
      std::max<std::int64_t>(1, p.rows * p.columns * p.inner / kLeastPerThread);
  const std::int64_t threads =
      omp_in_parallel() != 0 ? 1 : std::clamp<std::int64_t>(stream.threads, 1, useful);
  thread_local Workspace workspace;
  std::byte* memory = workspace.Get(p.RightBytes() + threads * p.LeftBytes());
  p.packed_right = reinterpret_cast<T*>(memory);
  p.packed_left = memory + p.RightBytes();
  if (threads == 1) return RunThread(p, 0, 1);
#pragma omp parallel num_threads(static_cast <int>(threads))
  RunThread(p, omp_get_thread_num(), omp_get_num_threads());
}

}  // namespace

void CanonicalMultiply(const CanonicalKernels& kernels, const device::Stream& stream, Form form_a,
                       const tensor::Matrix& a, Form form_b, const tensor::Matrix& b,
                       const tensor::Matrix& c, bool accumulate) {
  if (c.dtype == Dtype::kFloat64) {
    Run(kernels.fp64, stream, form_a, a, form_b, b, c, accumulate);
  } else {
    Run(kernels.fp32, stream, form_a, a, form_b, b, c, accumulate);
  }
}

}  // namespace trireme::kernels
