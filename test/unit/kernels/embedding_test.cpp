// Embeddings, whole and in slices.
#include <cmath>
#include <random>

#include "documents.hpp"
#include "kernel_testing.hpp"
#include "trireme/kernels/elementwise.hpp"

namespace trireme::test {
namespace {

// Token embedding and its gradient, for any number of threads.

constexpr double kEmbeddingFp32 = 2e-6, kEmbeddingFp64 = 1e-14;

struct Case {
  std::int64_t rows, dim, vocabulary, length;
};
constexpr Case kCases[] = {{1, 1, 1, 1},    {3, 3, 2, 2},       {17, 17, 3, 17},
                           {33, 33, 1, 16}, {128, 128, 50, 32}, {60, 12, 33278, 20},
                           {128, 3, 7, 33}};

std::vector<std::int32_t> Tokens(const Case& c) {
  std::mt19937_64 engine(3);
  std::vector<std::int32_t> tokens;
  for (std::int64_t r = 0; r < c.rows; ++r) {
    tokens.push_back(
        static_cast<std::int32_t>(engine() % static_cast<std::uint64_t>(c.vocabulary)));
  }
  tokens.back() = static_cast<std::int32_t>(c.vocabulary - 1);
  return tokens;
}

class EmbeddingTest : public KernelTest {
 protected:
  template <typename Body>
  void ForEachCase(Body body) const {
    for (const Case& c : kCases) {
      for (const bool positions : {false, true}) {
        for (const double probability : {0.0, 0.3}) {
          body(c, positions, MakeDropout(probability, c.length));
        }
      }
    }
  }
};

// The whole table and all rows: both kernels together are the layer of the paper.
TEST_P(EmbeddingTest, Forward) {
  ForEachCase([&](const Case& c, bool positions, const kernels::Dropout& dropout) {
    const std::vector<std::int32_t> tokens = Tokens(c);
    const Array weight = Random(c.vocabulary, c.dim, 1), table = Random(c.length + 2, c.dim, 2);
    Array sum(c.rows, c.dim);
    for (std::int64_t r = 0; r < c.rows; ++r) {
      for (std::int64_t j = 0; j < c.dim; ++j) {
        sum(r, j) = 1.75 * weight(tokens[static_cast<std::size_t>(r)], j) +
                    (positions ? table(r % c.length, j) : 0);
      }
    }
    const Operand w(GetParam(), weight), p(GetParam(), table);
    const Operand out(GetParam(), Poison(c.rows, c.dim));
    kernels::EmbeddingForward(Stream(), tokens.data(), 0, w.View(), 1.75, out.View());
    kernels::PositionForward(Stream(), positions ? p.View() : None(), nullptr, dropout, out.View());
    ExpectClose(out.Values(), Dropout(SiteOf(dropout), kOrdinals, c.length, sum),
                Tolerance(kEmbeddingFp32, kEmbeddingFp64), "embedding");
  });
}

TEST_P(EmbeddingTest, Backward) {
  ForEachCase([&](const Case& c, bool positions, const kernels::Dropout& dropout) {
    const std::vector<std::int32_t> tokens = Tokens(c);
    const Array dout = Random(c.rows, c.dim, 1);
    const Array start = Random(c.vocabulary, c.dim, 2), table = Random(c.length + 2, c.dim, 3);
    Array dweight = start, dpositions = table;
    for (std::int64_t r = 0; r < c.rows; ++r) {
      for (std::int64_t j = 0; j < c.dim; ++j) {
        dweight(tokens[static_cast<std::size_t>(r)], j) += 1.75 * dout(r, j);
        if (positions) dpositions(r % c.length, j) += dout(r, j);
      }
    }
    const Operand gradient(GetParam(), dout), w(GetParam(), start), p(GetParam(), table);
    kernels::EmbeddingBackward(Stream(), tokens.data(), 0, 1.75, gradient.View(), w.View());
    kernels::PositionBackward(Stream(), nullptr, dropout, gradient.View(),
                              positions ? p.View() : None());
    EXPECT_EQ(gradient.Values().values, dout.values) << "dout is only read";
    ExpectClose(w.Values(), dweight, Tolerance(kEmbeddingFp32, kEmbeddingFp64), "dweight");
    ExpectClose(p.Values(), dpositions, Tolerance(kEmbeddingFp32, kEmbeddingFp64), "dpositions");
  });
}

// A shard of the rows, from the sixth on.
TEST_P(EmbeddingTest, PositionsRestartInDocuments) {
  constexpr std::int64_t kSequences = 3, kLength = 21, kDim = 5, kFirst = 5;
  const std::vector<std::int32_t> begins = RandomBegins(kSequences, kLength, 4, 7);
  const Array x = Random(kSequences * kLength - kFirst, kDim, 1), table = Random(kLength, kDim, 2);
  kernels::Dropout dropout = MakeDropout(0, kLength);
  dropout.first_row = kFirst;
  Array want = x, gradient = table;
  for (std::int64_t r = 0; r < x.rows; ++r) {
    const std::int64_t row = kFirst + r;
    const std::int64_t t = row % kLength - begins[static_cast<std::size_t>(row)];
    for (std::int64_t j = 0; j < kDim; ++j) {
      want(r, j) += table(t, j);
      gradient(t, j) += x(r, j);
    }
  }
  const Operand got(GetParam(), x), dout(GetParam(), x), p(GetParam(), table);
  kernels::PositionForward(Stream(), p.View(), begins.data(), dropout, got.View());
  ExpectClose(got.Values(), want, Tolerance(kEmbeddingFp32, kEmbeddingFp64), "positions");
  kernels::PositionBackward(Stream(), begins.data(), dropout, dout.View(), p.View());
  ExpectClose(p.Values(), gradient, Tolerance(kEmbeddingFp32, kEmbeddingFp64), "gradient");
}

TEST_P(EmbeddingTest, SinusoidalTable) {
  for (const std::int64_t dim : {1, 3, 16, 33, 128}) {
    Array want(40, dim);
    for (std::int64_t t = 0; t < 40; ++t) {
      for (std::int64_t j = 0; j < dim; ++j) {
        const double angle =
            static_cast<double>(t) *
            std::pow(10000.0, -static_cast<double>(j / 2 * 2) / static_cast<double>(dim));
        want(t, j) = j % 2 == 0 ? std::sin(angle) : std::cos(angle);
      }
    }
    const Operand table(GetParam(), Poison(40, dim));
    kernels::SinusoidalPositions(table.View());
    ExpectClose(table.Values(), want, Tolerance(1e-7, 1e-14), "dim " + std::to_string(dim));
  }
}

INSTANTIATE_TEST_SUITE_P(Kernel, EmbeddingTest, testing::ValuesIn(AllSettings()), NameOf);

TEST(EmbeddingThreads, GradientHasTheSameBitsForAnyNumberOfThreads) {
  const Case c = {128, 33, 5, 32};
  const std::vector<std::int32_t> tokens = Tokens(c);
  const kernels::Dropout none = MakeDropout(0, c.length);
  const std::vector<std::int32_t> begins = RandomBegins(4, c.length, 4, 7);
  const auto run = [&](int threads) {
    const Setting setting{Dtype::kFloat32, threads, 0};
    const Operand dout(setting, Random(c.rows, c.dim, 1)), dweight(setting, Array(5, c.dim));
    const Operand dpositions(setting, Array(c.length, c.dim));
    kernels::EmbeddingBackward(setting.Stream(), tokens.data(), 0, 1, dout.View(), dweight.View());
    kernels::PositionBackward(setting.Stream(), nullptr, none, dout.View(), dpositions.View());
    kernels::PositionBackward(setting.Stream(), begins.data(), none, dout.View(),
                              dpositions.View());
    return std::pair(dweight.Values().values, dpositions.Values().values);
  };
  for (const int threads : {2, 3, 5}) EXPECT_EQ(run(1), run(threads)) << threads << " threads";
}

// Token embedding on slices of the vocabulary and positions on shards of the rows: together the
// result of one rank alone.

constexpr double kEmbeddingSlicesFp32 = 2e-6, kEmbeddingSlicesFp64 = 1e-14;
constexpr std::int64_t kSlicedVocabulary = 101, kDim = 17, kEmbeddingSlicesLength = 12;
constexpr double kScale = 1.75;
constexpr std::int64_t kRows[] = {0, 1, 7, 33};

std::vector<std::int32_t> Tokens(std::int64_t rows) {
  std::mt19937_64 engine(3);
  std::vector<std::int32_t> tokens;
  for (std::int64_t r = 0; r < rows; ++r) {
    // Every third from few tokens, so that some repeat within a slice.
    const std::uint64_t range = r % 3 == 0 ? 4 : kSlicedVocabulary;
    tokens.push_back(static_cast<std::int32_t>(engine() % range));
  }
  return tokens;
}

class EmbeddingSlicesTest : public KernelTest {
 protected:
  Setting Threads(int threads) const {
    Setting setting = GetParam();
    setting.threads = threads;
    return setting;
  }
};

TEST_P(EmbeddingSlicesTest, ForwardHoldsItsTokensAndZeros) {
  const Array table = Random(kSlicedVocabulary, kDim, 1);
  for (const std::int64_t rows : kRows) {
    const std::vector<std::int32_t> tokens = Tokens(rows);
    const Operand w(GetParam(), table), whole(GetParam(), Poison(rows, kDim));
    kernels::EmbeddingForward(Stream(), tokens.data(), 0, w.View(), kScale, whole.View());
    for (int parts = 1; parts <= 8; ++parts) {
      Array sum(rows, kDim);
      for (int part = 0; part < parts; ++part) {
        const Part slice = PartOf(kSlicedVocabulary, part, parts);
        const Operand cut(GetParam(), SliceOf(table, slice, {0, kDim}));
        const Operand out(GetParam(), Poison(rows, kDim));
        kernels::EmbeddingForward(Stream(), tokens.data(), static_cast<std::int32_t>(slice.begin),
                                  cut.View(), kScale, out.View());
        const Array values = out.Values();
        for (std::int64_t r = 0; r < rows; ++r) {
          const std::int32_t token = tokens[static_cast<std::size_t>(r)];
          const bool here = token >= slice.begin && token < slice.end;
          for (std::int64_t j = 0; j < kDim; ++j) {
            const double want = here ? whole.Values()(r, j) : 0;
            ASSERT_EQ(values(r, j), want) << "part " << part << " of " << parts << ", row " << r;
          }
        }
        sum = Add(sum, values);
      }
      EXPECT_EQ(sum.values, whole.Values().values) << parts << " parts";
    }
  }
}

TEST_P(EmbeddingSlicesTest, BackwardAddsToItsSliceAlone) {
  const Array start = Random(kSlicedVocabulary, kDim, 2);
  for (const std::int64_t rows : kRows) {
    const std::vector<std::int32_t> tokens = Tokens(rows);
    const Array gradient = Random(rows, kDim, 3);
    Array want = start;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t j = 0; j < kDim; ++j) {
        want(tokens[static_cast<std::size_t>(r)], j) += kScale * gradient(r, j);
      }
    }
    const Operand dout(GetParam(), gradient), whole(GetParam(), start);
    kernels::EmbeddingBackward(Stream(), tokens.data(), 0, kScale, dout.View(), whole.View());
    ExpectClose(whole.Values(), want, Tolerance(kEmbeddingSlicesFp32, kEmbeddingSlicesFp64),
                "dweight");
    for (int parts = 1; parts <= 8; ++parts) {
      Array joined = Poison(kSlicedVocabulary, kDim);
      for (int part = 0; part < parts; ++part) {
        const Part slice = PartOf(kSlicedVocabulary, part, parts);
        const Array before = SliceOf(start, slice, {0, kDim});
        const Operand one(Threads(1), before), two(Threads(2), before);
        for (const auto& [operand, threads] : {std::pair(&one, 1), std::pair(&two, 2)}) {
          kernels::EmbeddingBackward(Threads(threads).Stream(), tokens.data(),
                                     static_cast<std::int32_t>(slice.begin), kScale, dout.View(),
                                     operand->View());
        }
        EXPECT_TRUE(one.SameBits(two)) << "part " << part << " of " << parts;
        PlaceSlice(one.Values(), slice.begin, 0, joined);
      }
      EXPECT_EQ(joined.values, whole.Values().values) << parts << " parts";
    }
  }
}

