// Token embedding on slices of the vocabulary and positions on shards of the rows: together the
// result of one rank alone.
#include <random>

#include "kernel_testing.hpp"
#include "trireme/kernels/elementwise.hpp"

namespace trireme::test {
namespace {

constexpr double kEmbeddingSlicesFp32 = 2e-6, kEmbeddingSlicesFp64 = 1e-14;
constexpr std::int64_t kVocabulary = 101, kDim = 17, kEmbeddingSlicesLength = 12;
constexpr double kScale = 1.75;
constexpr std::int64_t kRows[] = {0, 1, 7, 33};

std::vector<std::int32_t> Tokens(std::int64_t rows) {
  std::mt19937_64 engine(3);
  std::vector<std::int32_t> tokens;
  for (std::int64_t r = 0; r < rows; ++r) {
    // Every third from few tokens, so that some repeat within a slice.
    const std::uint64_t range = r % 3 == 0 ? 4 : kVocabulary;
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
  const Array table = Random(kVocabulary, kDim, 1);
  for (const std::int64_t rows : kRows) {
    const std::vector<std::int32_t> tokens = Tokens(rows);
    const Operand w(GetParam(), table), whole(GetParam(), Poison(rows, kDim));
    kernels::EmbeddingForward(Stream(), tokens.data(), 0, w.View(), kScale, whole.View());
    for (int parts = 1; parts <= 8; ++parts) {
      Array sum(rows, kDim);
      for (int part = 0; part < parts; ++part) {
        const Part slice = PartOf(kVocabulary, part, parts);
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
  const Array start = Random(kVocabulary, kDim, 2);
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
      Array joined = Poison(kVocabulary, kDim);
      for (int part = 0; part < parts; ++part) {
        const Part slice = PartOf(kVocabulary, part, parts);
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
