// Linear layers on the CPU: what follows a product runs on blocks of its rows, in the thread that
// has them in its cache. LinearWeightGradient accumulates, everything else overwrites.
#include "trireme/kernels/linear.hpp"

#include <omp.h>
#include <algorithm>
#include <utility>

#include "backends.hpp"
#include "cpu/product/multiply.hpp"
#include "matrix_library.hpp"
#include "rows.hpp"
#include "thin_product.hpp"
#include "trireme/base/dtype.hpp"
#include "trireme/base/error.hpp"

namespace trireme::kernels {

namespace {

// Products with an empty dimension are handled here, as libraries disagree on them: returns true if
// a dimension of the product is 0; then c has its final value.
bool NoProduct(const MatrixProduct& product) {
  const Matrix& c = product.c;
  if (c.rows == 0 || c.columns == 0) return true;
  if (product.Inner() > 0) return false;
  if (!product.accumulate) cpu::Clear({}, c);
  return true;
}

Form Opposite(Form form) { return form == Form::kPlain ? Form::kTransposed : Form::kPlain; }

Matrix Of(const Matrix& m, const Part& rows) { return m.Rows(rows.begin, rows.Size()); }

// Whether a stream may use thin products of this type: on CPUs, unless canonical or in bf16.
bool HasThinProducts(const device::Stream& stream, Dtype dtype) {
  const bool bf16 = dtype == Dtype::kBfloat16 || (stream.bf16 && dtype == Dtype::kFloat32);
  return !stream.OnGpu() && !stream.canonical && !bf16;
}

// Number of threads for work that occupies up to `useful` of them; 1 inside a parallel region.
int ThreadsFor(const device::Stream& stream, std::int64_t useful) {
  const std::int64_t most = omp_in_parallel() != 0 ? 1 : stream.threads;
  return static_cast<int>(std::clamp<std::int64_t>(useful, 1, most));
}

// Calls then(rows) on all threads, for rows that are complete.
void Follow(const device::Stream& stream, const Part& rows,
            FunctionRef<void(const Part& rows)> then) {
  const int parts = ThreadsFor(stream, rows.Size());
#pragma omp parallel for num_threads(parts) if (parts > 1)
  for (int part = 0; part < parts; ++part) {
    const Part share = PartOf(rows.Size(), part, parts);
    then({rows.begin + share.begin, rows.begin + share.end});
  }
}

// y = x form(weight), then calls `then` for each range of rows.
void Multiply(const device::Stream& stream, const Linear& linear, const Matrix& x, const Matrix& y,
              FunctionRef<void(const Part& rows)> then) {
  if (!linear.thin || x.rows > kThinRows || x.Size() == 0 || !HasThinProducts(stream, y.dtype)) {
    return cpu::MatrixMultiplyThen(stream, Form::kPlain, x, linear.form, linear.weight, y, false,
                                   then);
  }
  const void* const panels =
      linear.packed == nullptr ? nullptr : linear.packed->Of(linear.weight.data);
  ThinMultiply(UsableThinKernels()[0], stream, x, linear.form, linear.weight, y, panels);
  Follow(stream, {0, y.rows}, then);
}

}  // namespace

void cpu::LinearForward(const device::Stream& stream, const Linear& linear, const Matrix& x,
                        const Matrix& bias, const Matrix& y,
                        FunctionRef<void(const Part& rows)> then) {
  Multiply(stream, linear, x, y, [&](const Part& rows) {
    if (!bias.Empty()) cpu::AddBias(stream.Serial(), Of(y, rows), bias);
    then(rows);
  });
}

void cpu::LinearActivation(const device::Stream& stream, const Linear& linear, const Matrix& x,
                           const Matrix& bias, ActivationKind kind, const Dropout& dropout,
                           const Matrix& pre, const Matrix& out) {
  Multiply(stream, linear, x, pre, [&](const Part& rows) {
    cpu::ActivationForward(stream.Serial(), kind, Of(pre, rows), bias, dropout.From(rows.begin),
                           Of(out, rows));
  });
}

void cpu::LinearInputGradient(const device::Stream& stream, const Linear& linear, const Matrix& dy,
                              const Matrix& dx) {
  cpu::MatrixMultiply(stream, Form::kPlain, dy, Opposite(linear.form), linear.weight, dx, false);
}

void cpu::LinearActivationGradient(const device::Stream& stream, const Linear& linear,
                                   const Matrix& dy, ActivationKind kind, const Matrix& from,
                                   const Dropout& dropout, const Matrix& dhidden,
                                   const Matrix& dpre) {
  cpu::MatrixMultiplyThen(stream, Form::kPlain, dy, Opposite(linear.form), linear.weight, dhidden,
                          false, [&](const Part& rows) {
                            cpu::ActivationBackward(stream.Serial(), kind, Of(from, rows),
                                                    dropout.From(rows.begin), Of(dhidden, rows),
                                                    Of(dpre, rows));
                          });
}

void cpu::LinearWeightGradient(const device::Stream& stream, const Linear& linear, const Matrix& x,
                               const Matrix& dy, const Matrix& dweight) {
  const bool transposed = linear.form == Form::kTransposed;
  cpu::MatrixMultiply(stream, Form::kTransposed, transposed ? dy : x, Form::kPlain,
                      transposed ? x : dy, dweight, true);
  AddBiasGradients(stream, linear, dy, cpu::ColumnSum);
}

// MatrixMultiply: chooses between our own product (on canonical and bf16 streams, and where it is
// faster) and the library's (in bf16 only on CPUs with AMX, which our own does not use, and on
// those for which our own fp32 product is not made).

namespace {

// For fewer multiply-adds our own product on AVX512-BF16 (some microseconds) is faster than
// rounding both operands and calling the library.
constexpr std::int64_t kLeastForAmx = 64 * 64 * 128;

struct RoundedCopies {};  // names a thread's scratch (ThreadScratch)

// Rounds m to bf16 numbers, dense at `to`.
Matrix RoundedCopy(const device::Stream& stream, const Matrix& m, float* to) {
  const int threads = ThreadsFor(stream, m.rows);
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (std::int64_t row = 0; row < m.rows; ++row) {
    const float* const from = m.As<float>() + row * m.stride;
    for (std::int64_t j = 0; j < m.columns; ++j) {
      to[row * m.columns + j] = FromBfloat16(RoundToBfloat16(from[j]));
    }
  }
  Matrix copy = m;
  copy.data = to;
  copy.stride = m.columns;
  return copy;
}

bool MultipliesWithAmx() {
  static const bool amx = device::Bf16Instructions() == "AMX";
  return amx;
}

}  // namespace

void MultiplyRoundedCopies(const device::Stream& stream, const MatrixProduct& p) {
  constexpr std::int64_t kMost = 1 << 20;  // elements of a piece of the right operand
  const bool plain = p.form_b == Form::kPlain;
  const std::int64_t wide = std::clamp<std::int64_t>(kMost / p.Inner(), 1, p.c.columns);
  float* const memory = ThreadScratch<RoundedCopies, float>(p.a.Size() + wide * p.Inner());
  const Matrix a = RoundedCopy(stream, p.a, memory);
  for (std::int64_t j = 0; j < p.c.columns; j += wide) {
    const std::int64_t count = std::min(wide, p.c.columns - j);
    const Matrix b = RoundedCopy(stream, plain ? p.b.Columns(j, count) : p.b.Rows(j, count),
                                 memory + p.a.Size());
    LibraryMultiply({p.form_a, a, p.form_b, b, p.c.Columns(j, count), p.accumulate});
  }
}

namespace {

std::int64_t MultiplyAdds(const MatrixProduct& product) {
  return product.c.rows * product.c.columns * product.Inner();
}

void MultiplyBf16(const device::Stream& stream, const MatrixProduct& product) {
  if (stream.canonical) {
    throw RunError("There is no canonical product in bf16.",
                   "Choose run.precision = fp32 with run.canonical.");
  }
  if (stream.bf16_by_fp32) {
    if (!HasFastKernels()) return MultiplyRoundedCopies(stream, product);
    RoundedMultiply(UsableProductSets()[0], stream, product);
    return;
  }
  const Bf16Kernels* kernels = UsableBf16Kernels();
  if (kernels == nullptr) {
    throw RunError("This CPU has no instructions that multiply bf16.",
                   "Choose run.bf16_products = fp32.");
  }
  if (MultipliesWithAmx() && MultiplyAdds(product) >= kLeastForAmx) {
    return LibraryBf16Multiply(stream, product);
  }
  Bf16Multiply(*kernels, stream, product);
}

// Whether our own fp32 product is faster. Speed of ours relative to oneDNN 2.6, measured on a Zen 5
// core: 1.1 to 1.25 below 2^18 multiply-adds, where the library's setup dominates; for weight
// gradients 1.05 to 1.2 if the left operand exceeds the caches (the library transposes it first),
// else 0.85 to 0.95; 1.15 with both operands transposed; otherwise 0.85 to 1.05.
bool OwnIsFaster(const MatrixProduct& product) {
  constexpr std::int64_t kSmall = 1 << 18, kLarge = 1 << 22;  // multiply-adds, elements
  if (!HasFastKernels() || product.c.dtype != Dtype::kFloat32) return false;
  if (MultiplyAdds(product) < kSmall) return true;
  if (product.form_a == Form::kPlain) return false;
  return product.form_b == Form::kTransposed || product.c.rows * product.Inner() > kLarge;
}

// Our own product, by blocks of rows. Returns false, and does nothing, if it is slow or impossible.
bool MultiplyInRows(const device::Stream& stream, const MatrixProduct& product,
                    FunctionRef<void(const Part& rows)> then) {
  if (stream.bf16 && product.c.dtype == Dtype::kFloat32) {
    if (stream.canonical) return false;
    if (stream.bf16_by_fp32) {
      return HasFastKernels() && RoundedMultiply(UsableProductSets()[0], stream, product, &then);
    }
    if (MultipliesWithAmx() || UsableBf16Kernels() == nullptr) return false;
    return Bf16Multiply(*UsableBf16Kernels(), stream, product, &then);
  }
  if (!stream.canonical && !HasFastKernels()) return false;
  return ProductMultiply(UsableProductSets()[0], stream, product, &then);
}

}  // namespace

void cpu::MatrixMultiply(const device::Stream& stream, Form form_a, const Matrix& a, Form form_b,
                         const Matrix& b, const Matrix& c, bool accumulate) {
  const MatrixProduct product{form_a, a, form_b, b, c, accumulate};
  if (NoProduct(product)) return;
  if (stream.bf16 && c.dtype == Dtype::kFloat32) return MultiplyBf16(stream, product);
  if (!stream.canonical && !OwnIsFaster(product)) return LibraryMultiply(product);
  ProductMultiply(UsableProductSets()[0], stream, product);
}

void cpu::MatrixMultiplyThen(const device::Stream& stream, Form form_a, const Matrix& a,
                             Form form_b, const Matrix& b, const Matrix& c, bool accumulate,
                             FunctionRef<void(const Part& rows)> then) {
  // kSliceBytes: bytes of c per slice, which the third-level cache still holds when `then` runs.
  // kLeastRows: enough to make up for packing the right operand once per slice.
  constexpr std::int64_t kSliceBytes = 16 << 20, kLeastRows = 1024;
  const MatrixProduct product{form_a, a, form_b, b, c, accumulate};
  if (c.rows == 0) return;
  const bool empty = c.columns == 0 || product.Inner() == 0;
  if (!empty && MultiplyInRows(stream, product, then)) return;
  const auto row_bytes =
      std::max<std::int64_t>(1, c.columns * static_cast<std::int64_t>(SizeOf(c.dtype)));
  const int slices =
      static_cast<int>(CeilDivide(c.rows, std::max(kLeastRows, kSliceBytes / row_bytes)));
  for (int slice = 0; slice < slices; ++slice) {
    const Part rows = PartOf(c.rows, slice, slices);
    cpu::MatrixMultiply(stream, form_a,
                        form_a == Form::kPlain ? a.Rows(rows.begin, rows.Size())
                                               : a.Columns(rows.begin, rows.Size()),
                        form_b, b, c.Rows(rows.begin, rows.Size()), accumulate);
    Follow(stream, rows, then);
  }
}

// Thin products: overwrite y. Each thread has some columns, and so its own part of the weight.

namespace {

// Elements of the weight that make a thread worthwhile.
constexpr std::int64_t kAThread = 1 << 13;

template <typename T>
void Multiply(const ThinKernelsOf<T>& kernels, const device::Stream& stream, const Matrix& x,
              Form form, const Matrix& weight, const Matrix& y, const void* panels) {
  const bool transposed = form == Form::kTransposed;
  const std::int64_t units = CeilDivide(y.columns, kThinColumns);
  const int threads = ThreadsFor(stream, std::min(weight.Size() / kAThread, units));
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (int part = 0; part < threads; ++part) {
    const Part share = PartOf(units, part, threads);
    const std::int64_t begin = share.begin * kThinColumns,
                       end = std::min(y.columns, share.end * kThinColumns);
    ThinProduct<T> product{
        x.rows,        end - begin,       x.columns,
        x.As<T>(),     x.stride,          weight.As<T>() + begin * (transposed ? weight.stride : 1),
        weight.stride, y.As<T>() + begin, y.stride};
    if (panels != nullptr && x.rows > 1) {
      product.w = static_cast<const T*>(panels) + begin * x.columns;
      kernels.panels(product);
    } else {
      (transposed ? kernels.transposed : kernels.plain)(product);
    }
  }
}

}  // namespace

void ThinMultiply(const ThinKernels& kernels, const device::Stream& stream, const Matrix& x,
                  Form form, const Matrix& weight, const Matrix& y, const void* panels) {
  if (y.dtype == Dtype::kFloat64) {
    return Multiply(kernels.fp64, stream, x, form, weight, y, panels);
  }
  Multiply(kernels.fp32, stream, x, form, weight, y, panels);
}

// PackedWeights: the last panel is filled with zeros beyond the last output.

namespace {

struct Panels {
  Panels(const Linear& layer, std::size_t element)
      : transposed(layer.form == Form::kTransposed),
        outputs(transposed ? layer.weight.rows : layer.weight.columns),
        inner(transposed ? layer.weight.columns : layer.weight.rows),
        wide(kPanelBytes / static_cast<std::int64_t>(element)),
        count(CeilDivide(outputs, wide)) {}
  bool transposed;
  std::int64_t outputs, inner, wide, count;
};

template <typename T>
void PackPanels(const device::Stream& stream, const Linear& layer, T* to) {
  const Panels panels(layer, sizeof(T));
  // Elements from one output to the next in the weight, and from one inner index to the next.
  const std::int64_t by_output = panels.transposed ? layer.weight.stride : 1;
  const std::int64_t by_inner = panels.transposed ? 1 : layer.weight.stride;
#pragma omp parallel for num_threads(stream.threads) schedule(static) if (stream.threads > 1)
  for (std::int64_t panel = 0; panel < panels.count; ++panel) {
    const T* const from = layer.weight.As<T>() + panel * panels.wide * by_output;
    T* line = to + panel * panels.wide * panels.inner;
    const std::int64_t width = std::min(panels.wide, panels.outputs - panel * panels.wide);
    for (std::int64_t k = 0; k < panels.inner; ++k, line += panels.wide) {
      for (std::int64_t j = 0; j < width; ++j) line[j] = from[j * by_output + k * by_inner];
      std::fill(line + width, line + panels.wide, T(0));
    }
  }
}

}  // namespace

bool PackedWeights::Serve(const device::Stream& stream, Dtype dtype, std::int64_t rows) {
  return rows > 1 && rows <= kThinRows && HasThinProducts(stream, dtype);
}

PackedWeights::PackedWeights(const device::Stream& stream, std::vector<Linear> layers)
    : stream_(stream), layers_(std::move(layers)) {
  std::int64_t bytes = 0;
  for (const Linear& layer : layers_) {
    const Panels panels(layer, SizeOf(layer.weight.dtype));
    begins_[layer.weight.data] = bytes;
    bytes += panels.count * panels.inner * kPanelBytes;
  }
  if (bytes > 0) panels_ = device::AllocateZeroed(bytes, stream.Where());
}

void PackedWeights::Pack() {
  for (const Linear& layer : layers_) {
    void* const to = static_cast<char*>(panels_.get()) + begins_.at(layer.weight.data);
    if (layer.weight.dtype == Dtype::kFloat64) {
      PackPanels(stream_, layer, static_cast<double*>(to));
    } else {
      PackPanels(stream_, layer, static_cast<float*>(to));
    }
  }
  packed_ = true;
}

const void* PackedWeights::Of(const void* weight) const {
  const auto found = packed_ ? begins_.find(weight) : begins_.end();
  return found == begins_.end() ? nullptr : static_cast<const char*>(panels_.get()) + found->second;
}

}  // namespace trireme::kernels
