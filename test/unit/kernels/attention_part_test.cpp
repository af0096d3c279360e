// Attention over parts of the keys: those of a ring's other ranks, and those of a cache.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "documents.hpp"
#include "kernel_testing.hpp"
#include "trireme/kernels/attention.hpp"
#include "trireme/kernels/elementwise.hpp"

namespace trireme::test {
namespace {

using kernels::AttentionShape;

// Attention by blocks against attention to whole sequences, for any cut; dropout, rotary and
// position tables on parts of a sequence.

constexpr double kPartFp32 = 1e-5, kPartFp64 = 1e-12;  // relative to the largest element

using Cut = std::vector<Positions>;  // parts of the ranks; together the sequence

Cut RingCut(std::int64_t length, int ranks) {
  Cut cut;
  for (int rank = 0; rank < ranks; ++rank) cut.push_back(PositionsOf(length, rank, ranks));
  return cut;
}

AttentionShape MakeShape(std::int64_t sequences, std::int64_t length, std::int64_t heads,
                         std::int64_t kv_heads, std::int64_t head_dim, bool causal = true) {
  return {sequences, length, heads, kv_heads, head_dim, 3, causal};
}

AttentionShape Local(AttentionShape shape, const Positions& at) {
  shape.length = at.Count();
  shape.positions = at;
  return shape;
}

// The rows of `whole`, [sequences * length, n], that are at `at`.
Array RowsAt(const Array& whole, const AttentionShape& shape, const Positions& at) {
  Array part(shape.sequences * at.Count(), whole.columns);
  for (std::int64_t row = 0; row < part.rows; ++row) {
    const std::int64_t from = row / at.Count() * shape.length + at.At(row % at.Count());
    for (std::int64_t j = 0; j < whole.columns; ++j) part(row, j) = whole(from, j);
  }
  return part;
}
// Adds the columns of `part` to `whole`, from column `first` on.
void AddRowsAt(const Array& part, const AttentionShape& shape, const Positions& at,
               std::int64_t first, Array& whole) {
  for (std::int64_t row = 0; row < part.rows; ++row) {
    const std::int64_t to = row / at.Count() * shape.length + at.At(row % at.Count());
    for (std::int64_t j = 0; j < part.columns; ++j) whole(to, first + j) += part(row, j);
  }
}
Array ColumnsOf(const Array& x, std::int64_t begin, std::int64_t end) {
  return SliceOf(x, {0, x.rows}, {begin, end});
}

struct Results {
  Array out, lse, dqkv;
};

class AttentionPartTest : public KernelTest {
 protected:
  static std::int64_t Queries(const AttentionShape& s) { return s.heads * s.head_dim; }
  Operand Fresh(std::int64_t rows, std::int64_t columns) const {
    return Operand(GetParam(), Poison(rows, columns));
  }

  Results Whole(const AttentionShape& shape, const Array& qkv, const Array& dout,
                const kernels::Dropout& dropout) const {
    const Operand x(GetParam(), qkv), dy(GetParam(), dout), dx = Fresh(qkv.rows, qkv.columns);
    const Operand y = Fresh(qkv.rows, Queries(shape)), lse = Fresh(qkv.rows, shape.heads);
    const Operand scratch(Dense(GetParam()),
                          Poison(1, kernels::AttentionScratch({.threads = GetParam().threads},
                                                              shape, Dtype::kFloat64, true)));
    kernels::AttentionForward(Stream(), shape, x.View(), dropout, y.View(), lse.View(),
                              scratch.View());
    kernels::AttentionBackward(Stream(), shape, x.View(), dropout, y.View(), dy.View(), lse.View(),
                               dx.View(), scratch.View());
    return {y.Values(), lse.Values(), dx.Values()};
  }

  // Results of each rank of `cut` from its queries and all blocks, its own first, put together.
  Results InParts(const AttentionShape& shape, const Cut& cut, const Array& qkv, const Array& dout,
                  const kernels::Dropout& dropout, bool task_by_task) const {
    Results sum = {Array(qkv.rows, Queries(shape)), Array(qkv.rows, shape.heads),
                   Array(qkv.rows, qkv.columns)};
    for (std::size_t rank = 0; rank < cut.size(); ++rank) {
      AddRank(shape, cut, rank, qkv, dout, dropout, task_by_task, sum);
    }
    return sum;
  }

