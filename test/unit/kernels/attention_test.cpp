// Attention against the reference: whole windows and padded ones.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "documents.hpp"
#include "kernel_testing.hpp"
#include "trireme/kernels/attention.hpp"

namespace trireme::test {
namespace {

// Attention against the plain reference, one query at a time, and rotary positions.

constexpr double kAttentionFp32 = 4e-6, kAttentionFp64 = 1e-13;  // relative to the largest element

struct AttentionCase {
  std::int64_t sequences, length, heads, kv_heads, head_dim;
  double divisor = 0;
};
// Lengths around the tile of 128 queries and keys and the span of 256 queries; grouped, shared and
// single key heads; odd head sizes, and those that whole vectors divide.
constexpr AttentionCase kAttentionCases[] = {
    {1, 1, 1, 1, 1},     {3, 3, 2, 1, 3},   {2, 17, 3, 3, 4},   {2, 33, 6, 2, 17},
    {1, 63, 2, 2, 32},   {1, 64, 2, 1, 33}, {2, 65, 1, 1, 8},   {1, 128, 3, 1, 16},
    {1, 130, 2, 2, 5},   {2, 32, 4, 4, 32}, {1, 129, 2, 1, 16}, {1, 400, 2, 1, 3},
    {2, 70, 2, 1, 24, 9}};

// Documents that end within tiles and at their edges, and, last, that fill less than one.
constexpr AttentionCase kDocumentCases[] = {{2, 7, 2, 1, 3},   {1, 65, 2, 2, 16},
                                            {2, 130, 4, 2, 5}, {1, 300, 1, 1, 32},
                                            {1, 700, 2, 1, 4}, {2, 513, 1, 1, 3}};

kernels::AttentionShape ShapeOf(const AttentionCase& c, bool causal = true,
                                std::int64_t first_head = 0) {
  kernels::AttentionShape shape = {c.sequences, c.length,   c.heads, c.kv_heads,
                                   c.head_dim,  first_head, causal};
  shape.divisor = c.divisor;
  return shape;
}
std::string Describe(const AttentionCase& c) {
  return std::to_string(c.sequences) + " x " + std::to_string(c.length) + ", heads " +
         std::to_string(c.heads) + "/" + std::to_string(c.kv_heads) + " x " +
         std::to_string(c.head_dim) + " ";
}

Array Columns(const Array& x, std::int64_t begin, std::int64_t count) {
  Array part(x.rows, count);
  for (std::int64_t i = 0; i < x.rows; ++i) {
    for (std::int64_t j = 0; j < count; ++j) part(i, j) = x(i, begin + j);
  }
  return part;
}
Array Join(const std::vector<Array>& parts) {
  Array whole(parts[0].rows, 0);
  for (const Array& part : parts) whole.columns += part.columns;
  for (std::int64_t i = 0; i < whole.rows; ++i) {
    for (const Array& part : parts) {
      for (std::int64_t j = 0; j < part.columns; ++j) whole.values.push_back(part(i, j));
    }
  }
  return whole;
}

// Operands of one problem, and what the plain loops make of them.
struct Problem {
  Problem(const AttentionCase& c, double probability, bool causal,
          const std::vector<std::int32_t>& begins = {})
      : query_width(c.heads * c.head_dim),
        kv_width(c.kv_heads * c.head_dim),
        dropout{probability, 77, Purpose::kAttentionDropout, 2, 0, kOrdinals.data(), c.length},
        qkv(Random(c.sequences * c.length, query_width + 2 * kv_width, 1, 2)),
        dout(Random(c.sequences * c.length, query_width, 2)) {
    AttentionShape shape = {
        c.heads,
        c.kv_heads,
        c.head_dim,
        c.length,
        causal,
        probability,
        77,
        2,
        std::vector<std::uint64_t>(kOrdinals.begin(), kOrdinals.begin() + c.sequences),
        begins};
    shape.divisor = c.divisor;
    const Array query = Columns(qkv, 0, query_width), key = Columns(qkv, query_width, kv_width);
    const Array value = Columns(qkv, query_width + kv_width, kv_width);
    out = test::AttentionForward(shape, query, key, value);
    const AttentionGradients gradients = test::AttentionBackward(shape, query, key, value, dout);
    dqkv = Join({gradients.query, gradients.key, gradients.value});
  }
  std::int64_t query_width, kv_width;
  kernels::Dropout dropout;
  Array qkv, dout, out, dqkv;
};

class AttentionTest : public KernelTest {
 protected:
  template <typename Body>
  void ForEachCase(Body body) const {
    for (const AttentionCase& c : kAttentionCases) {
      for (const double probability : {0.0, 0.4}) {
        for (const bool causal : {true, false}) body(c, probability, causal);
      }
    }
  }
  Operand Scratch(const kernels::AttentionShape& shape) const {
    return Operand(Dense(GetParam()),
                   Poison(1, kernels::AttentionScratch({.threads = GetParam().threads}, shape,
                                                       Dtype::kFloat64, true)));
  }
};

TEST_P(AttentionTest, Forward) {
  ForEachCase([&](const AttentionCase& c, double probability, bool causal) {
    const Problem problem(c, probability, causal);
    const kernels::AttentionShape shape = ShapeOf(c, causal);
    const Operand qkv(GetParam(), problem.qkv), scratch = Scratch(shape);
    const Operand out(GetParam(), Poison(problem.out.rows, problem.out.columns));
    const Operand lse(GetParam(), Poison(problem.out.rows, c.heads));
    kernels::AttentionForward(Stream(), shape, qkv.View(), problem.dropout, out.View(), lse.View(),
                              scratch.View());
    ExpectClose(out.Values(), problem.out, Tolerance(kAttentionFp32, kAttentionFp64),
                Describe(c) + "out");
    EXPECT_EQ(qkv.Values().values, problem.qkv.values) << "qkv is only read";
    scratch.Values();
  });
}

TEST_P(AttentionTest, SavesTheLogarithmOfTheSumOfExponentials) {
  const AttentionCase c = {2, 70, 2, 1, 6};
  const Problem problem(c, 0.5, true);
  Array want(c.sequences * c.length, c.heads);
  for (std::int64_t row = 0; row < want.rows; ++row) {
    for (std::int64_t h = 0; h < c.heads; ++h) {
      double sum = 0;
      for (std::int64_t key = row / c.length * c.length; key <= row; ++key) {
        double score = 0;
        for (std::int64_t d = 0; d < c.head_dim; ++d) {
          score += problem.qkv(row, h * c.head_dim + d) * problem.qkv(key, problem.query_width + d);
        }
        sum += std::exp(score / std::sqrt(6.0));
      }
      want(row, h) = std::log(sum);
    }
  }
  const kernels::AttentionShape shape = ShapeOf(c);
  const Operand qkv(GetParam(), problem.qkv), scratch = Scratch(shape);
  const Operand out(GetParam(), Poison(want.rows, problem.query_width));
  const Operand lse(GetParam(), Poison(want.rows, c.heads));
  kernels::AttentionForward(Stream(), shape, qkv.View(), problem.dropout, out.View(), lse.View(),
                            scratch.View());
  ExpectClose(lse.Values(), want, Tolerance(1e-6, 1e-14), "lse");
}

TEST_P(AttentionTest, Backward) {
  ForEachCase([&](const AttentionCase& c, double probability, bool causal) {
    const Problem problem(c, probability, causal);
    const kernels::AttentionShape shape = ShapeOf(c, causal);
    const Operand qkv(GetParam(), problem.qkv), dout(GetParam(), problem.dout);
    const Operand out(GetParam(), Poison(problem.out.rows, problem.out.columns));
    const Operand lse(GetParam(), Poison(problem.out.rows, c.heads));
    const Operand dqkv(GetParam(), Poison(problem.qkv.rows, problem.qkv.columns));
    const Operand again(GetParam(), Poison(problem.qkv.rows, problem.qkv.columns));
    const Operand scratch = Scratch(shape);
    kernels::AttentionForward(Stream(), shape, qkv.View(), problem.dropout, out.View(), lse.View(),
                              scratch.View());
    for (const Operand* result : {&dqkv, &again}) {
      kernels::AttentionBackward(Stream(), shape, qkv.View(), problem.dropout, out.View(),
                                 dout.View(), lse.View(), result->View(), scratch.View());
    }
    const Array got = dqkv.Values();
    const std::int64_t q = problem.query_width, kv = problem.kv_width;
    const double tolerance = Tolerance(kAttentionFp32, kAttentionFp64) * 3;
    const auto compare = [&](std::int64_t begin, std::int64_t count, const char* name) {
      // One key: the scores' gradients vanish and only rounding is left.
      ExpectClose(Columns(got, begin, count), Columns(problem.dqkv, begin, count), tolerance,
                  Describe(c) + name, c.length == 1 ? 1 : 0);
    };
    compare(0, q, "dq");
    compare(q, kv, "dk");
    compare(q + kv, kv, "dv");
    EXPECT_TRUE(again.SameBits(dqkv)) << "a repetition has the same bits";
    EXPECT_EQ(dout.Values().values, problem.dout.values) << "dout is only read";
    scratch.Values();
  });
}

// Forward and backward with documents of `mean` tokens on average.
class AttentionDocumentsTest : public AttentionTest {
 protected:
  struct Results {
    Array out, lse, dqkv;
  };
  Results Run(const kernels::AttentionShape& shape, const Problem& problem) const {
    const Operand qkv(GetParam(), problem.qkv), dout(GetParam(), problem.dout);
    const Operand out(GetParam(), Poison(problem.out.rows, problem.out.columns));
    const Operand lse(GetParam(), Poison(problem.out.rows, shape.heads));
    const Operand dqkv(GetParam(), Poison(problem.qkv.rows, problem.qkv.columns));
    const Operand scratch = Scratch(shape);
    kernels::AttentionForward(Stream(), shape, qkv.View(), problem.dropout, out.View(), lse.View(),
                              scratch.View());
    kernels::AttentionBackward(Stream(), shape, qkv.View(), problem.dropout, out.View(),
                               dout.View(), lse.View(), dqkv.View(), scratch.View());
    scratch.Values();
    return {out.Values(), lse.Values(), dqkv.Values()};
  }
};

TEST_P(AttentionDocumentsTest, EqualThePlainLoops) {
  for (const AttentionCase& c : kDocumentCases) {
    for (const std::int64_t mean : {std::int64_t{1}, std::int64_t{5}, c.length / 3, c.length}) {
      const std::vector<std::int32_t> begins = RandomBegins(c.sequences, c.length, mean, 3);
      for (const double probability : {0.0, 0.4}) {
        const Problem problem(c, probability, true, begins);
        kernels::AttentionShape shape = ShapeOf(c);
        shape.begins = begins.data();
        const Results got = Run(shape, problem);
        const std::string what = Describe(c) + "documents of " + std::to_string(mean) + " ";
        ExpectClose(got.out, problem.out, Tolerance(kAttentionFp32, kAttentionFp64), what + "out");
        const std::int64_t q = problem.query_width, kv = problem.kv_width;
        const Part parts[] = {{0, q}, {q, q + kv}, {q + kv, q + 2 * kv}};
        for (const Part& part : parts) {
          // Documents of one token: the scores' gradients vanish and only rounding is left.
          ExpectClose(Columns(got.dqkv, part.begin, part.Size()),
                      Columns(problem.dqkv, part.begin, part.Size()),
                      Tolerance(kAttentionFp32, kAttentionFp64) * 3, what + "gradient",
                      mean < 2 ? 1 : 0);
        }
      }
    }
  }
}

// Other documents change no bit, forward or backward, whatever they hold.
TEST_P(AttentionDocumentsTest, DoNotKnowOfEachOther) {
  const AttentionCase c = {1, 400, 2, 1, 5};
  const std::int64_t first = 150, end = 290;  // the document that is looked at
  std::vector<std::int32_t> begins(400);
  for (std::size_t t = 0; t < 400; ++t) begins[t] = t < 150 ? 0 : t < 290 ? 150 : 290;
  kernels::AttentionShape shape = ShapeOf(c);
  shape.begins = begins.data();
  Problem problem(c, 0.3, true, begins);
  const Results before = Run(shape, problem);
  for (std::int64_t row = 0; row < c.length; ++row) {
    if (row >= first && row < end) continue;
    for (std::int64_t j = 0; j < problem.qkv.columns; ++j) problem.qkv(row, j) *= -3;
    for (std::int64_t j = 0; j < problem.dout.columns; ++j) problem.dout(row, j) += 1;
  }
  const Results after = Run(shape, problem);
  const auto rows = [&](const Array& x, std::int64_t begin, std::int64_t until) {
    return SliceOf(x, {begin, until}, {0, x.columns}).values;
  };
  EXPECT_EQ(rows(after.out, first, end), rows(before.out, first, end));
  EXPECT_EQ(rows(after.lse, first, end), rows(before.lse, first, end));
  EXPECT_EQ(rows(after.dqkv, first, end), rows(before.dqkv, first, end));
  EXPECT_NE(rows(after.out, end, 400), rows(before.out, end, 400));
  EXPECT_NE(rows(after.out, 0, first), rows(before.out, 0, first));
  // Without documents the change shows.
  shape.begins = nullptr;
  EXPECT_NE(rows(Run(shape, problem).out, first, end), rows(before.out, first, end));
}

INSTANTIATE_TEST_SUITE_P(Kernel, AttentionDocumentsTest, testing::ValuesIn(AllSettings()), NameOf);

// A tensor-parallel rank holds some heads: it must draw their masks.
TEST_P(AttentionTest, HeadsHaveGlobalNumbers) {
  const AttentionCase all = {2, 20, 4, 2, 6}, half = {2, 20, 2, 1, 6};
  const Problem problem(all, 0.5, true);
  const Array part = Join({Columns(problem.qkv, 12, 12), Columns(problem.qkv, 24 + 6, 6),
                           Columns(problem.qkv, 36 + 6, 6)});
  const kernels::AttentionShape shape = ShapeOf(half, true, 2);
  const Operand qkv(GetParam(), part), scratch = Scratch(shape);
  const Operand out(GetParam(), Poison(40, 12)), lse(GetParam(), Poison(40, 2));
  kernels::AttentionForward(Stream(), shape, qkv.View(), problem.dropout, out.View(), lse.View(),
                            scratch.View());
  ExpectClose(out.Values(), Columns(problem.out, 12, 12), Tolerance(kAttentionFp32, kAttentionFp64),
              "heads 2, 3");
}

TEST_P(AttentionTest, LargeScoresStayFinite) {
  const AttentionCase c = {1, 70, 1, 1, 4};
  const kernels::AttentionShape shape = ShapeOf(c);
  Array x = Random(70, 12, 1, 200);
  const AttentionShape plain = {1, 1, 4, 70, true, 0, 0, 0, {1}};
  const Array want =
      test::AttentionForward(plain, Columns(x, 0, 4), Columns(x, 4, 4), Columns(x, 8, 4));
  const Operand qkv(GetParam(), x), scratch = Scratch(shape);
  const Operand out(GetParam(), Poison(70, 4)), lse(GetParam(), Poison(70, 1));
  kernels::AttentionForward(Stream(), shape, qkv.View(), {}, out.View(), lse.View(),
                            scratch.View());
  // Scores near 1e4: fp32 knows them to 1e-3, and so the weights.
  ExpectClose(out.Values(), want, Tolerance(1e-2, 1e-10), "out");
}

TEST_P(AttentionTest, Rope) {
  for (const AttentionCase& c : kAttentionCases) {
    if (c.head_dim % 2 != 0) continue;
    const kernels::AttentionShape shape = ShapeOf(c);
    const Array x = Random(c.sequences * c.length, shape.Width(), 1);
    const std::int64_t turned = (c.heads + c.kv_heads) * c.head_dim;
    const Operand table(GetParam(), Poison(c.length + 3, c.head_dim));
    kernels::RopeTable(100, table.View());
    for (const bool inverse : {false, true}) {
      const Operand qkv(GetParam(), x);
      kernels::Rope(Stream(), shape, table.View(), inverse, qkv.View());
      const Array want = Join({Rotate(Columns(x, 0, turned), c.head_dim, c.length,
                                      PlainTurns(100, c.head_dim), inverse ? -1 : 1),
                               Columns(x, turned, c.kv_heads * c.head_dim)});
      ExpectClose(qkv.Values(), want, Tolerance(1e-6, 1e-13), Describe(c) + "rope");
      kernels::AttentionShape documents = shape;
      const std::vector<std::int32_t> begins = RandomBegins(c.sequences, c.length, 6, 5);
      documents.begins = begins.data();
      const Operand restarted(GetParam(), x);
      kernels::Rope(Stream(), documents, table.View(), inverse, restarted.View());
      const double direction = inverse ? -1 : 1;
      ExpectClose(restarted.Values(),
                  Join({Rotate(Columns(x, 0, turned), c.head_dim, c.length,
                               PlainTurns(100, c.head_dim), direction, begins),
                        Columns(x, turned, c.kv_heads * c.head_dim)}),
                  Tolerance(1e-6, 1e-13), Describe(c) + "rope in documents");
    }
  }
}

TEST_P(AttentionTest, RopeTableIsCosinesThenSines) {
  for (const double theta : {100.0, 10000.0, 500000.0}) {
    const Operand table(GetParam(), Poison(1000, 6));
    kernels::RopeTable(theta, table.View());
    const Array got = table.Values();
    for (const std::int64_t t : {0, 1, 37, 999}) {
      for (std::int64_t i = 0; i < 3; ++i) {
        const double angle =
            static_cast<double>(t) * std::pow(theta, -2.0 * static_cast<double>(i) / 6);
        EXPECT_NEAR(got(t, i), std::cos(angle), Tolerance(1e-7, 1e-12)) << theta;
        EXPECT_NEAR(got(t, 3 + i), std::sin(angle), Tolerance(1e-7, 1e-12)) << theta;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernel, AttentionTest, testing::ValuesIn(AllSettings()), NameOf);

// Attention to sequences with padding, and of queries to the keys of another sequence, against the
// plain reference. Padded keys and values are no numbers: whoever reads them shows it.

constexpr double kAttentionPaddingFp32 = 4e-6,
                 kAttentionPaddingFp64 = 1e-13;  // relative to the largest element
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

struct PaddedCase {
  std::int64_t length, keys;  // rows of a sequence: queries, and keys of another sequence
  std::int64_t heads, kv_heads, head_dim;
  std::vector<std::int32_t> key_lengths;  // of each sequence; none: all are there
};

// Lengths at the edges of the tiles of 128 keys, sequences without keys among them.
const PaddedCase kWhole[] = {{5, 5, 2, 1, 3, {5, 0, 1}},
                             {33, 33, 4, 2, 16, {16, 33}},
                             {130, 130, 1, 1, 5, {129, 1, 128, 130}},
                             {300, 300, 2, 2, 4, {127, 257}}};
const PaddedCase kOther[] = {{1, 7, 2, 1, 3, {7, 0, 1}},   {9, 1, 2, 2, 16, {1, 1}},
                             {130, 40, 4, 2, 5, {40, 17}}, {40, 300, 2, 1, 4, {300, 129, 128}},
                             {37, 21, 2, 1, 8, {}},        {300, 130, 1, 1, 16, {130, 3}}};

std::string Describe(const PaddedCase& c, bool causal, double probability) {
  return std::to_string(c.length) + " queries, " + std::to_string(c.keys) + " keys, " +
         std::to_string(c.key_lengths.size()) + " lengths, causal " + std::to_string(causal) +
         ", dropout " + std::to_string(probability) + ": ";
}

// Operands, and what the plain loops make of them.
struct PaddedProblem {
  PaddedProblem(const PaddedCase& c, bool causal, double probability)
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
  static bool Padding(const PaddedCase& c, std::int64_t row) {
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

  AttentionPaddingResults Whole(const PaddedProblem& p) const {
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

  AttentionPaddingResults Other(const PaddedProblem& p) const {
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

  void Compare(const PaddedCase& c, const PaddedProblem& p, const AttentionPaddingResults& got,
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
      for (std::int64_t j = 0; PaddedProblem::Padding(c, row) && j < got.dkeys.columns; ++j) {
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
  void ForEachProblem(const PaddedCase (&cases)[kCases], const std::vector<bool>& causal,
                      const Body& body) const {
    for (const PaddedCase& c : cases) {
      for (const bool is_causal : causal) {
        for (const double probability : {0.0, 0.4}) {
          body(c, PaddedProblem(c, is_causal, probability), Describe(c, is_causal, probability));
        }
      }
    }
  }
};

TEST_P(AttentionPaddingTest, WholeSequencesEqualThePlainLoops) {
  ForEachProblem(kWhole, {true, false},
                 [&](const PaddedCase& c, const PaddedProblem& p, const auto& what) {
                   Compare(c, p, Whole(p), what);
                 });
}

TEST_P(AttentionPaddingTest, KeysOfAnotherSequenceEqualThePlainLoops) {
  ForEachProblem(kOther, {false},
                 [&](const PaddedCase& c, const PaddedProblem& p, const auto& what) {
                   Compare(c, p, Other(p), what);
                 });
}

// How wide the padding is changes no bit.
TEST_P(AttentionPaddingTest, PaddingMayHaveAnyWidth) {
  const PaddedCase narrow = {140, 135, 2, 1, 5, {130, 7}}, wide = {140, 290, 2, 1, 5, {130, 7}};
  const PaddedProblem small(narrow, false, 0.3);
  PaddedProblem large(wide, false, 0.3);
  for (std::int64_t row = 0; row < large.keys.rows; ++row) {
    if (PaddedProblem::Padding(wide, row)) continue;
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
