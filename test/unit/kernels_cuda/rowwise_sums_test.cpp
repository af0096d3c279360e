// Sums over rows on a GPU against the CPU's: columns, positions, the rows of a token.
#include "documents.hpp"
#include "rowwise_testing.hpp"
#include "trireme/kernels/elementwise.hpp"

namespace trireme::test {
namespace {

class RowwiseSums : public RowwiseTest {
 protected:
  RowwiseTolerance Near(std::int64_t rows) const {
    return ToleranceFor(SumTypeOf(Type()), 16 * rows);
  }
};
INSTANTIATE_TEST_SUITE_P(All, RowwiseSums, testing::ValuesIn(RowwiseSettings()), NameOfSetting);

TEST_P(RowwiseSums, Columns) {
  for (const RowwiseSize& size :
       {RowwiseSize{1, 1}, {3, 3}, {33, 31}, {1000, 8}, {127, 128}, {300, 33}, {129, 1000}}) {
    HostRows x = HostRows::Random(size.rows, size.columns, 1);
    HostRows sums = HostRows::Random(1, size.columns, 2);
    HostRows scratch(kernels::kReductionBlocks, size.columns);
    const GpuMatrix on = On(x), to = SumsOn(sums), again = SumsOn(sums);
    kernels::ColumnSum(Stream(), on.View(), to.View(), {});
    kernels::ColumnSum(Stream(), on.View(), again.View(), {});
    kernels::ColumnSum(Cpu(), x.View(), sums.View(), scratch.View());
    ExpectRows(to.Values(), sums, Near(size.rows), Describe(size));
    EXPECT_EQ(again.Bits(), to.Bits()) << Describe(size);
    EXPECT_TRUE(to.GapsUntouched()) << Describe(size);
  }
}

TEST_P(RowwiseSums, Positions) {
  for (const RowwiseSize& size :
       {RowwiseSize{1, 1}, {3, 3}, {33, 31}, {130, 8}, {64, 128}, {5, 1000}}) {
    for (const std::int64_t length : {std::int64_t{1}, (size.rows + 3) / 4, 2 * size.rows}) {
      HostRows dout = HostRows::Random(size.rows, size.columns, 1);
      HostRows positions = HostRows::Random(3 * length, size.columns, 2);
      const RowwiseDropout dropout(Stream(), 0.1, length, length / 2);
      const GpuMatrix on = On(dout), to = SumsOn(positions), again = SumsOn(positions);
      kernels::PositionBackward(Stream(), nullptr, dropout.OnCard(), on.View(), to.View());
      kernels::PositionBackward(Stream(), nullptr, dropout.OnCard(), on.View(), again.View());
      kernels::PositionBackward(Cpu(), nullptr, dropout.OnHost(), dout.View(), positions.View());
      ExpectRows(to.Values(), positions, Near(size.rows), Describe(size));
      EXPECT_EQ(again.Bits(), to.Bits()) << Describe(size);
      EXPECT_TRUE(to.GapsUntouched()) << Describe(size);
      kernels::PositionBackward(Stream(), nullptr, dropout.OnCard(), on.View(), {});
    }
  }
}

TEST_P(RowwiseSums, PositionsInDocuments) {
  for (const RowwiseSize& size : {RowwiseSize{3, 3}, {33, 31}, {130, 8}, {64, 128}, {1200, 5}}) {
    const std::int64_t length = (size.rows + 3) / 4, first = length / 2;
    HostRows dout = HostRows::Random(size.rows, size.columns, 1);
    HostRows positions = HostRows::Random(length, size.columns, 2);
    const std::vector<std::int32_t> begins = RandomBegins(8, length, 5, 3);
    const test::OnGpu there(Stream(), begins);
    const auto* const on_card = there.As<std::int32_t>();
    kernels::Dropout dropout;
    dropout.length = length;
    dropout.first_row = first;
    const GpuMatrix on = On(dout), to = SumsOn(positions), again = SumsOn(positions);
    kernels::PositionBackward(Stream(), on_card, dropout, on.View(), to.View());
    kernels::PositionBackward(Stream(), on_card, dropout, on.View(), again.View());
    kernels::PositionBackward(Cpu(), begins.data(), dropout, dout.View(), positions.View());
    ExpectRows(to.Values(), positions, Near(size.rows), Describe(size));
    EXPECT_EQ(again.Bits(), to.Bits()) << Describe(size);
    EXPECT_TRUE(to.GapsUntouched()) << Describe(size);
  }
}

// Frequency of tokens: hardly ever twice, or one of them nearly always, so that its rows reach over
// many blocks' shares.
std::vector<std::int32_t> Tokens(std::int64_t rows, std::int32_t vocabulary, bool frequent) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto spread = static_cast<std::int32_t>(row * 7919 % vocabulary);
    tokens.push_back(frequent && row % 4 != 0 ? vocabulary / 2 : spread);
  }
  return tokens;
}

