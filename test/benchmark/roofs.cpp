#include "roofs.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

namespace trireme::benchmark {

namespace {

using kernels::Form;
using kernels::Matrix;

constexpr std::int64_t kHeadRows = 512;   // tokens whose logits exist at a time
constexpr std::int64_t kHeadBlock = 512;  // vocabulary entries of a block: logits of 1 MiB

// y = x W^T, dx = dy W, dW += dy^T x. x: [rows, inputs], W: [outputs, inputs].
void AddLinear(std::vector<Product>& list, std::int64_t rows, std::int64_t inputs,
               std::int64_t outputs, double times, bool head = false) {
  constexpr Form kPlain = Form::kPlain, kTransposed = Form::kTransposed;
  list.push_back({kPlain, kTransposed, rows, outputs, inputs, false, head, times});
  list.push_back({kPlain, kPlain, rows, inputs, outputs, false, head, times});
  list.push_back({kTransposed, kPlain, outputs, inputs, rows, true, head, times});
}

struct Allocation {
  device::Buffer storage;
  Matrix matrix;
};
Allocation Make(std::int64_t rows, std::int64_t columns) {
  Allocation made{device::AllocateZeroed(rows * columns * 4), {}};
  made.matrix = {made.storage.get(), Dtype::kFloat32, rows, columns, columns};
  // Numbers of ordinary size: a processor may run zeros at a higher clock.
  for (std::int64_t i = 0; i < made.matrix.Size(); ++i) {
    made.matrix.As<float>()[i] = static_cast<float>(i % 7) - 3;
  }
  return made;
}

// As many columns of m's memory, close together.
Matrix Narrow(const Matrix& m, std::int64_t columns) {
  return {m.data, m.dtype, m.rows, columns, columns};
}

// Some rows of a product of the head, in blocks of the vocabulary: the block of logits is always
// the same memory, the weights pass by.
void MultiplyInBlocks(const device::Stream& stream, const Product& p, const Matrix& a,
                      const Matrix& b, const Matrix& c) {
  const bool weight = p.form_a == Form::kTransposed, logits = p.form_b == Form::kTransposed;
  const std::int64_t vocabulary = weight ? c.rows : b.rows;
  for (std::int64_t begin = 0; begin < vocabulary; begin += kHeadBlock) {
    const std::int64_t count = std::min(kHeadBlock, vocabulary - begin);
    kernels::MatrixMultiply(stream, p.form_a, logits ? a : Narrow(a, count), p.form_b,
                            weight ? b : b.Rows(begin, count),
                            logits   ? Narrow(c, count)
                            : weight ? c.Rows(begin, count)
                                     : c,
                            weight || (!logits && begin > 0));
  }
}

// The same for all rows, each thread its own.
void MultiplyInBlocksByThreads(const device::Stream& stream, const Product& p, const Matrix& a,
                               const Matrix& b, const Matrix& c) {
#pragma omp parallel for num_threads(stream.threads) schedule(static)
  for (int thread = 0; thread < stream.threads; ++thread) {
    const Part rows = PartOf(p.m, thread, stream.threads);
    const Matrix own = p.form_a == Form::kPlain ? a.Rows(rows.begin, rows.Size())
                                                : a.Columns(rows.begin, rows.Size());
    MultiplyInBlocks(stream.Serial(), p, own, b, c.Rows(rows.begin, rows.Size()));
  }
}

template <typename Work>
double SecondsOf(Work work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

std::vector<Product> ProductsOf(const model::Options& o, std::int64_t rows,
                                std::int64_t micro_batches) {
  std::vector<Product> list;
  const double blocks = static_cast<double>(o.layers * micro_batches);
  const std::int64_t queries = o.heads * o.head_dim, keys = o.kv_heads * o.head_dim;
  const bool gated = o.activation == model::Activation::kSwiglu;
  AddLinear(list, rows, o.dim, queries + 2 * keys, blocks);
  // The branches' outputs, y = x W, are stored the other way round: the same three products, with
  // the first two changing places.
  AddLinear(list, rows, o.dim, queries, blocks);
  AddLinear(list, rows, o.dim, o.ffn, gated ? blocks : 2 * blocks);
  if (gated) AddLinear(list, rows, o.dim, 2 * o.ffn, blocks);
  const std::int64_t tile = std::min(kHeadRows, rows);
  const double tiles = static_cast<double>(rows * micro_batches) / static_cast<double>(tile);
  AddLinear(list, tile, o.dim, o.vocabulary, tiles, true);
  return list;
}

// As model::FlopsPerToken counts them.
double AttentionFlopsPerToken(const model::Options& o, std::int64_t length) {
  return 6 * static_cast<double>(o.layers * o.heads * o.head_dim) * static_cast<double>(length + 1);
}

ProductRoof::ProductRoof(const device::Stream& stream, std::vector<Product> products)
    : ways_(2, stream), products_(std::move(products)) {
  if (stream.bf16) {
    ways_[1].bf16 = false;
  } else {
    ways_[1].canonical = true;
  }
  for (const Product& p : products_) {
    Allocation a = p.form_a == Form::kPlain ? Make(p.m, p.k) : Make(p.k, p.m);
    Allocation b = p.form_b == Form::kPlain ? Make(p.k, p.n) : Make(p.n, p.k);
    Allocation c = Make(p.m, p.n);
    operands_.push_back({{std::move(a.storage), std::move(b.storage), std::move(c.storage)},
                         a.matrix,
                         b.matrix,
                         c.matrix});
  }
}

double ProductRoof::Fastest(const Product& p, const Operands& operands) const {
  const auto& [storage, a, b, c] = operands;
  double best = std::numeric_limits<double>::infinity();
  for (const device::Stream& way : ways_) {
    best = std::min(best, SecondsOf([&] {
                      kernels::MatrixMultiply(way, p.form_a, a, p.form_b, b, c, p.accumulate);
                    }));
    if (!p.head) continue;
    best = std::min(best, SecondsOf([&] { MultiplyInBlocksByThreads(way, p, a, b, c); }));
  }
  return best;
}

double ProductRoof::Seconds() const {
  constexpr int kTimes = 2;
  double sum = 0;
  std::vector<double> best(products_.size(), std::numeric_limits<double>::infinity());
  // In turn, so that each finds the caches as a step leaves them: full of something else.
  for (int i = 0; i < kTimes; ++i) {
    for (std::size_t p = 0; p < products_.size(); ++p) {
      best[p] = std::min(best[p], Fastest(products_[p], operands_[p]));
    }
  }
  for (std::size_t p = 0; p < products_.size(); ++p) sum += products_[p].times * best[p];
  return sum;
}

}  // namespace trireme::benchmark
