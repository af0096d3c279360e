// Products with few rows over a vector type (vector.hpp). Everything is in an unnamed
// namespace, so that each file that includes this has a copy for its own instruction set.
#pragma once

#include "thin_product.hpp"
#include "vector.hpp"

namespace trireme::kernels {

namespace {

inline constexpr std::int64_t kThinBlock = 128;   // inner indices per block, without panels
inline constexpr std::int64_t kPanelBlock = 256;  // the same for ThinPanels

// Dot products of the single row of a with kColumns <= kLanes rows of w, from row `column` on.
template <typename V, int kColumns>
void DotBlock(const ThinProduct<typename V::Scalar>& p, std::int64_t column) {
  using Register = typename V::Register;
  using T = typename V::Scalar;
  constexpr int kLanes = V::kLanes;
  const T* const w = p.w + column * p.w_stride;
  Register sum[kLanes] = {};
  std::int64_t k = 0;
  for (; k + kLanes <= p.inner; k += kLanes) {
    const Register x = V::Load(p.a + k);
#pragma GCC unroll 16
    for (int j = 0; j < kColumns; ++j) sum[j] += x * V::Load(w + j * p.w_stride + k);
  }
  if (k < p.inner) {
    const Register x = V::LoadPart(p.a + k, p.inner - k);
    for (int j = 0; j < kColumns; ++j) {
      sum[j] += x * V::LoadPart(w + j * p.w_stride + k, p.inner - k);
    }
  }
  const Register all = V::Reduce(sum, [](Register x, Register y) { return x + y; });
  for (int j = 0; j < kColumns; ++j) p.c[column + j] = all[j];
}

// Prefetches the part of w that is needed next, line by line in the order of memory, while the part
// before it is multiplied: `per_` lines for each inner index.
template <typename T>
class ThinAhead {
 public:
  ThinAhead() = default;
  // The part: `rows` rows of `columns` elements. steps: about how many calls of Fetch will follow.
  ThinAhead(const T* from, std::int64_t stride, std::int64_t rows, std::int64_t columns,
            std::int64_t steps)
      : at_(from), stride_(stride), lines_((columns + kLine - 1) / kLine), rows_(rows) {
    per_ = rows > 0 ? (rows * lines_ + steps - 1) / steps : 0;
  }
  [[gnu::always_inline]] void Fetch() {
    for (std::int64_t i = 0; i < per_; ++i) {
      __builtin_prefetch(at_ + line_ * kLine);
      if (++line_ < lines_) continue;
      line_ = 0;
      at_ += stride_;
      if (--rows_ == 0) per_ = 0;
    }
  }

