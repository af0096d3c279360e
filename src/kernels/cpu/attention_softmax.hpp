// The rows of attention's tiles between the products: online softmax (Milakov and Gimelshein 2018)
// and its gradient (Dao et al. 2022, appendix B). Each file that includes this has its own copy,
// for its instruction set: everything is in an unnamed namespace.
#ifndef TRIREME_SRC_KERNELS_CPU_ATTENTION_SOFTMAX_HPP_
#define TRIREME_SRC_KERNELS_CPU_ATTENTION_SOFTMAX_HPP_

#include "attention_kernels.hpp"
#include "attention_vector.hpp"

namespace trireme::kernels {

namespace {

[[gnu::always_inline]] inline std::int64_t VisibleTo(const AttentionVisible& visible,
                                                     std::int64_t row) {
  const std::int64_t count = visible.first + row * visible.step;
  return count < 0 ? 0 : count > visible.keys ? visible.keys : count;
}

constexpr std::int64_t Padded(std::int64_t count) {
  return (count + kAttentionPad - 1) / kAttentionPad * kAttentionPad;
}

// Largest element of s[0, count) in each lane.
template <typename V>
[[gnu::always_inline]] inline typename V::Register RowMax(const typename V::Scalar* s,
                                                          std::int64_t count) {
  typename V::Register top = V::Broadcast(V::kLowest);
  std::int64_t j = 0;
  for (; j + V::kLanes <= count; j += V::kLanes) top = V::Max(V::Load(s + j), top);
  if (j < count) top = V::Max(V::First(count - j) ? V::Load(s + j) : top, top);
  return top;
}

// s = 2^(s - shift) for [0, count), zeros to the padded `columns`; the sum in each lane.
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

// kLanes rows at a time, so that their maxima and sums are vectors.
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
    // A sum that is no number stays none.
    // NOLINTNEXTLINE(misc-redundant-expression): 0, or no number
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
              const typename V::Scalar* lse, const typename V::Scalar* inner, typename V::Scalar* p,
              typename V::Scalar* d, std::int64_t stride) {
  using Register = typename V::Register;
  const std::int64_t columns = Padded(visible.keys);
  for (std::int64_t i = 0; i < rows; ++i) {
    auto* const weight = p + i * stride;
    auto* const slope = d + i * stride;
    const std::int64_t count = VisibleTo(visible, i);
    std::int64_t j = 0;
    for (; j + V::kLanes <= count; j += V::kLanes) {
      const Register w = Exp2<V>(V::Load(weight + j) - lse[i]);
      V::Store(weight + j, w);
      V::Store(slope + j, w * (V::Load(slope + j) - inner[i]) * scale);
    }
    if (j < count) {
      const Register w = V::First(count - j) ? Exp2<V>(V::Load(weight + j) - lse[i]) : Register{};
      V::Store(weight + j, w);
      V::Store(slope + j,
               V::First(count - j) ? w * (V::Load(slope + j) - inner[i]) * scale : Register{});
      j += V::kLanes;
    }
    for (; j < columns; j += V::kLanes) {
      V::Store(weight + j, Register{});
      V::Store(slope + j, Register{});
    }
  }
}

}  // namespace

}  // namespace trireme::kernels

#endif  // TRIREME_SRC_KERNELS_CPU_ATTENTION_SOFTMAX_HPP_
