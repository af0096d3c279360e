// Our own matrix product in blocks of rows, for passes that follow on complete rows: all threads
// together pack the whole right operand; then each thread multiplies blocks of rows that stay in
// its cache, and hands each over when it is complete.
#include "blocks.hpp"

namespace trireme::kernels {

namespace {

// Largest packed right operand. A larger one comes from the third-level cache for every block,
// which costs more than a second pass over c saves (measured: 1024 x 3072 x 768).
constexpr std::int64_t kMostRightBytes = 2 << 20;
constexpr std::int64_t kBlockBytes = 512 << 10;             // of c in a block: half of a 1 MiB L2
constexpr std::int64_t kLeastPanels = 4, kMostPanels = 36;  // of a block: 56 to 504 rows in AVX-512

// Packs the right operand: superblocks of blocks.wide columns, one after the other.
template <typename K>
void PackAll(const Product<K>& p, const Blocks<K>& blocks, std::int64_t thread,
             std::int64_t threads, typename K::Word* right) {
  for (std::int64_t j = 0; j < p.columns; j += blocks.wide) {
    PackRight(p, {0, p.inner}, {j, std::min(p.columns, j + blocks.wide)}, thread, threads,
              right + j * WordsOf<K>(p.inner));
  }
}

template <typename K>
void MultiplyRowsOf(const Product<K>& p, const Blocks<K>& blocks, Range rows,
                    const typename K::Word* right, typename K::Word* left) {
  for (std::int64_t j = 0; j < p.columns; j += blocks.wide) {
    const Range columns{j, std::min(p.columns, j + blocks.wide)};
    const Product<K> of = PieceOf(p, {0, p.rows}, columns);
    const std::int64_t padded = RoundUp(of.columns, p.kernels.columns);
    for (std::int64_t k = 0; k < p.inner; k += blocks.deep) {
      MultiplyPacked(of, blocks, rows, {0, of.columns}, {k, std::min(p.inner, k + blocks.deep)},
                     right + j * WordsOf<K>(p.inner) + padded * WordsOf<K>(k), left);
    }
  }
}

// Name of a thread scratch, different from that of products without `then`, which may run within
// `then`.
struct PackedForRows {};

// False if the right operand is too large to be packed as a whole.
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
  // A multiple of the threads.
  const std::int64_t count = std::min(panels, RoundUp(CeilDivide(panels, most), threads));
  const Blocks<K> blocks(p.kernels, CeilDivide(panels, count) * unit, p.columns, p.inner);
  std::byte* memory =
      ThreadScratch<PackedForRows, std::byte>(right_bytes + threads * blocks.left_bytes);
  const auto run = [&](std::int64_t thread, std::int64_t team) {
    auto* left = reinterpret_cast<Word*>(memory + right_bytes + thread * blocks.left_bytes);
    for (std::int64_t i = thread; i < count; i += team) {
      const Range share = ShareOf(panels, count, i);
      const Range rows{share.begin * unit, std::min(p.rows, share.end * unit)};
      MultiplyRowsOf(p, blocks, rows, reinterpret_cast<Word*>(memory), left);
      then({rows.begin, rows.end});
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
bool Multiply(const K& kernels, const device::Stream& stream, Form form_a, const Matrix& a,
              Form form_b, const Matrix& b, const Matrix& c, bool accumulate,
              FunctionRef<void(const Part&)> then) {
  const Product<K> p = ProductOf(kernels, form_a, a, form_b, b, c, accumulate);
  return RunRows(p, ThreadsOf(stream, p), then);
}

}  // namespace

bool ProductMultiplyRows(const ProductSet& kernels, const device::Stream& stream, Form form_a,
                         const Matrix& a, Form form_b, const Matrix& b,
                         const Matrix& c, bool accumulate,
                         FunctionRef<void(const Part&)> then) {
  if (c.dtype == Dtype::kFloat64) {
    return Multiply(kernels.fp64, stream, form_a, a, form_b, b, c, accumulate, then);
  }
  return Multiply(kernels.fp32, stream, form_a, a, form_b, b, c, accumulate, then);
}

bool Bf16MultiplyRows(const Bf16Kernels& kernels, const device::Stream& stream, Form form_a,
                      const Matrix& a, Form form_b, const Matrix& b,
                      const Matrix& c, bool accumulate,
                      FunctionRef<void(const Part&)> then) {
  return Multiply(kernels.product, stream, form_a, a, form_b, b, c, accumulate, then);
}

}  // namespace trireme::kernels
