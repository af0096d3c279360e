// Packing and products of attention's tiles over a vector type (vector.hpp). Everything
// is in an unnamed namespace, so that each file that includes this has a copy for its own
// instruction set.
#pragma once

#include "attention_call.hpp"
#include "vector.hpp"

namespace trireme::kernels {

// Rows of attention's tiles between the products: online softmax (Milakov and Gimelshein 2018) and
// its gradient (Dao et al. 2022, appendix B).

namespace {

[[gnu::always_inline]] inline std::int64_t VisibleTo(const AttentionVisible& visible,
                                                     std::int64_t row) {
  const std::int64_t count = visible.first + row * visible.step;
  return count < 0 ? 0 : count > visible.keys ? visible.keys : count;
}

constexpr std::int64_t Padded(std::int64_t count) {
  return (count + kAttentionPad - 1) / kAttentionPad * kAttentionPad;
}

// The largest elements of s[0, count), lane by lane.
template <typename V>
[[gnu::always_inline]] inline typename V::Register RowMax(const typename V::Scalar* s,
                                                          std::int64_t count) {
  typename V::Register top = V::Broadcast(V::kLowest);
  std::int64_t j = 0;
  for (; j + V::kLanes <= count; j += V::kLanes) top = V::Max(V::Load(s + j), top);
  if (j < count) top = V::Max(V::First(count - j) ? V::Load(s + j) : top, top);
  return top;
}

// s = 2^(s - shift) for [0, count), then zeros to the padded `columns`. Returns sums lane by lane.
template <typename V>
[[gnu::always_inline]] inline typename V::Register RowExp(typename V::Scalar* s, std::int64_t count,
                                                          std::int64_t columns,
                                                          typename V::Scalar shift) {
  using Register = typename V::Register;
  Register sum{};
  std::int64_t j = 0;
  for (; j + V::kLanes <= count; j += V::kLanes) {
    const Register p = Exp2<V>(V::Load(s + j) - shift);
    V::Store(s + j, p);
    sum += p;
  }
  if (j < count) {
    const Register p = V::First(count - j) ? Exp2<V>(V::Load(s + j) - shift) : Register{};
    V::Store(s + j, p);
    sum += p;
    j += V::kLanes;
  }
  for (; j < columns; j += V::kLanes) V::Store(s + j, Register{});
  return sum;
}

// Works on kLanes rows at a time, so that their maxima and sums form vectors.
template <typename V>
void Softmax(std::int64_t rows, const AttentionVisible& visible, typename V::Scalar* s,
             std::int64_t stride, typename V::Scalar* top, typename V::Scalar* sum,
             typename V::Scalar* keep) {
  using Register = typename V::Register;
  constexpr int kLanes = V::kLanes;
  const std::int64_t columns = Padded(visible.keys);
  for (std::int64_t first = 0; first < rows; first += kLanes) {
    const std::int64_t count = rows - first < kLanes ? rows - first : kLanes;
    Register lanes[kLanes];
    for (std::int64_t i = 0; i < kLanes; ++i) {
      lanes[i] = i < count ? RowMax<V>(s + (first + i) * stride, VisibleTo(visible, first + i))
                           : V::Broadcast(V::kLowest);
    }
    const Register before = V::Load(top + first), sum_before = V::Load(sum + first);
    const typename V::Bits ours = V::First(count);
    const Register now =
        V::Max(V::Reduce(lanes, [](Register x, Register y) { return V::Max(x, y); }), before);
    for (std::int64_t i = 0; i < kLanes; ++i) {
      lanes[i] = i < count ? RowExp<V>(s + (first + i) * stride, VisibleTo(visible, first + i),
                                       columns, now[i])
                           : Register{};
    }
    const Register shrunk = Exp2<V>(before - now);
    const Register terms = V::Reduce(lanes, [](Register x, Register y) { return x + y; });
    V::Store(top + first, ours ? now : before);
    V::Store(sum + first, ours ? sum_before * shrunk + terms : sum_before);
    V::Store(keep + first, shrunk);
  }
}

template <typename V>
void Finish(std::int64_t rows, std::int64_t columns, const typename V::Scalar* top,
            const typename V::Scalar* sum, typename V::Scalar* out, std::int64_t stride,
            typename V::Scalar* lse, std::int64_t lse_stride) {
  using Register = typename V::Register;
  using T = typename V::Scalar;
  constexpr T kLn2 = static_cast<T>(0.69314718055994530942);
  for (std::int64_t first = 0; first < rows; first += V::kLanes) {
    const std::int64_t count = rows - first < V::kLanes ? rows - first : V::kLanes;
    const Register total = V::Load(sum + first);
    // A sum that is NaN or infinite must make the result NaN.
    // NOLINTNEXTLINE(misc-redundant-expression): 0, or NaN
    const Register log = V::Load(top + first) * kLn2 + Log<V>(total) + (total - total);
    const Register all = total == T(0) ? V::Broadcast(-T(__builtin_inf())) : log;
    const Register inverse = total == T(0) ? Register{} : T(1) / total;
    for (std::int64_t i = 0; i < count; ++i) {
      lse[(first + i) * lse_stride] = all[i];
      T* const row = out + (first + i) * stride;
      std::int64_t j = 0;
      for (; j + V::kLanes <= columns; j += V::kLanes) {
        V::Store(row + j, V::Load(row + j) * inverse[i]);
      }
      for (; j < columns; ++j) row[j] *= inverse[i];
    }
  }
}

template <typename V>
void Dot(std::int64_t rows, std::int64_t columns, const typename V::Scalar* x,
         std::int64_t x_stride, const typename V::Scalar* y, std::int64_t y_stride,
         typename V::Scalar* dot) {
  using Register = typename V::Register;
  constexpr int kLanes = V::kLanes;
  for (std::int64_t first = 0; first < rows; first += kLanes) {
    const std::int64_t count = rows - first < kLanes ? rows - first : kLanes;
    Register lanes[kLanes] = {};
    for (std::int64_t i = 0; i < count; ++i) {
      const auto* const left = x + (first + i) * x_stride;
      const auto* const right = y + (first + i) * y_stride;
      Register sum{};
      std::int64_t j = 0;
      for (; j + kLanes <= columns; j += kLanes) sum += V::Load(left + j) * V::Load(right + j);
      if (j < columns) {
        sum += V::LoadPart(left + j, columns - j) * V::LoadPart(right + j, columns - j);
      }
      lanes[i] = sum;
    }
    V::Store(dot + first, V::Reduce(lanes, [](Register a, Register b) { return a + b; }));
  }
}

template <typename V>
void Gradient(std::int64_t rows, const AttentionVisible& visible, typename V::Scalar scale,
              const typename V::Scalar* lse, const typename V::Scalar* delta, typename V::Scalar* p,
              typename V::Scalar* ds, std::int64_t stride) {
  using Register = typename V::Register;
  const std::int64_t columns = Padded(visible.keys);
  for (std::int64_t i = 0; i < rows; ++i) {
    auto* const weight = p + i * stride;
    auto* const row = ds + i * stride;
    const std::int64_t count = VisibleTo(visible, i);
    std::int64_t j = 0;
    for (; j + V::kLanes <= count; j += V::kLanes) {
      const Register w = Exp2<V>(V::Load(weight + j) - lse[i]);
      V::Store(weight + j, w);
      V::Store(row + j, w * (V::Load(row + j) - delta[i]) * scale);
    }
    if (j < count) {
      const Register w = V::First(count - j) ? Exp2<V>(V::Load(weight + j) - lse[i]) : Register{};
      V::Store(weight + j, w);
      V::Store(row + j,
               V::First(count - j) ? w * (V::Load(row + j) - delta[i]) * scale : Register{});
      j += V::kLanes;
    }
    for (; j < columns; j += V::kLanes) {
      V::Store(weight + j, Register{});
      V::Store(row + j, Register{});
    }
  }
}

template <typename V>
void PackTransposed(const typename V::Scalar* from, std::int64_t stride, std::int64_t rows,
                    std::int64_t columns, typename V::Scalar scale, typename V::Scalar* to,
                    std::int64_t to_stride) {
  for (std::int64_t row = 0; row < Padded(rows); row += V::kLanes) {
    Transposed<V>(from + row * stride, stride, rows - row, columns, scale, to + row, to_stride);
  }
}

template <typename V>
void Pack(const typename V::Scalar* from, std::int64_t stride, std::int64_t rows,
          std::int64_t columns, typename V::Scalar* to, std::int64_t to_stride) {
  constexpr int kLanes = V::kLanes;
  for (std::int64_t i = 0; i < rows; ++i) {
    std::int64_t k = 0;
    for (; k + kLanes <= columns; k += kLanes) {
      V::Store(to + i * to_stride + k, V::Load(from + i * stride + k));
    }
    for (; k < Padded(columns); k += kLanes) {
      V::Store(to + i * to_stride + k, V::LoadPart(from + i * stride + k, columns - k));
    }
  }
}

// Operands of AttentionKernelsOf::multiply.
template <typename T>
struct Product {
  std::int64_t inner;
  const T* a;
  std::int64_t a_row, a_inner;
  const T* b;
  std::int64_t b_stride;
  const T* keep;
  T* c;
  std::int64_t c_stride;
};

// Computes kRows x (kVectors * kLanes) elements in registers, of which `columns` columns exist.
template <typename V, int kRows, int kVectors>
void MultiplyBlock(const Product<typename V::Scalar>& p, std::int64_t columns) {
  using Register = typename V::Register;
  constexpr int kLanes = V::kLanes;
  Register sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) sum[i][j] = Register{};
  }
  for (std::int64_t k = 0; k < p.inner; ++k) {
    Register row[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) row[j] = V::Load(p.b + k * p.b_stride + j * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const Register factor = V::Broadcast(p.a[i * p.a_row + k * p.a_inner]);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) sum[i][j] += factor * row[j];
    }
  }
  if (columns >= kVectors * kLanes) {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) {
        auto* const c = p.c + i * p.c_stride + j * kLanes;
        V::Store(c, p.keep != nullptr ? V::Load(c) * p.keep[i] + sum[i][j] : sum[i][j]);
      }
    }
    return;
  }
  // An incomplete block passes through memory, so that the code above can stay in registers.
  typename V::Scalar part[kRows][kVectors * kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) V::Store(part[i] + j * kLanes, sum[i][j]);
  }
  for (int i = 0; i < kRows; ++i) {
    auto* const c = p.c + i * p.c_stride;
    for (std::int64_t j = 0; j < columns; ++j) {
      c[j] = p.keep != nullptr ? c[j] * p.keep[i] + part[i][j] : part[i][j];
    }
  }
}

