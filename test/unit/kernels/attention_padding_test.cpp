// Attention to sequences with padding, and of queries to the keys of another sequence, against the
// plain reference. Padded keys and values are no numbers: whoever reads them shows it.
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "kernel_testing.hpp"
#include "trireme/kernels/attention.hpp"

namespace trireme::test {
namespace {

constexpr double kAttentionPaddingFp32 = 4e-6,
                 kAttentionPaddingFp64 = 1e-13;  // relative to the largest element
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

struct Case {
  std::int64_t length, keys;  // rows of a sequence: queries, and keys of another sequence
  std::int64_t heads, kv_heads, head_dim;
  std::vector<std::int32_t> key_lengths;  // of each sequence; none: all are there
};

// Lengths at the edges of the tiles of 128 keys, sequences without keys among them.
const Case kWhole[] = {{5, 5, 2, 1, 3, {5, 0, 1}},
                       {33, 33, 4, 2, 16, {16, 33}},
                       {130, 130, 1, 1, 5, {129, 1, 128, 130}},
                       {300, 300, 2, 2, 4, {127, 257}}};
const Case kOther[] = {{1, 7, 2, 1, 3, {7, 0, 1}},   {9, 1, 2, 2, 16, {1, 1}},
                       {130, 40, 4, 2, 5, {40, 17}}, {40, 300, 2, 1, 4, {300, 129, 128}},
                       {37, 21, 2, 1, 8, {}},        {300, 130, 1, 1, 16, {130, 3}}};

std::string Describe(const Case& c, bool causal, double probability) {
  return std::to_string(c.length) + " queries, " + std::to_string(c.keys) + " keys, " +
         std::to_string(c.key_lengths.size()) + " lengths, causal " + std::to_string(causal) +
         ", dropout " + std::to_string(probability) + ": ";
}

// Operands, and what the plain loops make of them.
struct Problem {
  Problem(const Case& c, bool causal, double probability)
      : sequences(c.key_lengths.empty() ? 2 : static_cast<std::int64_t>(c.key_lengths.size())),
        shape{.sequences = sequences,
              .length = c.length,
              .heads = c.heads,
              .kv_heads = c.kv_heads,
              .head_dim = c.head_dim,
              .causal = causal,
              .positions = PositionsOf(c.length, 0, 1),
              .key_lengths = c.key_lengths.empty() ? nullptr : c.key_lengths.data()},
        dropout{probability, 77, Purpose::kAttentionDropout, 2, 0, kOrdinals.data(), c.length},
        query(Random(sequences * c.length, c.heads * c.head_dim, 1, 2)),
        dout(Random(query.rows, query.columns, 2)),
        keys(Random(sequences * c.keys, 2 * KvWidth(), 3, 2)) {
    for (std::int64_t row = 0; row < keys.rows; ++row) {
      for (std::int64_t j = 0; Padding(c, row) && j < keys.columns; ++j) keys(row, j) = kNone;
    }
    const test::AttentionShape plain = {
        c.heads,
        c.kv_heads,
        c.head_dim,
        c.length,
        causal,
        probability,
        77,
        2,
        std::vector<std::uint64_t>(kOrdinals.begin(), kOrdinals.begin() + sequences),
        {},
        c.keys,
        c.key_lengths};
    const Array key = SliceOf(keys, {0, keys.rows}, {0, KvWidth()});
    const Array value = SliceOf(keys, {0, keys.rows}, {KvWidth(), 2 * KvWidth()});
    out = test::AttentionForward(plain, query, key, value);
    gradients = test::AttentionBackward(plain, query, key, value, dout);
  }
  std::int64_t KvWidth() const { return shape.kv_heads * shape.head_dim; }
  static bool Padding(const Case& c, std::int64_t row) {
    return !c.key_lengths.empty() &&
           row % c.keys >= c.key_lengths[static_cast<std::size_t>(row / c.keys)];
  }

  std::int64_t sequences;
  kernels::AttentionShape shape;
  kernels::Dropout dropout;
  Array query, dout, keys, out;
  AttentionGradients gradients;
};

struct AttentionPaddingResults {
  Array out, lse, dquery, dkeys;
};

class AttentionPaddingTest : public KernelTest {
 protected:
  Operand Fresh(std::int64_t rows, std::int64_t columns) const {
    return Operand(GetParam(), Poison(rows, columns));
  }

  AttentionPaddingResults Whole(const Problem& p) const {
    const std::int64_t q = p.query.columns, rows = p.query.rows;
    Array x(rows, p.shape.Width());
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t j = 0; j < x.columns; ++j) {
        x(row, j) = j < q ? p.query(row, j) : p.keys(row, j - q);
      }
    }
    const Operand qkv(GetParam(), x), dy(GetParam(), p.dout), y = Fresh(rows, q);
    const Operand lse = Fresh(rows, p.shape.heads), dx = Fresh(rows, x.columns);
    const Operand scratch(Dense(GetParam()),
                          Poison(1, kernels::AttentionScratch({.threads = GetParam().threads},
                                                              p.shape, Dtype::kFloat64, true)));
    kernels::AttentionForward(Stream(), p.shape, qkv.View(), p.dropout, y.View(), lse.View(),
                              scratch.View());
    kernels::AttentionBackward(Stream(), p.shape, qkv.View(), p.dropout, y.View(), dy.View(),
                               lse.View(), dx.View(), scratch.View());
    const Array all = dx.Values();
    return {y.Values(), lse.Values(), SliceOf(all, {0, rows}, {0, q}),
            SliceOf(all, {0, rows}, {q, all.columns})};
  }

