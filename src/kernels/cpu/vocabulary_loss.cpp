// The vocabulary head with its loss. Each thread has a part of the slice and goes through it in
// blocks, relative to the largest logit of a row so far, like blockwise attention (Dao et al.
// 2022). Let e = exp(logit - reference), but 0 for the target; s = sum of exp(logit) over the
// vocabulary; f = 1 + 2 z ln s; and a row's pull = f p[target] - (1 - smoothing):
//   VocabularyStatistics  e = exp(x W_b^T - reference), kept;  sums = sums exp(old - new) + e W_b
//   VocabularyGradient    dW_b += e^T (x f exp(reference - ln s)), and pull x in the targets' rows
//                         dx = sums f exp(reference - ln s) + pull W[target]
// So only products follow the exponentials. Smoothing also adds -smoothing / V times the sum of W's
// rows to dx, and -smoothing / V times the sum of x's rows to dW.
#include "trireme/kernels/vocabulary_loss.hpp"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>

#include "backends.hpp"
#include "rows.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/kernels/linear.hpp"

namespace trireme::kernels {

// Statistics of one row of logits, over a slice of the vocabulary or all of it.

struct Statistics {
  double top = 0;     // largest logit
  double sum = 0;     // sum of exp(logit - top)
  double picked = 0;  // the target's logit, 0 if another slice has it
  double total = 0;   // sum of logits

  double LogSum() const { return top + std::log(sum); }
  // Not finite if any logit is not: `total` includes all of them.
  double Loss(double smoothing, std::int64_t vocabulary) const {
    return LogSum() - (1 - smoothing) * picked -
           smoothing * (total / static_cast<double>(vocabulary));
  }
};

inline void Store(const Statistics& s, double* out) {
  out[0] = s.top;
  out[1] = s.sum;
  out[2] = s.picked;
  out[3] = s.total;
}

// Statistics of the whole row from those of its slices: [parts, rows, kSoftmaxStatistics]. std::max
// may drop a NaN, but the sums keep it.
inline Statistics Combine(const double* statistics, std::int64_t rows, std::int64_t row,
                          int parts) {
  const auto part = [&](int p) { return statistics + (p * rows + row) * kSoftmaxStatistics; };
  Statistics whole{part(0)[0], 0, 0, 0};
  for (int p = 1; p < parts; ++p) whole.top = std::max(whole.top, part(p)[0]);
  for (int p = 0; p < parts; ++p) {
    whole.sum += part(p)[1] * std::exp(part(p)[0] - whole.top);
    whole.picked += part(p)[2];
    whole.total += part(p)[3];
  }
  return whole;
}

// Divides a slice into parts, one per thread, and each part into blocks.
class VocabularyCut {
 public:
  VocabularyCut(std::int64_t slice, std::int64_t dim, int threads)
      : slice_(slice),
        units_(CeilDivide(slice, kUnit)),
        width_(std::clamp(4 * RoundUp(dim), kNarrowest, kWidest)),
        parts_(static_cast<int>(std::clamp<std::int64_t>(units_, 1, threads))) {}

  static std::int64_t RoundUp(std::int64_t n) { return CeilDivide(n, kUnit) * kUnit; }
  std::int64_t Slice() const { return slice_; }
  std::int64_t Columns() const { return units_ * kUnit; }  // of the slice, rounded up to kUnit
  int Parts() const { return parts_; }                     // no part is empty
  Part ColumnsOf(int part) const {
    const Part range = PartOf(units_, part, parts_);
    return {range.begin * kUnit, std::min(range.end * kUnit, slice_)};
  }
  // Largest number of blocks in a part.
  std::int64_t Blocks() const { return CeilDivide(LargestPart(), width_); }
  std::int64_t Width() const { return std::min(width_, LargestPart()); }

