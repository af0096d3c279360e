// Our own matrix product: c is overwritten or accumulated into. All threads together pack the right
// operand, a superblock at a time; each thread packs its rows of the left operand, a chunk of one
// inner block at a time (the scheme of Goto and van de Geijn 2008).
#include "multiply.hpp"

#include "blocks.hpp"

namespace trireme::kernels {

namespace {

// Partition of a product: a grid of parts of c, one per thread. With `together` the team packs the
// right operand once, with barriers; without it each thread packs everything its part needs.
struct Grid {
  std::int64_t down = 1, across = 1;
  bool together = false;
};

template <typename K>
Range ColumnsOf(const Product<K>& p, const Grid& grid, std::int64_t part) {
  const std::int64_t unit = p.kernels.columns;
  const Range panels = ShareOf(CeilDivide(p.columns, unit), grid.across, part % grid.across);
  return {std::min(p.columns, panels.begin * unit), std::min(p.columns, panels.end * unit)};
}
template <typename K>
Range RowsOf(const Product<K>& p, const Grid& grid, std::int64_t part) {
  return ShareOf(p.rows, grid.down, part / grid.across);
}

// Grid with the least cost of its largest part, in multiply-adds; packing an element costs about
// kPacking of them. `together` if that saves much.
template <typename K>
Grid ChooseGrid(const Product<K>& p, std::int64_t threads) {
  constexpr double kPacking = 10, kMuch = 0.8;
  Grid alone, together;
  together.together = true;
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
      alone.down = down;
      alone.across = across;
    }
    if (across == 1 || cost_together < least_together) {
      least_together = cost_together;
      together.down = down;
      together.across = across;
    }
  }
  return least_together < kMuch * least_alone ? together : alone;
}

// One part of c += (the superblock's share of the product). `of`: the superblock's columns of c.
template <typename K>
void MultiplyPart(const Product<K>& of, const Blocks<K>& blocks, const Grid& grid,
                  std::int64_t part, Range inner, const typename K::Word* right,
                  typename K::Word* left) {
  const Range columns = ColumnsOf(of, grid, part);
  if (columns.begin >= columns.end) return;
  MultiplyPacked(of, blocks, RowsOf(of, grid, part), columns, inner, right, left);
}

// Share of one thread of a team in the grid's parts. Barriers only if the team has several threads.
template <typename K>
void RunThread(const Product<K>& p, const Blocks<K>& blocks, const Grid& grid, std::int64_t thread,
               std::int64_t threads, typename K::Word* right, typename K::Word* left) {
  for (std::int64_t j = 0; j < p.columns; j += blocks.wide) {
    const Range columns{j, std::min(p.columns, j + blocks.wide)};
    const Product<K> of = PieceOf(p, {0, p.rows}, columns);
    for (std::int64_t k = 0; k < p.inner; k += blocks.deep) {
      const Range inner{k, std::min(p.inner, k + blocks.deep)};
      PackRight(p, inner, columns, thread, threads, right);
      if (threads > 1) {
#pragma omp barrier
      }
      for (std::int64_t part = thread; part < grid.down * grid.across; part += threads) {
        MultiplyPart(of, blocks, grid, part, inner, right, left);
      }
      if (threads > 1) {
#pragma omp barrier
      }
    }
  }
}

struct PackedOperands {};  // name of a thread scratch

template <typename K>
void Run(const Product<K>& p, std::int64_t threads) {
  const Grid grid = ChooseGrid(p, threads);
  const Range rows = RowsOf(p, grid, threads - 1);  // the last part is one of the largest
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

template <typename K>
void Multiply(const K& kernels, const device::Stream& stream, Form form_a, const Matrix& a,
              Form form_b, const Matrix& b, const Matrix& c, bool accumulate) {
  const Product<K> p = ProductOf(kernels, form_a, a, form_b, b, c, accumulate);
  Run(p, ThreadsOf(stream, p));
}

}  // namespace

void ProductMultiply(const ProductSet& kernels, const device::Stream& stream, Form form_a,
                     const Matrix& a, Form form_b, const Matrix& b,
                     const Matrix& c, bool accumulate) {
  if (c.dtype == Dtype::kFloat64) {
    Multiply(kernels.fp64, stream, form_a, a, form_b, b, c, accumulate);
  } else {
    Multiply(kernels.fp32, stream, form_a, a, form_b, b, c, accumulate);
  }
}

void Bf16Multiply(const Bf16Kernels& kernels, const device::Stream& stream, Form form_a,
                  const Matrix& a, Form form_b, const Matrix& b,
                  const Matrix& c, bool accumulate) {
  Multiply(kernels.product, stream, form_a, a, form_b, b, c, accumulate);
}

}  // namespace trireme::kernels
