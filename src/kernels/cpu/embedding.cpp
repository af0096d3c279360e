// Embeddings: EmbeddingForward overwrites out, PositionForward changes x; the backward passes add
// to dweight and dpositions, in the order of rows, each table row by one thread: no atomics.
#include "backends.hpp"
#include "trireme/kernels/elementwise.hpp"

#include <omp.h>

#include <algorithm>
#include <cmath>

#include "rows.hpp"

namespace trireme::kernels {

void cpu::EmbeddingForward(const device::Stream& stream, const std::int32_t* tokens,
                           std::int32_t first, const Matrix& weight, double scale,
                           const Matrix& out) {
  EachRow(stream, out.dtype, out.rows, [&](auto zero, std::int64_t row) {
    using T = decltype(zero);
    const std::int64_t at = std::int64_t{tokens[row]} - first;
    if (at >= 0 && at < weight.rows) {
      rows::Affine(RowOf<T>(weight, at), T(scale), T(0), RowOf<T>(out, row), out.columns);
    } else {
      std::fill_n(RowOf<T>(out, row), out.columns, T(0));
    }
  });
}

namespace {

// Position of a matrix's row in its document (kernels/elementwise.hpp).
std::int64_t PositionIn(const std::int32_t* begins, const Dropout& dropout, std::int64_t row) {
  const std::int64_t begin = begins == nullptr ? 0 : begins[dropout.first_row + row];
  return dropout.PositionOf(row) - begin;
}

// table[place(row)] += scale * dout[row]; places outside of the table are skipped. Thread t %
// threads owns table row t: each thread goes through all rows and adds those of its own.
template <typename T, typename Place>
void AddByPlace(const device::Stream& stream, T scale, const Matrix& dout, const Matrix& table,
                const Place& place) {
#pragma omp parallel num_threads(stream.threads)
  {
    const int thread = omp_get_thread_num(), threads = omp_get_num_threads();
    for (std::int64_t row = 0; row < dout.rows; ++row) {
      const std::int64_t at = place(row);
      if (at < 0 || at >= table.rows || at % threads != thread) continue;
      rows::Axpy(scale, RowOf<T>(dout, row), RowOf<T>(table, at), dout.columns);
    }
  }
}

}  // namespace

void cpu::EmbeddingBackward(const device::Stream& stream, const std::int32_t* tokens,
                            std::int32_t first, double scale, const Matrix& dout,
                            const Matrix& dweight) {
  DispatchDtype(dout.dtype, [&](auto zero) {
    using T = decltype(zero);
    AddByPlace(stream, T(scale), dout, dweight,
               [&](std::int64_t row) { return std::int64_t{tokens[row]} - first; });
  });
}

void cpu::PositionForward(const device::Stream& stream, const Matrix& positions,
                          const std::int32_t* begins, const Dropout& dropout, const Matrix& x) {
  if (positions.Empty() && !dropout.Active()) return;
  EachMaskedRow(stream, x, dropout, [&](auto zero, std::int64_t row, const RowMask& mask) {
    using T = decltype(zero);
    T* to = RowOf<T>(x, row);
    if (!positions.Empty()) {
      const std::int64_t position = PositionIn(begins, dropout, row);
      rows::Axpy(T(1), RowOf<T>(positions, position), to, x.columns);
    }
    if (mask.Active()) mask.Apply(row, to, to, x.columns);
  });
}

void cpu::PositionBackward(const device::Stream& stream, const std::int32_t* begins,
                           const Dropout& dropout, const Matrix& dout, const Matrix& dpositions) {
  if (dpositions.Empty()) return;
  DispatchDtype(dout.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (begins != nullptr) {  // positions restart in each document
      return AddByPlace(stream, T(1), dout, dpositions,
                        [&](std::int64_t row) { return PositionIn(begins, dropout, row); });
    }
    // The first rows of the shard have each position once; one thread adds all rows of a position.
    const std::int64_t distinct = std::min(dropout.length, dout.rows);
#pragma omp parallel for num_threads(stream.threads) schedule(static)
    for (std::int64_t begin = 0; begin < distinct; ++begin) {
      const std::int64_t position = dropout.PositionOf(begin);
      const std::int64_t sequences = (dout.rows - begin + dropout.length - 1) / dropout.length;
      rows::AddRows(dout.As<T>() + begin * dout.stride, dropout.length * dout.stride, sequences,
                    dpositions.As<T>() + position * dpositions.stride, dout.columns);
    }
  });
}

void SinusoidalPositions(const Matrix& table) {
  DispatchDtype(table.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (std::int64_t t = 0; t < table.rows; ++t) {
      for (std::int64_t i = 0; i < table.columns; ++i) {
        const double exponent = static_cast<double>(i - i % 2) / static_cast<double>(table.columns);
        const double angle = static_cast<double>(t) / std::pow(10000.0, exponent);
        table.As<T>()[t * table.stride + i] =
            static_cast<T>(i % 2 == 0 ? std::sin(angle) : std::cos(angle));
      }
    }
  });
}

}  // namespace trireme::kernels