  // Calls body(block, columns) for each block of a part. Block numbers run through all parts; the
  // blocks of a part have nearly equal widths.
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
  static constexpr std::int64_t kUnit = 32;  // so that the rows of blocks are aligned to 128 bytes
  // For 512 tokens the narrowest block fills a core's cache of 1 MiB. A larger dim needs wider
  // blocks, to outweigh the work that each block repeats: packing x, reading and writing the sums.
  static constexpr std::int64_t kNarrowest = 512, kWidest = 4096;

  std::int64_t LargestPart() const { return CeilDivide(units_, parts_) * kUnit; }

  std::int64_t slice_, units_, width_;
  int parts_;
};

// Places of arrays in the scratch, in elements.
struct VocabularyLayout {
  std::int64_t statistics = 0;  // fp64 [parts, rows, 4]
  std::int64_t log_sums = 0;    // fp64 [rows]: ln of the sum of exp(logit)
  std::int64_t pulls = 0;       // fp64 [rows]: f p[target] - (1 - smoothing)
  std::int64_t references =
      0;  // [parts, blocks, rows]: the logit to which a block's exponentials are relative
  std::int64_t sums = 0;    // [parts, rows, dim]: exponentials times W
  std::int64_t scaled = 0;  // [parts, rows, dim]: x exp(reference - log_sum)
  std::int64_t totals = 0;  // [parts + 1, dim]: sums of the rows of W, and of x
  std::int64_t exps = 0;    // [rows, width]: for every block, or one per part
  std::int64_t size = 0;