  void AddRank(const AttentionShape& whole, const Cut& cut, std::size_t rank, const Array& qkv,
               const Array& dout, const kernels::Dropout& dropout, bool task_by_task,
               Results& sum) const {
    AttentionShape shape = Local(whole, cut[rank]);
    std::vector<std::int32_t> begins;
    if (whole.begins != nullptr) {
      const std::int64_t count = whole.sequences * whole.length;
      begins = BeginsAt({whole.begins, whole.begins + count}, whole.length, cut[rank]);
      shape.begins = begins.data();
    }
    const std::int64_t rows = shape.sequences * shape.length, queries = Queries(shape);
    const Operand x(GetParam(), RowsAt(qkv, whole, cut[rank]));
    const Operand dy(GetParam(), RowsAt(dout, whole, cut[rank]));
    const Operand y = Fresh(rows, queries), lse = Fresh(rows, shape.heads);
    const Operand dx = Fresh(rows, qkv.columns);
    const Part all = {0, kernels::AttentionPartTasks(shape)};
    const std::int64_t step = task_by_task ? 1 : all.end;
    // Calls body(tasks, block, its positions, scratch) for all blocks.
    const auto for_blocks = [&](const auto& body) {
      for (std::size_t i = 0; i < cut.size(); ++i) {
        const Positions& at = cut[(rank + cut.size() - i) % cut.size()];
        const Operand data(GetParam(), ColumnsOf(RowsAt(qkv, whole, at), queries, qkv.columns));
        const std::int64_t most = std::max(at.early.Size(), at.late.Size());
        const Operand scratch(
            Dense(GetParam()),
            Poison(1, kernels::AttentionPartScratch({.threads = GetParam().threads}, shape, most,
                                                    Dtype::kFloat64, true)));
        body(kernels::KeyValueBlock{at, data.View()}, scratch.View());
        scratch.Values();
      }
    };
    kernels::AttentionPartStart(Stream(), y.View(), lse.View());
    for_blocks([&](const kernels::KeyValueBlock& block, const kernels::Matrix& scratch) {
      for (std::int64_t task = 0; task < all.end; task += step) {
        kernels::AttentionPartForward(Stream(), shape, {task, task + step}, x.View(), block,
                                      dropout, y.View(), lse.View(), scratch);
      }
    });
    kernels::AttentionPartStartBackward(Stream(), shape, dx.View(), {});
    for_blocks([&](const kernels::KeyValueBlock& block, const kernels::Matrix& scratch) {
      const Operand gradient = Fresh(block.data.rows, block.data.columns);
      for (std::int64_t task = 0; task < all.end; task += step) {
        kernels::AttentionPartBackward(Stream(), shape, {task, task + step}, x.View(), block,
                                       dropout, y.View(), dy.View(), lse.View(), dx.View(),
                                       gradient.View(), scratch);
      }
      AddRowsAt(gradient.Values(), whole, block.positions, queries, sum.dqkv);
    });
    AddRowsAt(y.Values(), whole, cut[rank], 0, sum.out);
    AddRowsAt(lse.Values(), whole, cut[rank], 0, sum.lse);
    AddRowsAt(ColumnsOf(dx.Values(), 0, queries), whole, cut[rank], 0, sum.dqkv);
    for (const double value : ColumnsOf(dx.Values(), queries, qkv.columns).values) {
      ASSERT_TRUE(std::isnan(value)) << "keys' and values' columns of dqkv are not written";
    }
  }

