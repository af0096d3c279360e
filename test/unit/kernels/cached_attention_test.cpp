// Attention to a cache of keys and values against attention within whole sequences, whose bits it
// has, and against a plain loop.
#include "trireme/kernels/attention.hpp"

#include <algorithm>
#include <cmath>

#include "kernel_testing.hpp"

namespace trireme::test {
namespace {

constexpr double kCachedAttentionFp32 = 4e-6,
                 kCachedAttentionFp64 = 1e-13;  // relative to the largest element
constexpr std::int64_t kSlots = 4;
constexpr std::int32_t kSlotOf[] = {2, 0, 3};  // of each sequence

struct CachedAttentionCase {
  std::int64_t sequences, length, heads, kv_heads, head_dim;
};
// Lengths around tiles of 128 keys; grouped and single key heads, more of them than rows of a call;
// odd head sizes, and those that whole vectors divide.
constexpr CachedAttentionCase kCachedCases[] = {
    {1, 1, 1, 1, 1},   {3, 5, 2, 1, 3},   {2, 17, 3, 3, 4},  {2, 33, 18, 1, 17},
    {1, 64, 2, 1, 32}, {3, 130, 4, 2, 5}, {2, 260, 2, 1, 16}};

// One query after the other: out of the whole problem, [sequences length, heads head_dim].
Array Plain(const CachedAttentionCase& c, const Array& qkv) {
  const std::int64_t d = c.head_dim, group = c.heads / c.kv_heads;
  Array out(c.sequences * c.length, c.heads * d);
  for (std::int64_t row = 0; row < out.rows; ++row) {
    for (std::int64_t head = 0; head < c.heads; ++head) {
      const std::int64_t key = (c.heads + head / group) * d, value = key + c.kv_heads * d;
      std::vector<double> weights;
      double sum = 0;
      for (std::int64_t other = row / c.length * c.length; other <= row; ++other) {
        double score = 0;
        for (std::int64_t k = 0; k < d; ++k) score += qkv(row, head * d + k) * qkv(other, key + k);
        weights.push_back(std::exp(score / std::sqrt(static_cast<double>(d))));
        sum += weights.back();
      }
      for (std::int64_t k = 0; k < d; ++k) {
        double mean = 0;
        for (std::size_t i = 0; i < weights.size(); ++i) {
          const std::int64_t other = row / c.length * c.length + static_cast<std::int64_t>(i);
          mean += weights[i] / sum * qkv(other, value + k);
        }
        out(row, head * d + k) = mean;
      }
    }
  }
  return out;
}

kernels::Matrix KeyValuesOf(const kernels::AttentionShape& shape, const kernels::Matrix& qkv) {
  return qkv.Columns(shape.heads * shape.head_dim, 2 * shape.kv_heads * shape.head_dim);
}

class CachedAttentionTest : public KernelTest {
 protected:
  // Rows [first, first + count) of every sequence.
  static Array Some(const CachedAttentionCase& c, const Array& all, std::int64_t first,
                    std::int64_t count) {
    Array some(c.sequences * count, all.columns);
    for (std::int64_t i = 0; i < some.rows; ++i) {
      for (std::int64_t j = 0; j < all.columns; ++j) {
        some(i, j) = all(i / count * c.length + first + i % count, j);
      }
    }
    return some;
  }
  static kernels::AttentionShape ShapeOf(const CachedAttentionCase& c, std::int64_t length) {
    return {.sequences = c.sequences,
            .length = length,
            .heads = c.heads,
            .kv_heads = c.kv_heads,
            .head_dim = c.head_dim};
  }
  // Keeps the first `begun` rows in one pass and the others in passes of `step`; attends in the
  // latter. Rows of the former stay poison.
  Array Cached(const CachedAttentionCase& c, const Array& all, std::int64_t begun,
               std::int64_t step) const {
    const kernels::AttentionShape shape = ShapeOf(c, c.length);
    const std::int64_t elements = kernels::KeyValueElements(Stream(), shape, c.length);
    const Operand memory(Dense(GetParam()), Random(1, kSlots * elements, 9, 100));  // older texts'
    const kernels::KeyValueCache cache{memory.View().data, memory.View().dtype, kSlots, c.length};
    Array out = Poison(c.sequences * c.length, c.heads * c.head_dim);
    for (std::int64_t first = 0; first < c.length;) {
      const std::int64_t count = first < begun ? begun : std::min(step, c.length - first);
      const Operand qkv(GetParam(), Some(c, all, first, count));
      const Operand part(GetParam(), Poison(c.sequences * count, out.columns));
      const std::vector<std::int32_t> firsts(kSlots, static_cast<std::int32_t>(first));
      const kernels::CachedRows rows{kSlotOf, firsts.data()};
      kernels::KeepKeyValues(Stream(), ShapeOf(c, count),
                             KeyValuesOf(ShapeOf(c, count), qkv.View()), rows, cache);
      if (first >= begun) {
        kernels::CachedAttention(Stream(), ShapeOf(c, count), qkv.View(), rows, cache, part.View());
        const Array values = part.Values();
        for (std::int64_t i = 0; i < values.rows; ++i) {
          for (std::int64_t j = 0; j < values.columns; ++j) {
            out(i / count * c.length + first + i % count, j) = values(i, j);
          }
        }
      }
      first += count;
    }
    memory.Values();  // nothing around it was touched
    return out;
  }
};

TEST_P(CachedAttentionTest, IsThatOfAPlainLoop) {
  for (const CachedAttentionCase& c : kCachedCases) {
    const Array all = Random(c.sequences * c.length, (c.heads + 2 * c.kv_heads) * c.head_dim, 1, 2);
    const Array want = Plain(c, all);
    for (const std::int64_t step : {1, 3}) {
      ExpectClose(Cached(c, all, 0, step), want,
                  Tolerance(kCachedAttentionFp32, kCachedAttentionFp64),
                  std::to_string(c.length) + " positions");
    }
  }
}

TEST_P(CachedAttentionTest, HasTheBitsOfWholeSequences) {
  for (const CachedAttentionCase& c : kCachedCases) {
    const Array all = Random(c.sequences * c.length, (c.heads + 2 * c.kv_heads) * c.head_dim, 1, 2);
    const kernels::AttentionShape shape = ShapeOf(c, c.length);
    const Operand qkv(GetParam(), all), out(GetParam(), Poison(all.rows, c.heads * c.head_dim));
    const Operand lse(GetParam(), Poison(all.rows, c.heads));
    const Operand scratch(Dense(GetParam()),
                          Poison(1, kernels::AttentionScratch({.threads = GetParam().threads},
                                                              shape, Dtype::kFloat64, true)));
    kernels::AttentionForward(Stream(), shape, qkv.View(), {}, out.View(), lse.View(),
                              scratch.View());
    const Array want = out.Values();
    const std::int64_t begun = c.length / 2;
    const Array got = Cached(c, all, begun, 1);
    for (std::int64_t row = 0; row < want.rows; ++row) {
      for (std::int64_t j = 0; row % c.length >= begun && j < want.columns; ++j) {
        ASSERT_EQ(got(row, j), want(row, j)) << c.length << " positions, row " << row;
      }
    }
  }
}

// A text goes on in another slot, over an older one, with the bits that it would have in its own.
TEST_P(CachedAttentionTest, ACopiedSlotGoesOnAsItsOrigin) {
  for (const CachedAttentionCase& c : kCachedCases) {
    const std::int64_t kept = c.length - 1;
    const kernels::AttentionShape whole = ShapeOf(c, c.length), one = ShapeOf(c, 1);
    const Array all = Random(c.sequences * c.length, whole.Width(), 1, 2);
    const Operand before(GetParam(), Some(c, all, 0, kept)),
        last(GetParam(), Some(c, all, kept, 1));
    const std::int64_t elements = kernels::KeyValueElements(Stream(), whole, c.length);
    const Operand memory(Dense(GetParam()), Random(1, kSlots * elements, 9, 100));
    const kernels::KeyValueCache cache{memory.View().data, memory.View().dtype, kSlots, c.length};
    const std::vector<std::int32_t> start(3, 0), at(3, static_cast<std::int32_t>(kept));
    kernels::KeepKeyValues(Stream(), ShapeOf(c, kept), KeyValuesOf(whole, before.View()),
                           {kSlotOf, start.data()}, cache);
    kernels::CopyKeyValues(Stream(), whole, {kSlotOf[0], 1, kept}, cache);
    const auto attend = [&](std::int32_t slot) {
      std::vector<std::int32_t> slots(kSlotOf, kSlotOf + 3);
      slots[0] = slot;
      const Operand out(GetParam(), Poison(c.sequences, c.heads * c.head_dim));
      kernels::KeepKeyValues(Stream(), one, KeyValuesOf(whole, last.View()),
                             {slots.data(), at.data()}, cache);
      kernels::CachedAttention(Stream(), one, last.View(), {slots.data(), at.data()}, cache,
                               out.View());
      return out.Values();
    };
    const Array got = attend(1), want = attend(kSlotOf[0]);
    for (std::int64_t i = 0; i < want.rows * want.columns; ++i) {
      ASSERT_EQ(got(i / want.columns, i % want.columns), want(i / want.columns, i % want.columns))
          << c.length << " positions";
    }
    memory.Values();  // nothing around it was touched
  }
}

INSTANTIATE_TEST_SUITE_P(Kernel, CachedAttentionTest, testing::ValuesIn(AllSettings()), NameOf);

}  // namespace
}  // namespace trireme::test