  VocabularyLayout(const VocabularyCut& cut, std::int64_t rows, std::int64_t dim, bool gradient) {
    const auto take = [this](std::int64_t elements) {
      const std::int64_t at = size;
      size += VocabularyCut::RoundUp(elements);
      return at;
    };
    constexpr std::int64_t kDouble = 2;  // elements per double, at most
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

// Carries an exception out of an OpenMP region: an exception must not leave it directly.

class Rescue {
 public:
  // Runs `body` on the calling thread; keeps the first exception of any thread.
  template <typename Body>
  void Run(Body&& body) noexcept {
    try {
      body();
    } catch (...) {
#pragma omp critical(trireme_rescue)
      if (!first_) first_ = std::current_exception();
    }
  }
  // Throws the kept exception, if any. Call it after the region.
  void Rethrow() const {
    if (first_) std::rethrow_exception(first_);
  }

 private:
  std::exception_ptr first_;
};

// CrossEntropy overwrites losses and, with `gradient`, logits. On slices: SoftmaxStatistics
// overwrites statistics and logits, CrossEntropySlice losses and, with `gradient`, logits.

namespace {

// Turns exp(logit - largest) of n tokens into p - (1 - e) onehot - e / V, where p = factor *
// exp(...). at: the target's place among these tokens, or outside [0, n).
template <typename T>
void RowGradient(T* logits, std::int64_t n, std::int64_t at, double factor, double smoothing,
                 std::int64_t vocabulary) {
  const double uniform = smoothing / static_cast<double>(vocabulary);
  rows::Affine(logits, static_cast<T>(factor), static_cast<T>(-uniform), logits, n);
  if (at >= 0 && at < n) logits[at] -= static_cast<T>(1 - smoothing);
}

// Returns the loss of one row; with `gradient`, logits become its gradient.
template <typename T>
double RowLoss(T* logits, std::int64_t n, std::int32_t target, const LossTerms& terms,
               bool gradient) {
  if (target < 0) {
    if (gradient) std::fill_n(logits, n, T(0));
    return 0;
  }
  const T picked = logits[target];
  const double smoothing = terms.smoothing;
  const double mean = smoothing > 0 ? rows::Sum(logits, n) / static_cast<double>(n) : 0;
  const T top = rows::Max(logits, n);
  const double sum = rows::ExpSum(logits, n, T(1), top);
  const double log_sum = static_cast<double>(top) + std::log(sum);
  if (gradient) RowGradient(logits, n, target, (1 + terms.Ahead(log_sum)) / sum, smoothing, n);
  return log_sum - (1 - smoothing) * static_cast<double>(picked) - smoothing * mean;
}

template <typename T>
Statistics RowStatistics(T* logits, std::int64_t n, std::int64_t at) {
  Statistics s;
  if (at >= 0 && at < n) s.picked = static_cast<double>(logits[at]);
  s.total = rows::Sum(logits, n);
  const T top = rows::Max(logits, n);
  s.top = static_cast<double>(top);
  s.sum = rows::ExpSum(logits, n, T(1), top);
  return s;
}

}  // namespace

void cpu::CrossEntropy(const device::Stream& stream, const Matrix& logits,
                       const std::int32_t* targets, const LossTerms& terms, bool gradient,
                       double* losses) {
  EachRow(stream, logits.dtype, logits.rows, [&](auto zero, std::int64_t row) {
    losses[row] =
        RowLoss(RowOf<decltype(zero)>(logits, row), logits.columns, targets[row], terms, gradient);
  });
}

void cpu::SoftmaxStatistics(const device::Stream& stream, const Matrix& logits,
                            const std::int32_t* targets, std::int32_t first, double* statistics) {
  EachRow(stream, logits.dtype, logits.rows, [&](auto zero, std::int64_t row) {
    Statistics s;  // masked rows: finite, but not used
    if (targets[row] >= 0) {
      s = RowStatistics(RowOf<decltype(zero)>(logits, row), logits.columns, targets[row] - first);
    }
    Store(s, statistics + row * kSoftmaxStatistics);
  });
}

void cpu::CrossEntropySlice(const device::Stream& stream, const Matrix& logits,
                            const std::int32_t* targets, std::int32_t first,
                            std::int64_t vocabulary, const LossTerms& terms, bool gradient,
                            const double* statistics, int parts, int part, double* losses) {
  EachRow(stream, logits.dtype, logits.rows, [&](auto zero, std::int64_t row) {
    using T = decltype(zero);
    T* slice = RowOf<T>(logits, row);
    if (targets[row] < 0) {
      losses[row] = 0;
      if (gradient) std::fill_n(slice, logits.columns, T(0));
      return;
    }
    const Statistics s = Combine(statistics, logits.rows, row, parts);
    losses[row] = s.Loss(terms.smoothing, vocabulary);
    if (!gradient) return;
    const double top = statistics[(part * logits.rows + row) * kSoftmaxStatistics];
    const double factor = (1 + terms.Ahead(s.LogSum())) * (std::exp(top - s.top) / s.sum);
    RowGradient(slice, logits.columns, targets[row] - first, factor, terms.smoothing, vocabulary);
  });
}

namespace {

template <typename T>
struct Largest {
  T top;
  double sum;
};

template <typename T>
[[gnu::always_inline]] inline Largest<T> LargestAndSum(const T* x, std::int64_t n) {
  T top = x[0], sum = 0;
#pragma omp simd reduction(max : top) reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) {
    top = x[i] > top ? x[i] : top;
    sum += x[i];
  }
  return {top, static_cast<double>(sum)};
}

TRIREME_CLONES Largest<float> LargestAndSum(const float* x, std::int64_t n) {
  return LargestAndSum<float>(x, n);
}

template <typename T>
[[gnu::always_inline]] inline void AddOffsets(T* logits, const double* offsets, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) logits[i] += static_cast<T>(offsets[i]);
}

TRIREME_CLONES void AddOffsets(float* logits, const double* offsets, std::int64_t n) {
  AddOffsets<float>(logits, offsets, n);
}

// The offset of words that are only targets (SampleWords).
constexpr double kOnlyAsTarget = -1e4;

// Sets the exponentials of words that are only targets to 0. In fp32 they are 1.6e-38 before, and
// so small that sums over them in products are subnormal: on an Intel CPU steps took four times as
// long.
template <typename T>
[[gnu::always_inline]] inline void ClearOnlyTargets(T* exps, const double* offsets,
                                                    std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) exps[i] = offsets[i] == kOnlyAsTarget ? T(0) : exps[i];
}

TRIREME_CLONES void ClearOnlyTargets(float* exps, const double* offsets, std::int64_t n) {
  ClearOnlyTargets<float>(exps, offsets, n);
}

// The work of one call, for each part of the slice.
template <typename T>
class Work {
 public:
  Work(const device::Stream& stream, const VocabularyTile& tile, const Matrix& scratch)
      : stream_(stream.Serial()),
        tile_(tile),
        cut_(tile.weight.rows, tile.x.columns, stream.threads),
        layout_(cut_, tile.x.rows, tile.x.columns, tile.gradient),
        scratch_(scratch.As<T>()) {}