  void Compare(const AttentionShape& shape, const Cut& cut, double probability,
               const std::string& what, double least_floor = 0) const {
    const std::int64_t rows = shape.sequences * shape.length;
    const Array qkv = Random(rows, shape.Width(), 1, 2), dout = Random(rows, Queries(shape), 2);
    const kernels::Dropout dropout = {
        probability, 77, Purpose::kAttentionDropout, 2, 0, kOrdinals.data(), shape.length};
    const Results want = Whole(shape, qkv, dout, dropout);
    for (const bool task_by_task : {false, true}) {
      if (task_by_task && kernels::AttentionPartTasks(shape) < 2) break;
      const Results got = InParts(shape, cut, qkv, dout, dropout, task_by_task);
      const double tolerance = Tolerance(kPartFp32, kPartFp64);
      ExpectClose(got.out, want.out, tolerance, what + ": out");
      ExpectClose(got.lse, want.lse, tolerance, what + ": lse");
      // With one key, scores' gradients are rounding.
      const std::int64_t q = Queries(shape), kv = shape.kv_heads * shape.head_dim;
      const double floor = shape.length == 1 ? 1 : least_floor;
      const Part parts[] = {{0, q}, {q, q + kv}, {q + kv, q + 2 * kv}};
      for (const Part& part : parts) {
        ExpectClose(ColumnsOf(got.dqkv, part.begin, part.end),
                    ColumnsOf(want.dqkv, part.begin, part.end), tolerance,
                    what + ": dqkv from column " + std::to_string(part.begin), floor);
      }
    }
  }
};

TEST_P(AttentionPartTest, BlocksOfARingMakeTheWhole) {
  const AttentionShape shapes[] = {MakeShape(1, 1, 1, 1, 1), MakeShape(2, 3, 2, 1, 3),
                                   MakeShape(2, 13, 3, 3, 4), MakeShape(1, 37, 4, 2, 5)};
  for (AttentionShape shape : shapes) {
    for (const int ranks : {1, 2, 3, 8}) {  // more blocks than positions: some are empty
      for (const double probability : {0.0, 0.4}) {
        for (const bool causal : {true, false}) {
          shape.causal = causal;
          Compare(shape, RingCut(shape.length, ranks), probability,
                  "length " + std::to_string(shape.length) + " on " + std::to_string(ranks));
        }
      }
    }
  }
}

TEST_P(AttentionPartTest, AnyCutWillDo) {
  const Cut cut = {
      {{5, 6}, {80, 145}}, {{0, 5}, {150, 150}}, {{6, 80}, {145, 150}}, {{9, 9}, {9, 9}}};
  for (const bool causal : {true, false}) {
    Compare(MakeShape(2, 150, 2, 1, 3, causal), cut, 0.3, "an odd cut");
  }
}

TEST_P(AttentionPartTest, Documents) {
  for (const std::int64_t mean : {1, 4, 20, 200}) {
    for (AttentionShape shape : {MakeShape(2, 37, 4, 2, 5), MakeShape(2, 300, 2, 1, 3)}) {
      const std::vector<std::int32_t> begins = RandomBegins(shape.sequences, shape.length, mean, 9);
      shape.begins = begins.data();
      for (const int ranks : {1, 2, 3, 4}) {
        Compare(shape, RingCut(shape.length, ranks), ranks == 3 ? 0.3 : 0,
                "documents of " + std::to_string(mean) + " on " + std::to_string(ranks),
                mean < 2 ? 1 : 0);
      }
    }
  }
}

TEST_P(AttentionPartTest, KeysBeyondOnePanel) {
  Compare(MakeShape(1, 1100, 1, 1, 2), RingCut(1100, 1), 0.2, "one block");
}

TEST_P(AttentionPartTest, NoSequences) {
  const AttentionShape shape = MakeShape(0, 9, 2, 1, 3);
  Compare(shape, RingCut(9, 2), 0.2, "none");
}

// Scores far below those of earlier blocks add nothing; far above, they replace what was there.
TEST_P(AttentionPartTest, LargeScoresStayFinite) {
  const AttentionShape shape = MakeShape(1, 40, 1, 1, 4);
  const Array qkv = Random(40, 12, 1, 200), dout = Random(40, 4, 2);
  const Results want = Whole(shape, qkv, dout, {});
  const Results got = InParts(shape, RingCut(40, 3), qkv, dout, {}, false);
  // Scores near 1e4: fp32 knows them to 1e-3, and so the weights.
  ExpectClose(got.out, want.out, Tolerance(1e-2, 1e-10), "out");
  ExpectClose(got.lse, want.lse, Tolerance(1e-6, 1e-14), "lse");
}

// Kernels of single rows act on a part of the sequence as on the whole.
TEST_P(AttentionPartTest, RowsKnowTheirPositions) {
  const AttentionShape shape = MakeShape(3, 11, 2, 1, 4);
  const Array x = Random(33, shape.Width(), 1), table = Random(11, shape.Width(), 2);
  const Operand rope(GetParam(), Poison(11, 4)), positions(GetParam(), table);
  kernels::RopeTable(100, rope.View());
  const auto run = [&](const AttentionShape& s, const Array& rows, Array* gradient) {
    kernels::Dropout dropout = MakeDropout(0.4, s.length);
    dropout.positions = s.positions;
    const Operand turned(GetParam(), rows), dropped(GetParam(), rows), placed(GetParam(), rows);
    const Operand dtable(GetParam(), Array(11, s.Width()));
    kernels::Rope(Stream(), s, rope.View(), false, turned.View());
    kernels::DropoutForward(Stream(), dropped.View(), dropout, dropped.View());
    kernels::PositionForward(Stream(), positions.View(), nullptr, dropout, placed.View());
    kernels::PositionBackward(Stream(), nullptr, dropout, turned.View(), dtable.View());
    *gradient = gradient->Empty() ? dtable.Values() : Add(*gradient, dtable.Values());
    return std::vector<Array>{turned.Values(), dropped.Values(), placed.Values()};
  };
  Array want_gradient, gradient;
  const std::vector<Array> want = run(shape, x, &want_gradient);
  for (const Positions& at : RingCut(11, 3)) {
    const std::vector<Array> got = run(Local(shape, at), RowsAt(x, shape, at), &gradient);
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].values, RowsAt(want[i], shape, at).values) << "operation " << i;
    }
  }
  EXPECT_EQ(gradient.values, want_gradient.values) << "of the table of positions";
}

INSTANTIATE_TEST_SUITE_P(Kernel, AttentionPartTest, testing::ValuesIn(AllSettings()), NameOf);

// Attention to a cache of keys and values against attention within whole sequences, whose bits it
// has, and against a plain loop.

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
