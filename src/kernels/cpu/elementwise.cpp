// Element-wise passes: AddBias and Add accumulate; ResidualForward and ActivationForward overwrite
// out (ActivationForward also adds the bias to pre); ActivationBackward overwrites dpre.
#include "trireme/kernels/elementwise.hpp"

#include <cmath>
#include <cstring>
#include <vector>

#include "backends.hpp"
#include "rows.hpp"
#include "trireme/kernels/attention.hpp"

namespace trireme::kernels {

void cpu::AddBias(const device::Stream& stream, const Matrix& x, const Matrix& bias) {
  EachRow(stream, x.dtype, x.rows, [&](auto zero, std::int64_t row) {
    using T = decltype(zero);
    rows::Axpy(T(1), bias.As<T>(), RowOf<T>(x, row), x.columns);
  });
}

void cpu::Clear(const device::Stream&, const Matrix& x) {
  const std::size_t bytes = static_cast<std::size_t>(x.columns) * SizeOf(x.dtype);
  for (std::int64_t row = 0; row < x.rows; ++row) std::memset(x.Offset(row * x.stride), 0, bytes);
}

void cpu::Copy(const device::Stream& stream, const Matrix& x, const Matrix& y) {
  const std::size_t bytes = static_cast<std::size_t>(x.columns) * SizeOf(x.dtype);
#pragma omp parallel for num_threads(stream.threads) schedule(static)
  for (std::int64_t row = 0; row < x.rows; ++row) {
    std::memcpy(y.Offset(row * y.stride), x.Offset(row * x.stride), bytes);
  }
}

void cpu::Add(const device::Stream& stream, const Matrix& x, const Matrix& y) {
  EachRow(stream, x.dtype, x.rows, [&](auto zero, std::int64_t row) {
    using T = decltype(zero);
    rows::Axpy(T(1), RowOf<T>(x, row), RowOf<T>(y, row), x.columns);
  });
}

void cpu::Scale(const device::Stream& stream, const Matrix& x, double factor, const Matrix& y) {
  EachRow(stream, x.dtype, x.rows, [&](auto zero, std::int64_t row) {
    using T = decltype(zero);
    rows::Affine(RowOf<T>(x, row), T(factor), T(0), RowOf<T>(y, row), x.columns);
  });
}

void cpu::ResidualForward(const device::Stream& stream, const Matrix& residual,
                          const Matrix& branch, const Matrix& bias, const Dropout& dropout,
                          const Matrix& out) {
  EachMaskedRow(stream, out, dropout, [&](auto zero, std::int64_t row, const RowMask& mask) {
    using T = decltype(zero);
    const std::int64_t n = out.columns;
    T* b = RowOf<T>(branch, row);  // may be overwritten
    if (!bias.Empty()) rows::Axpy(T(1), bias.As<T>(), b, n);
    if (mask.Active()) mask.Apply(row, b, b, n);
    T* to = RowOf<T>(out, row);
    const T* from = RowOf<T>(residual, row);
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) to[i] = from[i] + b[i];
  });
}

void cpu::ActivationForward(const device::Stream& stream, ActivationKind kind, const Matrix& pre,
                            const Matrix& bias, const Dropout& dropout, const Matrix& out) {
  EachMaskedRow(stream, out, dropout, [&](auto zero, std::int64_t row, const RowMask& mask) {
    using T = decltype(zero);
    const std::int64_t n = out.columns;
    T* from = RowOf<T>(pre, row);
    T* to = RowOf<T>(out, row);
    if (kind == ActivationKind::kRelu) {
      rows::BiasRelu(from, bias.As<T>(), to, n);
    } else if (kind == ActivationKind::kGelu) {
      rows::BiasGelu(from, bias.As<T>(), to, n);
    } else {
      if (!bias.Empty()) rows::Axpy(T(1), bias.As<T>(), from, 2 * n);
      rows::Swiglu(from, from + n, to, n);
    }
    if (mask.Active()) mask.Apply(row, to, to, n);
  });
}