  int Parts() const { return cut_.Parts(); }
  double* StatisticsOf(int part) const {
    return Doubles(layout_.statistics) + part * tile_.x.rows * kSoftmaxStatistics;
  }

  void Forward(int part) const;
  // Between the passes: computes log-sums and pulls from the statistics of whole rows.
  void Weigh(const double* statistics, int parts) const;
  void WeightGradient(int part, const Matrix& dweight) const;
  void InputGradient(std::int64_t row, T* dx) const;

 private:
  // Factor of a row's exponentials relative to `reference` in the gradient: f exp(reference - ln
  // s).
  double Factor(double reference, std::int64_t row) const {
    const double log_sum = Doubles(layout_.log_sums)[row];
    return (1 + tile_.terms.Ahead(log_sum)) * std::exp(reference - log_sum);
  }
  double* Doubles(std::int64_t at) const { return reinterpret_cast<double*>(scratch_ + at); }
  T* References(std::int64_t block) const {
    return scratch_ + layout_.references + block * tile_.x.rows;
  }
  Matrix PartMatrix(std::int64_t at, int part) const {
    const std::int64_t rows = tile_.x.rows, dim = tile_.x.columns;
    return {scratch_ + at + part * rows * dim, tile_.x.dtype, rows, dim, dim};
  }
  T* Totals(int part) const { return scratch_ + layout_.totals + part * tile_.x.columns; }
  Matrix Exps(int part, const Part& columns) const {
    const std::int64_t at = tile_.gradient ? columns.begin : part * cut_.Width();
    return {scratch_ + layout_.exps + tile_.x.rows * at, tile_.x.dtype, tile_.x.rows,
            columns.Size(), VocabularyCut::RoundUp(columns.Size())};
  }
  // The target's place in the slice if it is among these columns, else -1.
  std::int64_t TargetIn(const Part& columns, std::int64_t row) const {
    const std::int64_t at = tile_.targets[row] - tile_.first;
    return tile_.targets[row] >= 0 && at >= columns.begin && at < columns.end ? at : -1;
  }
  void ForwardRow(std::int64_t row, const Part& columns, bool first, T* logits, double* statistics,
                  T* sums) const;

