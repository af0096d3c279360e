// Vectors of one instruction set's width for products and attention's tiles, as vector types of the
// compiler, whose arithmetic, comparisons and selections are operators. Everything is in an unnamed
// namespace, so that each file that includes this has its own copy. Files compiled with
// -ffp-contract=fast fuse products and sums.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

namespace trireme::kernels {

namespace {

template <typename T, int kBytes>
struct Vector {
  using Scalar = T;
  using Integer = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
  typedef T Register __attribute__((vector_size(kBytes)));
  typedef Integer Bits __attribute__((vector_size(kBytes)));
  typedef std::make_unsigned_t<Integer> Words __attribute__((vector_size(kBytes)));  // may wrap
  static constexpr int kLanes = kBytes / static_cast<int>(sizeof(T));
  static constexpr T kLowest = std::is_same_v<T, float> ? T(-__FLT_MAX__) : T(-__DBL_MAX__);

  [[gnu::always_inline]] static Register Broadcast(T x) { return x - Register{}; }
  [[gnu::always_inline]] static Register Load(const T* x) {
    Register y;
    __builtin_memcpy(&y, x, sizeof(y));
    return y;
  }
  [[gnu::always_inline]] static void Store(T* x, Register y) { __builtin_memcpy(x, &y, sizeof(y)); }
  // The first `count` elements, then zeros.
  [[gnu::always_inline]] static Register LoadPart(const T* x, std::int64_t count) {
    Register y{};
    for (int i = 0; i < kLanes; ++i) {
      if (i < count) y[i] = x[i];
    }
    return y;
  }
  [[gnu::always_inline]] static void StorePart(T* x, Register y, std::int64_t count) {
    for (int i = 0; i < kLanes; ++i) {
      if (i < count) x[i] = y[i];
    }
  }
  [[gnu::always_inline]] static Register Max(Register x, Register y) { return x > y ? x : y; }
  // A mask whose lane i is set if i < count.
  [[gnu::always_inline]] static Bits First(std::int64_t count) {
    return Lanes(std::make_integer_sequence<int, kLanes>()) < static_cast<Integer>(count);
  }

  // Turns rows into columns: each round interleaves the first half of the rows with the second.
  [[gnu::always_inline]] static void Transpose(Register (&block)[kLanes]) {
#pragma GCC unroll 4
    for (int round = 1; round < kLanes; round *= 2) {
      Register next[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes / 2; ++i) {
        next[2 * i] = Low(block[i], block[i + kLanes / 2]);
        next[2 * i + 1] = High(block[i], block[i + kLanes / 2]);
      }
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) block[i] = next[i];
    }
  }
  // Lane i of the result combines all lanes of x[i]. Overwrites x.
  template <typename Combine>
  [[gnu::always_inline]] static Register Reduce(Register (&x)[kLanes], Combine combine) {
#pragma GCC unroll 4
    for (int half = kLanes / 2; half > 0; half /= 2) {
#pragma GCC unroll 16
      for (int i = 0; i < half; ++i) {
        x[i] = combine(Low(x[i], x[i + half]), High(x[i], x[i + half]));
      }
    }
    return x[0];
  }

 private:
  template <int... kIndex>
  [[gnu::always_inline]] static Bits Lanes(std::integer_sequence<int, kIndex...>) {
    return Bits{kIndex...};
  }
  template <int kFrom, int... kIndex>
  [[gnu::always_inline]] static Register Interleave(Register x, Register y,
                                                    std::integer_sequence<int, kIndex...>) {
    return __builtin_shufflevector(x, y, (kFrom + kIndex / 2 + kIndex % 2 * kLanes)...);
  }
  // Low (High) interleaves the lower (upper) halves of x and y.
  [[gnu::always_inline]] static Register Low(Register x, Register y) {
    return Interleave<0>(x, y, std::make_integer_sequence<int, kLanes>());
  }
  [[gnu::always_inline]] static Register High(Register x, Register y) {
    return Interleave<kLanes / 2>(x, y, std::make_integer_sequence<int, kLanes>());
  }
};

// to[k * to_stride + i] = scale * from[i * stride + k] for one vector of rows i and k < columns.
// Only the first `rows` rows exist; the others become zeros.
template <typename V>
void Transposed(const typename V::Scalar* from, std::int64_t stride, std::int64_t rows,
                std::int64_t columns, typename V::Scalar scale, typename V::Scalar* to,
                std::int64_t to_stride) {
  constexpr int kLanes = V::kLanes;
  for (std::int64_t k = 0; k < columns; k += kLanes) {
    const typename V::Scalar* source = from + k;
    typename V::Scalar* target = to + k * to_stride;
    typename V::Register block[kLanes];
    if (rows >= kLanes && k + kLanes <= columns) {
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i, source += stride) block[i] = V::Load(source);
      V::Transpose(block);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i, target += to_stride) V::Store(target, block[i] * scale);
      continue;
    }
    for (int i = 0; i < kLanes; ++i, source += stride) {
      block[i] = i < rows ? V::LoadPart(source, columns - k) : typename V::Register{};
    }
    V::Transpose(block);
    for (int i = 0; i < kLanes && k + i < columns; ++i, target += to_stride) {
      V::Store(target, block[i] * scale);
    }
  }
}