TEST_P(EmbeddingSlicesTest, PositionsOfAShardOfTheRows) {
  const Array table = Random(kEmbeddingSlicesLength + 3, kDim, 4);
  for (const std::int64_t rows : kRows) {
    const Array x = Random(rows, kDim, 5);
    for (const double probability : {0.0, 0.3}) {
      for (const bool with_table : {false, true}) {
        kernels::Dropout dropout = MakeDropout(probability, kEmbeddingSlicesLength);
        Array sum = x;
        for (std::int64_t r = 0; with_table && r < rows; ++r) {
          for (std::int64_t j = 0; j < kDim; ++j) sum(r, j) += table(r % kEmbeddingSlicesLength, j);
        }
        const Array want = Dropout(SiteOf(dropout), kOrdinals, kEmbeddingSlicesLength, sum);
        const Operand p(GetParam(), table), whole(GetParam(), x);
        const kernels::Matrix positions = with_table ? p.View() : None();
        kernels::PositionForward(Stream(), positions, nullptr, dropout, whole.View());
        ExpectClose(whole.Values(), want, Tolerance(kEmbeddingSlicesFp32, kEmbeddingSlicesFp64),
                    "all rows");
        for (int parts = 2; parts <= 5; ++parts) {
          for (int part = 0; part < parts; ++part) {
            const Part shard = PartOf(rows, part, parts);
            dropout.first_row = shard.begin;
            const Operand cut(GetParam(), SliceOf(x, shard, {0, kDim}));
            kernels::PositionForward(Stream(), positions, nullptr, dropout, cut.View());
            EXPECT_EQ(cut.Values().values, SliceOf(whole.Values(), shard, {0, kDim}).values)
                << "rows " << shard.begin << " to " << shard.end << " of " << rows;
          }
        }
      }
    }
  }
}