  device::Stream stream_;
  const VocabularyTile& tile_;
  VocabularyCut cut_;
  VocabularyLayout layout_;
  T* scratch_;
};

// Turns a row's logits into e, updates the statistics, and rescales `sums` if the reference grows.
template <typename T>
void Work<T>::ForwardRow(std::int64_t row, const Part& columns, bool first, T* logits,
                         double* statistics, T* sums) const {
  const std::int64_t n = columns.Size();
  if (tile_.targets[row] < 0) {
    std::fill_n(logits, n, T(0));
    Store({}, statistics);
    return;
  }
  const std::int64_t target = TargetIn(columns, row);
  T* const picked = target < 0 ? nullptr : logits + (target - columns.begin);
  if (tile_.offsets != nullptr) {
    const T own = picked == nullptr ? T(0) : *picked;
    AddOffsets(logits, tile_.offsets + columns.begin, n);
    if (picked != nullptr) *picked = own;
  }
  const Largest<T> largest = LargestAndSum(logits, n);
  Statistics s{static_cast<double>(largest.top), 0, 0, 0};
  if (!first) {
    s = {statistics[0], statistics[1], statistics[2], statistics[3]};
    if (static_cast<double>(largest.top) > s.top) {
      const double factor = std::exp(s.top - static_cast<double>(largest.top));
      s.top = static_cast<double>(largest.top);
      s.sum *= factor;
      if (sums != nullptr) rows::Affine(sums, static_cast<T>(factor), T(0), sums, tile_.x.columns);
    }
  }
  s.total += largest.sum;
  if (picked != nullptr) {
    s.picked = static_cast<double>(*picked);
    // In fp64, so that the other tokens still count when the target is nearly certain.
    s.sum += std::exp(s.picked - s.top);
    *picked = -std::numeric_limits<T>::infinity();  // its exponential does not count
  }
  s.sum += rows::ExpSum(logits, n, T(1), static_cast<T>(s.top));
  if (tile_.offsets != nullptr) ClearOnlyTargets(logits, tile_.offsets + columns.begin, n);
  Store(s, statistics);
}

template <typename T>
void Work<T>::Forward(int part) const {
  const std::int64_t count = tile_.x.rows;
  const Matrix sums = PartMatrix(layout_.sums, part);
  double* statistics = StatisticsOf(part);
  bool first = true;
  cut_.ForBlocks(part, [&](std::int64_t block, const Part& columns) {
    const Matrix weight = tile_.weight.Rows(columns.begin, columns.Size());
    const Matrix exps = Exps(part, columns);
    MatrixMultiply(stream_, Form::kPlain, tile_.x, Form::kTransposed, weight, exps, false);
    for (std::int64_t row = 0; row < count; ++row) {
      double* s = statistics + row * kSoftmaxStatistics;
      ForwardRow(row, columns, first, RowOf<T>(exps, row), s,
                 tile_.gradient ? RowOf<T>(sums, row) : nullptr);
      if (tile_.gradient) References(block)[row] = static_cast<T>(s[0]);
    }
    if (tile_.gradient) {
      MatrixMultiply(stream_, Form::kPlain, exps, Form::kPlain, weight, sums, !first);
      if (first) std::fill_n(Totals(part), weight.columns, T(0));
      for (std::int64_t v = 0; v < weight.rows && tile_.terms.smoothing > 0; ++v) {
        rows::Axpy(T(1), RowOf<T>(weight, v), Totals(part), weight.columns);
      }
    }
    first = false;
  });
}

template <typename T>
void Work<T>::Weigh(const double* statistics, int parts) const {
  const std::int64_t dim = tile_.x.columns;
  T* total = Totals(Parts());
  std::fill_n(total, dim, T(0));
  for (std::int64_t row = 0; row < tile_.x.rows; ++row) {
    if (tile_.targets[row] < 0) continue;
    const Statistics whole = Combine(statistics, tile_.x.rows, row, parts);
    const double log_sum = whole.LogSum();
    Doubles(layout_.log_sums)[row] = log_sum;
    // expm1 keeps the small remainder when the target is nearly certain (p close to 1).
    const double less = std::expm1(whole.picked - log_sum);
    Doubles(layout_.pulls)[row] =
        less + tile_.terms.smoothing + tile_.terms.Ahead(log_sum) * (1 + less);
    if (tile_.terms.smoothing > 0) rows::Axpy(T(1), RowOf<T>(tile_.x, row), total, dim);
  }
}

template <typename T>
void Work<T>::WeightGradient(int part, const Matrix& dweight) const {
  const std::int64_t dim = tile_.x.columns;
  const Matrix scaled = PartMatrix(layout_.scaled, part);
  const T* before = nullptr;
  cut_.ForBlocks(part, [&](std::int64_t block, const Part& columns) {
    const T* references = References(block);
    for (std::int64_t row = 0; row < tile_.x.rows; ++row) {
      if (before != nullptr && before[row] == references[row]) continue;
      if (tile_.targets[row] < 0) {
        std::fill_n(RowOf<T>(scaled, row), dim, T(0));
        continue;
      }
      const double factor = Factor(static_cast<double>(references[row]), row);
      rows::Affine(RowOf<T>(tile_.x, row), static_cast<T>(factor), T(0), RowOf<T>(scaled, row),
                   dim);
    }
    before = references;
    MatrixMultiply(stream_, Form::kTransposed, Exps(part, columns), Form::kPlain, scaled,
                   dweight.Rows(columns.begin, columns.Size()), true);
  });
  const Part columns = cut_.ColumnsOf(part);
  for (std::int64_t row = 0; row < tile_.x.rows; ++row) {
    const std::int64_t at = TargetIn(columns, row);
    if (at < 0) continue;
    const double pull = Doubles(layout_.pulls)[row];
    rows::Axpy(static_cast<T>(pull), RowOf<T>(tile_.x, row), RowOf<T>(dweight, at), dim);
  }
  if (tile_.terms.smoothing == 0) return;
  const double uniform = tile_.terms.smoothing / static_cast<double>(tile_.vocabulary);
  for (std::int64_t at = columns.begin; at < columns.end; ++at) {
    rows::Axpy(static_cast<T>(-uniform), Totals(Parts()), RowOf<T>(dweight, at), dim);
  }
}

template <typename T>
void Work<T>::InputGradient(std::int64_t row, T* dx) const {
  const std::int64_t dim = tile_.x.columns;
  std::fill_n(dx, dim, T(0));
  if (tile_.targets[row] < 0) return;
  const double uniform = tile_.terms.smoothing / static_cast<double>(tile_.vocabulary);
  for (int part = 0; part < Parts(); ++part) {
    const double factor = Factor(StatisticsOf(part)[row * kSoftmaxStatistics], row);
    rows::Axpy(static_cast<T>(factor), RowOf<T>(PartMatrix(layout_.sums, part), row), dx, dim);
    if (tile_.terms.smoothing > 0) rows::Axpy(static_cast<T>(-uniform), Totals(part), dx, dim);
  }
  const std::int64_t at = TargetIn({0, cut_.Slice()}, row);
  if (at < 0) return;
  const double pull = Doubles(layout_.pulls)[row];
  rows::Axpy(static_cast<T>(pull), RowOf<T>(tile_.weight, at), dx, dim);
}

}  // namespace