// Kernels for 1 to kRows rows and 1 to kVectors vectors, so that smaller blocks at edges cost less.
template <typename V, int kRows, int kVectors>
struct MultiplyTable {
  using Function = void (*)(const Product<typename V::Scalar>&, std::int64_t);
  Function at[kVectors][kRows];

  template <int kUsed, int... kIndex>
  constexpr void Fill(std::integer_sequence<int, kIndex...>) {
    ((at[kUsed - 1][kIndex] = &MultiplyBlock<V, kIndex + 1, kUsed>), ...);
  }
  template <int... kIndex>
  constexpr explicit MultiplyTable(std::integer_sequence<int, kIndex...>) : at{} {
    (Fill<kIndex + 1>(std::make_integer_sequence<int, kRows>()), ...);
  }
};

template <typename V, int kRows, int kVectors>
void Multiply(std::int64_t rows, std::int64_t columns, std::int64_t inner,
              const typename V::Scalar* a, std::int64_t a_row, std::int64_t a_inner,
              const typename V::Scalar* b, std::int64_t b_stride, const typename V::Scalar* keep,
              typename V::Scalar* c, std::int64_t c_stride) {
  static constexpr MultiplyTable<V, kRows, kVectors> kTable{
      std::make_integer_sequence<int, kVectors>()};
  for (std::int64_t j = 0; j < columns; j += kVectors * V::kLanes) {
    const std::int64_t vectors = (columns - j + V::kLanes - 1) / V::kLanes;
    kTable.at[(vectors < kVectors ? vectors : kVectors) - 1][rows - 1](
        {inner, a, a_row, a_inner, b + j, b_stride, keep, c + j, c_stride}, columns - j);
  }
}

template <typename V, int kRows, int kVectors>
constexpr AttentionKernelsOf<typename V::Scalar> MakeAttentionKernels() {
  return {kRows,       &PackTransposed<V>, &Pack<V>, &Multiply<V, kRows, kVectors>,
          &Softmax<V>, &Finish<V>,         &Dot<V>,  &Gradient<V>};
}

}  // namespace

}  // namespace trireme::kernels