// Coefficients of 2^f, |f| <= 1/2, from f^6 to f^0, from Chebyshev nodes (relative error 2.5e-9).
inline constexpr float kExp2[] = {1.546144469646e-4f,
                                  1.340042817774e-3f,
                                  9.618056678526e-3f,
                                  5.550327226671e-2f,
                                  2.402265092229e-1f,
                                  6.931472067028e-1f,
                                  1.0f};
// Coefficients of ln(1 + f), sqrt(1/2) <= 1 + f < sqrt(2), from Cephes (Moshier 1989), f^9 down to
// f^3.
inline constexpr float kLog[] = {7.0376836292e-2f,  -1.1514610310e-1f, 1.1676998740e-1f,
                                 -1.2420140846e-1f, 1.4249322787e-1f,  -1.6668057665e-1f,
                                 2.0000714765e-1f,  -2.4999993993e-1f, 3.3333331174e-1f};

// 2^x; 0 for x < -126; in fp32 2^127 for x > 127.
template <typename V>
[[gnu::always_inline]] inline typename V::Register Exp2(typename V::Register x) {
  using Register = typename V::Register;
  using Words = typename V::Words;
  if constexpr (sizeof(typename V::Scalar) == 8) {
    Register y;
    for (int i = 0; i < V::kLanes; ++i) y[i] = __builtin_exp2(x[i]);
    return y;
  } else {
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    const typename V::Bits small = x < -126.0f;
    x = x > 127.0f ? Register{} + 127.0f : x;
    const Register shifted = x + kRound;
    const Register f = x - (shifted - kRound);
    Register p = f * kExp2[0] + kExp2[1];
#pragma GCC unroll 8
    for (int i = 2; i < 7; ++i) p = p * f + kExp2[i];
    // Adds the integer part to the exponent of p.
    const Register y = reinterpret_cast<Register>(reinterpret_cast<Words>(p) +
                                                  (reinterpret_cast<Words>(shifted) << 23));
    return small ? Register{} : y;
  }
}

// ln(x) for x > 0.
template <typename V>
[[gnu::always_inline]] inline typename V::Register Log(typename V::Register x) {
  using Register = typename V::Register;
  using Bits = typename V::Bits;
  using Words = typename V::Words;
  if constexpr (sizeof(typename V::Scalar) == 8) {
    Register y;
    for (int i = 0; i < V::kLanes; ++i) y[i] = __builtin_log(x[i]);
    return y;
  } else {
    // x = 2^n (1 + f), 1 + f in [sqrt(1/2), sqrt(2)).
    const Words bits = reinterpret_cast<Words>(x) - 0x3F3504F3u;
    const Register n = __builtin_convertvector(reinterpret_cast<Bits>(bits) >> 23, Register);
    const Register f = reinterpret_cast<Register>((bits & 0x007FFFFFu) + 0x3F3504F3u) - 1.0f;
    Register p = f * kLog[0] + kLog[1];
#pragma GCC unroll 8
    for (int i = 2; i < 9; ++i) p = p * f + kLog[i];
    const Register square = f * f;
    return n * 0.693359375f + (f + (f * square * p - square * 0.5f) - n * 2.12194440e-4f);
  }
}

}  // namespace

}  // namespace trireme::kernels