TEST_P(EmbeddingSlicesTest, PositionGradientOfAShardOfTheRows) {
  const Array start = Random(kEmbeddingSlicesLength + 3, kDim, 6);
  for (const std::int64_t rows : kRows) {
    const Array gradient = Random(rows, kDim, 7);
    for (int parts = 1; parts <= 5; ++parts) {
      for (int part = 0; part < parts; ++part) {
        const Part shard = PartOf(rows, part, parts);
        kernels::Dropout dropout = MakeDropout(0, kEmbeddingSlicesLength);
        dropout.first_row = shard.begin;
        Array want = start;
        for (std::int64_t r = shard.begin; r < shard.end; ++r) {
          for (std::int64_t j = 0; j < kDim; ++j)
            want(r % kEmbeddingSlicesLength, j) += gradient(r, j);
        }
        const Operand dout(GetParam(), SliceOf(gradient, shard, {0, kDim}));
        const Operand one(Threads(1), start), two(Threads(2), start);
        kernels::PositionBackward(Threads(1).Stream(), nullptr, dropout, dout.View(), one.View());
        kernels::PositionBackward(Threads(2).Stream(), nullptr, dropout, dout.View(), two.View());
        ExpectClose(one.Values(), want, Tolerance(kEmbeddingSlicesFp32, kEmbeddingSlicesFp64),
                    "dpositions");
        EXPECT_TRUE(one.SameBits(two));
        kernels::PositionBackward(Stream(), nullptr, dropout, dout.View(),
                                  None());  // no table: nothing
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernel, EmbeddingSlicesTest, testing::ValuesIn(AllSettings()), NameOf);

}  // namespace
}  // namespace trireme::test