TEST_P(RowwiseSums, RowsOfTokens) {
  struct Case {
    std::int64_t rows, dim;
    std::int32_t vocabulary, first, slice;
  };
  for (const Case& c :
       {Case{1, 1, 1, 0, 1}, Case{3, 3, 5, 0, 5}, Case{33, 31, 9, 0, 9},
        Case{100, 128, 1000, 250, 500}, Case{1100, 8, 300, 100, 100}, Case{200, 1000, 7, 2, 3},
        Case{150, 65, 70000, 0, 70000}, Case{64, 16, 40, 35, 5}}) {
    for (const bool frequent : {false, true}) {
      const auto tokens = Tokens(c.rows, c.vocabulary, frequent);
      const std::string what = Describe({c.rows, c.dim}) + " of " + std::to_string(c.vocabulary);
      HostRows dout = HostRows::Random(c.rows, c.dim, 1);
      HostRows dweight =
          c.slice > 1000 ? HostRows(c.slice, c.dim, 1) : HostRows::Random(c.slice, c.dim, 2);
      const GpuMatrix on = On(dout), to = SumsOn(dweight), again = SumsOn(dweight);
      const OnGpu on_card(Stream(), tokens);
      for (const GpuMatrix* target : {&to, &again}) {
        kernels::EmbeddingBackward(Stream(), on_card.As<std::int32_t>(), c.first, 0.5, on.View(),
                                   target->View());
      }
      kernels::EmbeddingBackward(Cpu(), tokens.data(), c.first, 0.5, dout.View(), dweight.View());
      ExpectRows(to.Values(), dweight, Near(c.rows), what);
      EXPECT_EQ(again.Bits(), to.Bits()) << what;
      EXPECT_TRUE(to.GapsUntouched()) << what;
    }
  }
}

// More rows than are sorted at once, and several tiles of the sort.
TEST_F(GpuTest, RowwiseManyTokens) {
  constexpr std::int64_t kRows = (1 << 18) + 1000;
  constexpr std::int32_t kVocabulary = 600;
  const auto tokens = Tokens(kRows, kVocabulary, true);
  HostRows dout = HostRows::Random(kRows, 1, 1), dweight(kVocabulary, 1);
  const GpuMatrix on(Stream(), Dtype::kFloat64, kRows, 1, dout.values);
  const GpuMatrix to(Stream(), Dtype::kFloat64, kVocabulary, 1, dweight.values);
  const OnGpu on_card(Stream(), tokens);
  kernels::EmbeddingBackward(Stream(), on_card.As<std::int32_t>(), 0, 1, on.View(), to.View());
  kernels::EmbeddingBackward({}, tokens.data(), 0, 1, dout.View(), dweight.View());
  ExpectRows(to.Values(), dweight, ToleranceFor(Dtype::kFloat64, kRows), "dweight");
}

}  // namespace
}  // namespace trireme::test