 private:
  static constexpr std::int64_t kLine = 64 / sizeof(T);
  const T* at_ = nullptr;
  std::int64_t stride_ = 0, line_ = 0, lines_ = 0, rows_ = 0, per_ = 0;
};

// c = a w, or c += a w with `add`, for kRows rows and kVectors vectors of columns.
template <typename V, int kRows, int kVectors>
void AddBlock(const ThinProduct<typename V::Scalar>& p, bool add,
              ThinAhead<typename V::Scalar>& ahead) {
  using Register = typename V::Register;
  constexpr int kLanes = V::kLanes;
  ThinAhead<typename V::Scalar> lines = ahead;  // a copy, to keep it in registers
  Register sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      sum[i][j] = add ? V::Load(p.c + i * p.c_stride + j * kLanes) : Register{};
    }
  }
  for (std::int64_t k = 0; k < p.inner; ++k) {
    lines.Fetch();
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
  ahead = lines;
}

// The same for one row and the last few columns, which do not fill a vector.
template <typename V>
void AddRest(const ThinProduct<typename V::Scalar>& p, bool add) {
  using Register = typename V::Register;
  Register sum = add ? V::LoadPart(p.c, p.columns) : Register{};
  for (std::int64_t k = 0; k < p.inner; ++k) {
    sum += V::Broadcast(p.a[k]) * V::LoadPart(p.w + k * p.w_stride, p.columns);
  }
  V::StorePart(p.c, sum, p.columns);
}

template <typename V, int kRows, int kVectors>
void AddSome(const ThinProduct<typename V::Scalar>& p, bool add, std::int64_t& row,
             ThinAhead<typename V::Scalar>& ahead) {
  ThinProduct<typename V::Scalar> piece = p;
  for (; row + kRows <= p.rows; row += kRows) {
    piece.a = p.a + row * p.a_stride;
    piece.c = p.c + row * p.c_stride;
    AddBlock<V, kRows, kVectors>(piece, add, ahead);
  }
}

// The same for all rows: in blocks of kMany rows, then of fewer.
template <typename V, int kMany, int kVectors>
void AddRows(const ThinProduct<typename V::Scalar>& p, bool add,
             ThinAhead<typename V::Scalar>& ahead) {
  std::int64_t row = 0;
  AddSome<V, kMany, kVectors>(p, add, row, ahead);
  if constexpr (kMany > 4) AddSome<V, 4, kVectors>(p, add, row, ahead);
  AddSome<V, 2, kVectors>(p, add, row, ahead);
  AddSome<V, 1, kVectors>(p, add, row, ahead);
}

// One row: dot products, which read a and w in vectors and are limited only by w's memory.
template <typename V, int kColumns>
void Dots(const ThinProduct<typename V::Scalar>& p) {
  std::int64_t column = 0;
  for (; column + kColumns <= p.columns; column += kColumns) {
    DotBlock<V, kColumns>(p, column);
  }
  for (; column < p.columns; ++column) DotBlock<V, 1>(p, column);
}

// Number of AddBlock calls for all rows. Each inner index of each call fetches some memory.
template <int kMany>
std::int64_t BlocksOf(std::int64_t rows) {
  std::int64_t blocks = rows / kMany;
  for (int some = kMany / 2, rest = static_cast<int>(rows % kMany); some > 0; some /= 2) {
    blocks += rest / some;
    rest %= some;
  }
  return blocks;
}

// w: [columns, inner]. For several rows: transposes w piece by piece into the first-level cache.
template <typename V, int kMany, int kVectors, int kAlone>
void ThinTransposed(const ThinProduct<typename V::Scalar>& p) {
  using T = typename V::Scalar;
  if (p.rows == 1) return Dots<V, kAlone>(p);
  constexpr std::int64_t kWide = kVectors * V::kLanes;
  alignas(64) T packed[kThinBlock * kWide], sums[kThinRows * kWide];
  for (std::int64_t column = 0; column < p.columns; column += kWide) {
    const std::int64_t rest = p.columns - column - kWide, width = rest < 0 ? rest + kWide : kWide;
    ThinAhead<T> ahead(p.w + (column + kWide) * p.w_stride, p.w_stride,
                       rest < 0       ? 0
                       : rest < kWide ? rest
                                      : kWide,
                       p.inner, BlocksOf<kMany>(p.rows) * p.inner);
    // The sums of the last columns go to memory of their own, since whole vectors would not fit.
    ThinProduct<T> piece = p;
    piece.w = packed;
    piece.w_stride = kWide;
    piece.c = width < kWide ? sums : p.c + column;
    piece.c_stride = width < kWide ? kWide : p.c_stride;
    for (std::int64_t k = 0; k < p.inner; k += kThinBlock) {
      piece.a = p.a + k;
      piece.inner = p.inner - k < kThinBlock ? p.inner - k : kThinBlock;
      for (int j = 0; j < kVectors; ++j) {
        Transposed<V>(p.w + (column + j * V::kLanes) * p.w_stride + k, p.w_stride,
                      width - j * V::kLanes, piece.inner, T(1), packed + j * V::kLanes, kWide);
      }
      AddRows<V, kMany, kVectors>(piece, k > 0, ahead);
    }
    for (std::int64_t i = 0; width < kWide && i < p.rows; ++i) {
      for (std::int64_t j = 0; j < width; ++j)
        p.c[i * p.c_stride + column + j] = sums[i * kWide + j];
    }
  }
}

// w: [inner, columns]. For each block of inner indices, for each strip of columns, for the rows of
// a: while a block is read from the second-level cache, the next one is fetched into it.
template <typename V, int kMany, int kVectors, int kAlone>
void ThinPlain(const ThinProduct<typename V::Scalar>& p) {
  using T = typename V::Scalar;
  constexpr std::int64_t kStrip = kVectors * V::kLanes, kWide = kAlone * V::kLanes;
  const std::int64_t strips = p.columns / kStrip + 1;
  for (std::int64_t k = 0; k < p.inner; k += kThinBlock) {
    ThinProduct<T> piece = p;
    piece.inner = p.inner - k < kThinBlock ? p.inner - k : kThinBlock;
    const bool add = k > 0;
    const std::int64_t rest = p.inner - k - piece.inner;
    ThinAhead<T> ahead(p.w + (k + kThinBlock) * p.w_stride, p.w_stride,
                       p.rows == 1         ? 0
                       : rest < kThinBlock ? rest
                                           : kThinBlock,
                       p.columns, BlocksOf<kMany>(p.rows) * strips * piece.inner);
    const auto at = [&](std::int64_t column) {
      piece.a = p.a + k;
      piece.w = p.w + k * p.w_stride + column;
      piece.c = p.c + column;
      piece.columns = p.columns - column;
    };
    std::int64_t column = 0;
    for (; p.rows == 1 && column + kWide <= p.columns; column += kWide) {
      at(column);
      AddBlock<V, 1, kAlone>(piece, add, ahead);
    }
    for (; column + kStrip <= p.columns; column += kStrip) {
      at(column);
      AddRows<V, kMany, kVectors>(piece, add, ahead);
    }
    for (; column + V::kLanes <= p.columns; column += V::kLanes) {
      at(column);
      AddRows<V, kMany, 1>(piece, add, ahead);
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

// w in panels: memory is read in its order, and nothing needs to be transposed.
template <typename V, int kMany, int kVectors>
void ThinPanels(const ThinProduct<typename V::Scalar>& p) {
  using T = typename V::Scalar;
  constexpr std::int64_t kWide = kPanelBytes / sizeof(T), kStrip = kVectors * V::kLanes;
  static_assert(kWide % kStrip == 0);
  alignas(64) T sums[kThinRows * kWide];
  for (std::int64_t column = 0; column < p.columns; column += kWide) {
    const std::int64_t width = p.columns - column < kWide ? p.columns - column : kWide;
    T* const c = width < kWide ? sums : p.c + column;
    ThinProduct<T> piece = p;
    piece.w_stride = kWide;
    piece.c_stride = width < kWide ? kWide : p.c_stride;
    for (std::int64_t k = 0; k < p.inner; k += kPanelBlock) {
      piece.inner = p.inner - k < kPanelBlock ? p.inner - k : kPanelBlock;
      piece.a = p.a + k;
      const T* const w = p.w + column * p.inner + k * kWide;
      const bool last = column + kWide >= p.columns && k + kPanelBlock >= p.inner;
      ThinAhead<T> ahead(w + piece.inner * kWide, kWide, last ? 0 : piece.inner, kWide,
                         BlocksOf<kMany>(p.rows) * (kWide / kStrip) * piece.inner);
      for (std::int64_t strip = 0; strip < kWide; strip += kStrip) {
        piece.w = w + strip;
        piece.c = c + strip;
        AddRows<V, kMany, kVectors>(piece, k > 0, ahead);
      }
    }
    for (std::int64_t i = 0; width < kWide && i < p.rows; ++i) {
      for (std::int64_t j = 0; j < width; ++j)
        p.c[i * p.c_stride + column + j] = sums[i * kWide + j];
    }
  }
}

}  // namespace

}  // namespace trireme::kernels