std::int64_t cpu::VocabularyScratch(const device::Stream& stream, std::int64_t rows,
                                    std::int64_t slice, std::int64_t dim, bool gradient) {
  return VocabularyLayout(VocabularyCut(slice, dim, stream.threads), rows, dim, gradient).size;
}

std::int64_t cpu::VocabularyTileTokens(const device::Stream&, std::int64_t rows, std::int64_t,
                                       Dtype) {
  return std::min(kVocabularyTileTokens, rows);
}

void cpu::VocabularyStatistics(const device::Stream& stream, const VocabularyTile& tile,
                               const Matrix& scratch, double* statistics) {
  DispatchDtype(tile.x.dtype, [&](auto zero) {
    const Work<decltype(zero)> work(stream, tile, scratch);
    const int parts = work.Parts();
    Rescue rescue;
#pragma omp parallel num_threads(parts)
    {
#pragma omp for schedule(static, 1)
      for (int part = 0; part < parts; ++part) rescue.Run([&] { work.Forward(part); });
#pragma omp for schedule(static)
      for (std::int64_t row = 0; row < tile.x.rows; ++row) {
        Statistics slice;
        if (tile.targets[row] >= 0) slice = Combine(work.StatisticsOf(0), tile.x.rows, row, parts);
        Store(slice, statistics + row * kSoftmaxStatistics);
      }
    }
    rescue.Rethrow();
  });
}