  AttentionPaddingResults Other(const Problem& p) const {
    const std::int64_t q = p.query.columns, rows = p.query.rows;
    const std::int64_t count = p.keys.rows / p.sequences;
    const Operand x(GetParam(), p.query), dy(GetParam(), p.dout), data(GetParam(), p.keys);
    const Operand y = Fresh(rows, q), lse = Fresh(rows, p.shape.heads), dx = Fresh(rows, q);
    const Operand dblock = Fresh(p.keys.rows, p.keys.columns);
    const Operand scratch(Dense(GetParam()), Poison(1, kernels::AttentionPartScratch(
                                                           {.threads = GetParam().threads}, p.shape,
                                                           count, Dtype::kFloat64, true)));
    const kernels::KeyValueBlock block = {PositionsOf(count, 0, 1), data.View()};
    const Part all = {0, kernels::AttentionPartTasks(p.shape)};
    kernels::AttentionPartStart(Stream(), y.View(), lse.View());
    kernels::AttentionPartForward(Stream(), p.shape, all, x.View(), block, p.dropout, y.View(),
                                  lse.View(), scratch.View());
    kernels::AttentionPartStartBackward(Stream(), p.shape, dx.View(), scratch.View());
    kernels::AttentionPartBackward(Stream(), p.shape, all, x.View(), block, p.dropout, y.View(),
                                   dy.View(), lse.View(), dx.View(), dblock.View(), scratch.View());
    return {y.Values(), lse.Values(), dx.Values(), dblock.Values()};
  }

  void Compare(const Case& c, const Problem& p, const AttentionPaddingResults& got,
               const std::string& what) const {
    const double tolerance = Tolerance(kAttentionPaddingFp32, kAttentionPaddingFp64) * 3;
    // With one key the scores' gradients vanish and only rounding is left.
    const double floor = c.keys == 1 ? 1 : 0;
    const std::int64_t kv = p.KvWidth();
    const auto columns = [&](std::int64_t begin, std::int64_t end) {
      return SliceOf(got.dkeys, {0, got.dkeys.rows}, {begin, end});
    };
    ExpectClose(got.out, p.out, tolerance, what + "out");
    ExpectClose(got.dquery, p.gradients.query, tolerance, what + "dquery", floor);
    ExpectClose(columns(0, kv), p.gradients.key, tolerance, what + "dkey", floor);
    ExpectClose(columns(kv, 2 * kv), p.gradients.value, tolerance, what + "dvalue");
    for (std::int64_t row = 0; row < got.dkeys.rows; ++row) {
      for (std::int64_t j = 0; Problem::Padding(c, row) && j < got.dkeys.columns; ++j) {
        ASSERT_EQ(got.dkeys(row, j), 0) << what << "gradient of padding, row " << row;
      }
    }
    for (std::size_t i = 0; i < c.key_lengths.size(); ++i) {
      const bool none = c.key_lengths[i] == 0;
      const double lse = got.lse(static_cast<std::int64_t>(i) * c.length, 0);
      EXPECT_EQ(lse == -std::numeric_limits<double>::infinity(), none) << what << "lse " << lse;
    }
  }

  template <std::size_t kCases, typename Body>
  void ForEachProblem(const Case (&cases)[kCases], const std::vector<bool>& causal,
                      const Body& body) const {
    for (const Case& c : cases) {
      for (const bool is_causal : causal) {
        for (const double probability : {0.0, 0.4}) {
          body(c, Problem(c, is_causal, probability), Describe(c, is_causal, probability));
        }
      }
    }
  }
};

TEST_P(AttentionPaddingTest, WholeSequencesEqualThePlainLoops) {
  ForEachProblem(kWhole, {true, false}, [&](const Case& c, const Problem& p, const auto& what) {
    Compare(c, p, Whole(p), what);
  });
}

TEST_P(AttentionPaddingTest, KeysOfAnotherSequenceEqualThePlainLoops) {
  ForEachProblem(kOther, {false}, [&](const Case& c, const Problem& p, const auto& what) {
    Compare(c, p, Other(p), what);
  });
}

// How wide the padding is changes no bit.
TEST_P(AttentionPaddingTest, PaddingMayHaveAnyWidth) {
  const Case narrow = {140, 135, 2, 1, 5, {130, 7}}, wide = {140, 290, 2, 1, 5, {130, 7}};
  const Problem small(narrow, false, 0.3);
  Problem large(wide, false, 0.3);
  for (std::int64_t row = 0; row < large.keys.rows; ++row) {
    if (Problem::Padding(wide, row)) continue;
    const std::int64_t from = row / wide.keys * narrow.keys + row % wide.keys;
    for (std::int64_t j = 0; j < large.keys.columns; ++j) large.keys(row, j) = small.keys(from, j);
  }
  const AttentionPaddingResults a = Other(small), b = Other(large);
  EXPECT_EQ(a.out.values, b.out.values);
  EXPECT_EQ(a.lse.values, b.lse.values);
  EXPECT_EQ(a.dquery.values, b.dquery.values);
}

INSTANTIATE_TEST_SUITE_P(Kernel, AttentionPaddingTest, testing::ValuesIn(AllSettings()), NameOf);

}  // namespace
}  // namespace trireme::test
