// Packing and products of attention's tiles over a vector type (attention_vector.hpp). Each file
// that includes this has its own copy, for its instruction set: everything is in an unnamed
// namespace.
#ifndef TRIREME_SRC_KERNELS_CPU_ATTENTION_TILE_HPP_
#define TRIREME_SRC_KERNELS_CPU_ATTENTION_TILE_HPP_

#include "attention_kernels.hpp"
#include "attention_softmax.hpp"
#include "attention_vector.hpp"

namespace trireme::kernels {

namespace {

template <typename V>
void PackTransposed(const typename V::Scalar* from, std::int64_t stride, std::int64_t rows,
                    std::int64_t columns, typename V::Scalar scale, typename V::Scalar* to,
                    std::int64_t to_stride) {
  constexpr int kLanes = V::kLanes;
  for (std::int64_t row = 0; row < Padded(rows); row += kLanes) {
    for (std::int64_t k = 0; k < columns; k += kLanes) {
      const typename V::Scalar* source = from + row * stride + k;
      typename V::Scalar* target = to + k * to_stride + row;
      if (row + kLanes <= rows && k + kLanes <= columns) {
        typename V::Register block[kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i, source += stride) block[i] = V::Load(source);
        V::Transpose(block);
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i, target += to_stride) V::Store(target, block[i] * scale);
        continue;
      }
      typename V::Register block[kLanes];
      for (int i = 0; i < kLanes; ++i, source += stride) {
        block[i] = row + i < rows ? V::LoadPart(source, columns - k) : typename V::Register{};
      }
      V::Transpose(block);
      for (int i = 0; i < kLanes && k + i < columns; ++i, target += to_stride) {
        V::Store(target, block[i] * scale);
      }
    }
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

// Operands of a product, as AttentionKernelsOf::multiply has them.
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

// kRows x (kVectors * kLanes) elements in registers, of which `columns` exist.
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
  // The sums pass through memory, so that above they need not.
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

// Kernels of 1 to kRows rows and 1 to kVectors vectors, so that an edge costs what it holds.
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

#endif  // TRIREME_SRC_KERNELS_CPU_ATTENTION_TILE_HPP_