void cpu::VocabularyLosses(const device::Stream&, const VocabularyTile& tile,
                           const double* statistics, int parts, double* losses) {
  for (std::int64_t row = 0; row < tile.x.rows; ++row) {
    losses[row] = tile.targets[row] < 0 ? 0
                                        : Combine(statistics, tile.x.rows, row, parts)
                                              .Loss(tile.terms.smoothing, tile.vocabulary);
  }
}

void cpu::VocabularyGradient(const device::Stream& stream, const VocabularyTile& tile,
                             const Matrix& scratch, const double* statistics, int parts,
                             const Matrix& dx, const Matrix& dweight) {
  DispatchDtype(tile.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const Work<T> work(stream, tile, scratch);
    const int own = work.Parts();
    const Matrix gradient = dweight;  // local, for the lambda in the parallel region
    work.Weigh(statistics, parts);
    Rescue rescue;
#pragma omp parallel num_threads(own)
    {
#pragma omp for schedule(static, 1) nowait
      for (int part = 0; part < own; ++part) {
        rescue.Run([&] { work.WeightGradient(part, gradient); });
      }
#pragma omp for schedule(static)
      for (std::int64_t row = 0; row < dx.rows; ++row) {
        work.InputGradient(row, RowOf<T>(dx, row));
      }
    }
    rescue.Rethrow();
  });
}

std::int64_t cpu::SampleWords(const device::Stream&, const WordDraw& draw,
                              const std::int32_t* targets, std::int64_t tokens,
                              const SampledWords& words) {
  constexpr std::int32_t kElsewhere = std::numeric_limits<std::int32_t>::max();
  const std::int64_t always = draw.count / 2, first = draw.slice.begin, size = draw.slice.Size();
  // Until all words are known, `places` holds the sizes of their strata; 0: only a target.
  std::fill_n(words.places, size, -1);
  const auto mark = [&](std::int64_t token, std::int64_t stratum_size) {
    if (token < first || token >= first + size) return;
    words.places[token - first] = static_cast<std::int32_t>(stratum_size);
  };
  mark(first, 0);
  for (std::int64_t t = 0; t < tokens; ++t) mark(targets[t], 0);
  for (std::int64_t token = first; token < std::min(always, first + size); ++token) mark(token, 1);
  const auto step = static_cast<std::uint64_t>(draw.step);
  const int strata = static_cast<int>(draw.count - always);
  for (int stratum = 0; stratum < strata; ++stratum) {
    const Part part = PartOf(draw.vocabulary - always, stratum, strata);
    const PhiloxCounter bits =
        Philox({static_cast<std::uint32_t>(stratum), 0, static_cast<std::uint32_t>(step),
                static_cast<std::uint32_t>(step >> 32)},
               MakeKey(draw.seed, Purpose::kSampledSoftmax));
    const auto range = static_cast<std::uint64_t>(part.Size());
    mark(always + part.begin + static_cast<std::int64_t>(bits[0] * range >> 32), part.Size());
  }
  std::int64_t count = 0;
  for (std::int64_t at = 0; at < size; ++at) {
    const std::int32_t stratum_size = words.places[at];
    if (stratum_size < 0) continue;
    words.words[count] = static_cast<std::int32_t>(at);
    words.offsets[count] =
        stratum_size == 0 ? kOnlyAsTarget : std::log(static_cast<double>(stratum_size));
    words.places[at] = static_cast<std::int32_t>(count++);
  }
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t at = targets[t] - first;
    words.targets[t] = targets[t] < 0 ? -1 : at < 0 || at >= size ? kElsewhere : words.places[at];
  }
  return count;
}

}  // namespace trireme::kernels