void cpu::ActivationBackward(const device::Stream& stream, ActivationKind kind, const Matrix& pre,
                             const Dropout& dropout, const Matrix& dout, const Matrix& dpre) {
  EachMaskedRow(stream, dout, dropout, [&](auto zero, std::int64_t row, const RowMask& mask) {
    using T = decltype(zero);
    const std::int64_t n = dout.columns;
    const T* p = RowOf<T>(pre, row);
    const T* d = RowOf<T>(dout, row);
    T* to = RowOf<T>(dpre, row);
    if (kind == ActivationKind::kRelu) {
      // A value > 0 after dropout was kept and was > 0 before: no mask is needed.
      const T scale = static_cast<T>(dropout.Scale());
#pragma omp simd
      for (std::int64_t i = 0; i < n; ++i) to[i] = p[i] > T(0) ? scale * d[i] : T(0);
      return;
    }
    if (mask.Active()) {
      T* masked = ThreadScratch<ActivationKind, T>(n);
      mask.Apply(row, d, masked, n);
      d = masked;
    }
    if (kind == ActivationKind::kGelu) {
      rows::GeluGradient(p, d, to, n);
    } else {
      rows::SwigluGradient(p, p + n, d, to, to + n, n);
    }
  });
}

// Dropout: overwrites out; reads x once.

void cpu::DropoutForward(const device::Stream& stream, const Matrix& x, const Dropout& dropout,
                         const Matrix& out) {
  EachMaskedRow(stream, x, dropout, [&](auto zero, std::int64_t row, const RowMask& mask) {
    using T = decltype(zero);
    const T* from = RowOf<T>(x, row);
    T* to = RowOf<T>(out, row);
    if (mask.Active()) {
      mask.Apply(row, from, to, x.columns);
    } else if (from != to) {
      std::memcpy(to, from, static_cast<std::size_t>(x.columns) * sizeof(T));
    }
  });
}

// Rope: rotates the query and key heads of qkv in place.

void RopeTable(std::span<const double> frequencies, double magnitude, const Matrix& table) {
  DispatchDtype(table.dtype, [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t half = table.columns / 2;
    for (std::int64_t t = 0; t < table.rows; ++t) {
      T* row = table.As<T>() + t * table.stride;
      for (std::int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(t) * frequencies[static_cast<std::size_t>(i)];
        row[i] = static_cast<T>(magnitude * std::cos(angle));
        row[half + i] = static_cast<T>(magnitude * std::sin(angle));
      }
    }
  });
}

void RopeTable(double theta, const Matrix& table) {
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < table.columns / 2; ++i) {
    frequencies.push_back(
        std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(table.columns)));
  }
  RopeTable(frequencies, 1, table);
}

void cpu::Rope(const device::Stream& stream, const AttentionShape& shape, const Matrix& table,
               bool inverse, const Matrix& qkv) {
  EachRow(stream, qkv.dtype, qkv.rows, [&](auto zero, std::int64_t row) {
    using T = decltype(zero);
    const std::int64_t half = shape.head_dim / 2;
    const T direction = inverse ? T(-1) : T(1);
    const std::int64_t begin = shape.begins == nullptr ? 0 : shape.begins[row];
    const T* cosine = RowOf<T>(table, shape.positions.At(row % shape.length) - begin);
    const T* sine = cosine + half;
    for (std::int64_t head = 0; head < shape.heads + shape.kv_heads; ++head) {
      T* low = RowOf<T>(qkv, row) + head * shape.head_dim;
      T* high = low + half;
#pragma omp simd
      for (std::int64_t i = 0; i < half; ++i) {
        const T a = low[i], b = high[i], s = direction * sine[i];
        low[i] = a * cosine[i] - b * s;
        high[i] = a * s + b * cosine[i];
      }
    }
  });
}

}  // namespace trireme::kernels
