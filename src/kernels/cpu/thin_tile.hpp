// Products with few rows over a vector type (attention_vector.hpp). Each file that includes this
// has its own copy, for its instruction set: everything is in an unnamed namespace.
#ifndef TRIREME_KERNELS_CPU_THIN_TILE_HPP_
#define TRIREME_KERNELS_CPU_THIN_TILE_HPP_

#include <utility>

#include "attention_vector.hpp"
#include "thin_kernels.hpp"

namespace trireme::kernels {

namespace {

// kRows rows of a with kColumns rows of w, kRows * kColumns <= kLanes sums of lanes.
template <typename V, int kRows, int kColumns>
void DotBlock(const ThinProduct<typename V::Scalar>& p) {
  using Register = typename V::Register;
  using T = typename V::Scalar;
  constexpr int kLanes = V::kLanes;
  Register sum[kLanes] = {};
  const auto add = [&](std::int64_t k, auto load) __attribute__((always_inline)) {
    Register x[kRows];
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) x[i] = load(p.a + i * p.a_stride + k);
#pragma GCC unroll 16
    for (int j = 0; j < kColumns; ++j) {
      const Register y = load(p.w + j * p.w_stride + k);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) sum[i * kColumns + j] += x[i] * y;
    }
  };
  std::int64_t k = 0;
  for (; k + kLanes <= p.inner; k += kLanes) add(k, [](const T* x) { return V::Load(x); });
  if (k < p.inner) {
    const std::int64_t rest = p.inner - k;
    add(k, [rest](const T* x) { return V::LoadPart(x, rest); });
  }
  const Register all = V::Reduce(sum, [](Register x, Register y) { return x + y; });
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kColumns; ++j) p.c[i * p.c_stride + j] = all[i * kColumns + j];
  }
}

template <typename T>
ThinProduct<T> DotPiece(const ThinProduct<T>& p, std::int64_t row, std::int64_t column) {
  ThinProduct<T> piece = p;
  piece.a += row * p.a_stride;
  piece.w += column * p.w_stride;
  piece.c += row * p.c_stride + column;
  return piece;
}

// A few rows of w at a time against all rows of a: w comes from memory once, then from the cache.
template <typename V, int kMany, int kColumns, int kAlone>
void ThinTransposed(const ThinProduct<typename V::Scalar>& p) {
  std::int64_t column = 0;
  const int step = p.rows == 1 ? kAlone : kColumns;
  for (; column + step <= p.columns; column += step) {
    std::int64_t row = 0;
    if (p.rows == 1) {
      DotBlock<V, 1, kAlone>(DotPiece(p, 0, column));
      continue;
    }
    for (; row + kMany <= p.rows; row += kMany) {
      DotBlock<V, kMany, kColumns>(DotPiece(p, row, column));
    }
    for (; row < p.rows; ++row) DotBlock<V, 1, kColumns>(DotPiece(p, row, column));
  }
  for (; column < p.columns; ++column) {
    for (std::int64_t row = 0; row < p.rows; ++row) DotBlock<V, 1, 1>(DotPiece(p, row, column));
  }
}

// c (+)= a w for kRows rows and kVectors vectors of columns.
template <typename V, int kRows, int kVectors>
[[gnu::always_inline]] inline void AddBlock(const ThinProduct<typename V::Scalar>& p, bool add) {
  using Register = typename V::Register;
  constexpr int kLanes = V::kLanes;
  Register sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      sum[i][j] = add ? V::Load(p.c + i * p.c_stride + j * kLanes) : Register{};
    }
  }
  for (std::int64_t k = 0; k < p.inner; ++k) {
    Register row[kVectors];
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) row[j] = V::Load(p.w + k * p.w_stride + j * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const Register factor = V::Broadcast(p.a[i * p.a_stride + k]);
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; ++j) sum[i][j] += factor * row[j];
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) V::Store(p.c + i * p.c_stride + j * kLanes, sum[i][j]);
  }
}

// The same for the last columns, one by one in the lanes of a vector.
template <typename V>
void AddRest(const ThinProduct<typename V::Scalar>& p, bool add) {
  using Register = typename V::Register;
  Register sum = add ? V::LoadPart(p.c, p.columns) : Register{};
  for (std::int64_t k = 0; k < p.inner; ++k) {
    sum += V::Broadcast(p.a[k]) * V::LoadPart(p.w + k * p.w_stride, p.columns);
  }
  V::StorePart(p.c, sum, p.columns);
}

template <typename V, int kMany, int kVectors>
void AddRows(const ThinProduct<typename V::Scalar>& p, bool add) {
  ThinProduct<typename V::Scalar> piece = p;
  std::int64_t row = 0;
  for (; row + kMany <= p.rows; row += kMany) {
    piece.a = p.a + row * p.a_stride;
    piece.c = p.c + row * p.c_stride;
    AddBlock<V, kMany, kVectors>(piece, add);
  }
  for (; row < p.rows; ++row) {
    piece.a = p.a + row * p.a_stride;
    piece.c = p.c + row * p.c_stride;
    AddBlock<V, 1, kVectors>(piece, add);
  }
}

// Blocks of inner indices, in them strips of columns, in them the rows of a: a strip comes from
// memory once, then from the first-level cache.
template <typename V, int kMany, int kVectors, int kAlone>
void ThinPlain(const ThinProduct<typename V::Scalar>& p) {
  constexpr std::int64_t kBlock = 128;  // inner indices of a strip
  constexpr std::int64_t kStrip = kVectors * V::kLanes, kWide = kAlone * V::kLanes;
  for (std::int64_t k = 0; k < p.inner; k += kBlock) {
    ThinProduct<typename V::Scalar> piece = p;
    piece.inner = p.inner - k < kBlock ? p.inner - k : kBlock;
    const bool add = k > 0;
    const auto at = [&](std::int64_t column) {
      piece.a = p.a + k;
      piece.w = p.w + k * p.w_stride + column;
      piece.c = p.c + column;
      piece.columns = p.columns - column;
    };
    std::int64_t column = 0;
    for (; p.rows == 1 && column + kWide <= p.columns; column += kWide) {
      at(column);
      AddBlock<V, 1, kAlone>(piece, add);
    }
    for (; column + kStrip <= p.columns; column += kStrip) {
      at(column);
      AddRows<V, kMany, kVectors>(piece, add);
    }
    for (; column + V::kLanes <= p.columns; column += V::kLanes) {
      at(column);
      AddRows<V, kMany, 1>(piece, add);
    }
    if (column == p.columns) continue;
    at(column);
    for (std::int64_t row = 0; row < p.rows; ++row) {
      AddRest<V>(piece, add);
      piece.a += p.a_stride;
      piece.c += p.c_stride;
    }
  }
}

}  // namespace

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_CPU_THIN_TILE_HPP_
