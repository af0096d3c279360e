// Element-wise kernels on a GPU against the CPU's: biases, residuals, copies, dropout, embeddings,
// rotary positions.
#include "documents.hpp"
#include "rowwise_testing.hpp"
#include "trireme/kernels/attention.hpp"
#include "trireme/kernels/elementwise.hpp"
#include "trireme/kernels/update.hpp"

namespace trireme::test {
namespace {

class RowwiseElementwise : public RowwiseTest {
 protected:
  void Expect(const GpuMatrix& got, const HostRows& want, const std::string& what) const {
    ExpectRows(got.Values(), want, Tolerance(), what);
    EXPECT_TRUE(got.GapsUntouched()) << what;
  }
};
INSTANTIATE_TEST_SUITE_P(All, RowwiseElementwise, testing::ValuesIn(RowwiseSettings()),
                         NameOfSetting);

TEST_P(RowwiseElementwise, AddBias) {
  for (const RowwiseSize& size : RowwiseSizes()) {
    HostRows x = HostRows::Random(size.rows, size.columns, 1);
    HostRows bias = HostRows::Random(1, size.columns, 2);
    const GpuMatrix on = On(x), add = On(bias);
    kernels::AddBias(Stream(), on.View(), add.View());
    kernels::AddBias(Cpu(), x.View(), bias.View());
    Expect(on, x, "AddBias " + Describe(size));
  }
}

TEST_P(RowwiseElementwise, AddClearAndCopy) {
  for (const RowwiseSize& size : RowwiseSizes()) {
    HostRows x = HostRows::Random(size.rows, size.columns, 1);
    HostRows y = HostRows::Random(size.rows, size.columns, 2);
    const GpuMatrix from = On(x), to = On(y), cleared = On(y);
    kernels::Add(Stream(), from.View(), to.View());
    kernels::Add(Cpu(), x.View(), y.View());
    Expect(to, y, "Add " + Describe(size));
    kernels::Clear(Stream(), cleared.View());
    Expect(cleared, HostRows(size.rows, size.columns), "Clear " + Describe(size));
    kernels::Copy(Stream(), to.View(), cleared.View());
    EXPECT_EQ(cleared.Values(), to.Values()) << "Copy " << Describe(size);
    EXPECT_TRUE(cleared.GapsUntouched());
  }
}

TEST_P(RowwiseElementwise, CopyBetweenTypes) {
  for (const Dtype type : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBfloat16}) {
    for (const RowwiseSize& size : RowwiseSizes()) {
      HostRows x = HostRows::Random(size.rows, size.columns, 1);
      const GpuMatrix from = On(x);
      const GpuMatrix to(Stream(), type, size.rows, size.columns, {}, size.columns + 8);
      kernels::Copy(Stream(), from.View(), to.View());
      EXPECT_EQ(to.Values(), x.values) << NameOf(type) << " " << Describe(size);
      EXPECT_TRUE(to.GapsUntouched());
    }
  }
}

TEST_P(RowwiseElementwise, Residual) {
  for (const RowwiseSize& size : RowwiseSizes()) {
    for (const bool biased : {false, true}) {
      for (const double probability : {0.0, 0.3}) {
        HostRows residual = HostRows::Random(size.rows, size.columns, 1);
        HostRows branch = HostRows::Random(size.rows, size.columns, 2);
        HostRows bias = HostRows::Random(1, size.columns, 3);
        const GpuMatrix stays = On(residual), goes = On(branch), add = On(bias);
        const RowwiseDropout dropout(Stream(), probability, (size.rows + 3) / 4, 2, 8);
        // In place, as the layers have it.
        kernels::ResidualForward(Stream(), stays.View(), goes.View(),
                                 biased ? add.View() : kernels::Matrix{}, dropout.OnCard(),
                                 stays.View());
        kernels::ResidualForward(Cpu(), residual.View(), branch.View(),
                                 biased ? bias.View() : kernels::Matrix{}, dropout.OnHost(),
                                 residual.View());
        Expect(stays, residual, "Residual " + Describe(size));
      }
    }
  }
}

// In fp64 there is one rounding on both sides: not a bit may differ.
TEST_P(RowwiseElementwise, DropoutHasTheMasksOfTheCpu) {
  for (const RowwiseSize& size : RowwiseSizes()) {
    for (const std::int64_t first_feature : {0, 16, 3}) {
      HostRows x = HostRows::Random(size.rows, size.columns, 1), want(size.rows, size.columns);
      const GpuMatrix from = On(x), to = On(want);
      const RowwiseDropout dropout(Stream(), 0.25, (size.rows + 4) / 5, 1, first_feature);
      kernels::DropoutForward(Stream(), from.View(), dropout.OnCard(), to.View());
      kernels::DropoutForward(Cpu(), x.View(), dropout.OnHost(), want.View());
      Expect(to, want, "Dropout " + Describe(size));
      const std::vector<double> got = to.Values();
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i] == 0, want.values[i] == 0) << Describe(size) << " at " << i;
        if (Type() == Dtype::kFloat64) {
          ASSERT_EQ(got[i], want.values[i]) << Describe(size);
        }
      }
    }
  }
}

// Dropout of a gradient by what the forward pass kept, which had the rows in two calls, has the
// bits of drawing again.
TEST_P(RowwiseElementwise, KeptElementsAreThoseThatAreDrawn) {
  for (const RowwiseSize& size : RowwiseSizes()) {
    HostRows x = HostRows::Random(size.rows, size.columns, 1), out(size.rows, size.columns);
    const GpuMatrix from = On(x), sum = On(out), by_kept = On(out), drawn = On(out);
    const RowwiseDropout dropout(Stream(), 0.25, (size.rows + 4) / 5, 1);
    kernels::Dropout keeps = dropout.OnCard();
    keeps.kept_stride = kernels::Dropout::KeptBytes(size.columns);
    const OnGpu kept(Stream(), std::vector<std::uint8_t>(
                                   static_cast<std::size_t>(size.rows * keeps.kept_stride), 0xA5));
    keeps.kept = kept.As<std::uint8_t>();
    const std::int64_t first = size.rows / 3;
    for (const Part& rows : {Part{0, first}, Part{first, size.rows}}) {
      const auto of = [&](const GpuMatrix& m) { return m.View().Rows(rows.begin, rows.Size()); };
      kernels::ResidualForward(Stream(), of(from), of(from), {}, keeps.From(rows.begin), of(sum));
    }
    kernels::DropoutForward(Stream(), from.View(), keeps, by_kept.View());
    kernels::DropoutForward(Stream(), from.View(), dropout.OnCard(), drawn.View());
    EXPECT_EQ(by_kept.Bits(), drawn.Bits()) << Describe(size);
  }
}

TEST_P(RowwiseElementwise, Embedding) {
  for (const RowwiseSize& size : RowwiseSizes()) {
    constexpr std::int64_t kSlice = 11;
    constexpr std::int32_t kFirst = 5;
    std::vector<std::int32_t> tokens;
    for (std::int64_t row = 0; row < size.rows; ++row) {
      tokens.push_back(static_cast<std::int32_t>(row * 7 % 23));  // some outside on either side
    }
    HostRows weight = HostRows::Random(kSlice, size.columns, 1), out(size.rows, size.columns, 5);
    const GpuMatrix table = On(weight), to = On(out);
    const OnGpu on_card(Stream(), tokens);
    kernels::EmbeddingForward(Stream(), on_card.As<std::int32_t>(), kFirst, table.View(), 1.5,
                              to.View());
    kernels::EmbeddingForward(Cpu(), tokens.data(), kFirst, weight.View(), 1.5, out.View());
    Expect(to, out, "Embedding " + Describe(size));
  }
}

TEST_P(RowwiseElementwise, Positions) {
  for (const RowwiseSize& size : RowwiseSizes()) {
    const std::int64_t length = (size.rows + 4) / 5;
    for (const bool table : {false, true}) {
      for (const double probability : {0.0, 0.4}) {
        HostRows x = HostRows::Random(size.rows, size.columns, 1);
        HostRows positions = HostRows::Random(3 * length, size.columns, 2);
        const GpuMatrix on = On(x), from = On(positions);
        const RowwiseDropout dropout(Stream(), probability, length, length / 2, 8);
        kernels::PositionForward(Stream(), table ? from.View() : kernels::Matrix{}, nullptr,
                                 dropout.OnCard(), on.View());
        kernels::PositionForward(Cpu(), table ? positions.View() : kernels::Matrix{}, nullptr,
                                 dropout.OnHost(), x.View());
        Expect(on, x, "Positions " + Describe(size));
      }
    }
  }
}

TEST_P(RowwiseElementwise, PositionsRestartInDocuments) {
  for (const RowwiseSize& size : RowwiseSizes()) {
    const std::int64_t length = (size.rows + 4) / 5;
    const std::vector<std::int32_t> begins =
        RandomBegins(8, std::max<std::int64_t>(length, 1), 4, 3);
    const OnGpu there(Stream(), begins);
    HostRows x = HostRows::Random(size.rows, size.columns, 1);
    HostRows positions = HostRows::Random(length, size.columns, 2);
    const GpuMatrix on = On(x), from = On(positions);
    kernels::Dropout place;
    place.length = std::max<std::int64_t>(length, 1);
    place.first_row = length / 2;
    kernels::PositionForward(Stream(), from.View(), there.As<std::int32_t>(), place, on.View());
    kernels::PositionForward(Cpu(), positions.View(), begins.data(), place, x.View());
    Expect(on, x, "Positions in documents " + Describe(size));
  }
}

TEST_P(RowwiseElementwise, RopeTurnsAndTurnsBack) {
  for (const std::int64_t head_dim : {2, 6, 16, 64, 80}) {
    kernels::AttentionShape shape{
        .sequences = 3, .length = 5, .heads = 3, .kv_heads = 1, .head_dim = head_dim};
    shape.positions = PositionsOf(15, 2, 3);
    const std::int64_t rows = shape.sequences * shape.length;
    HostRows table(15, head_dim), qkv = HostRows::Random(rows, shape.Width(), 1);
    const HostRows before = qkv;
    kernels::RopeTable(100.0, table.View());
    const GpuMatrix angles = SumsOn(table), on = On(qkv);
    kernels::Rope(Stream(), shape, angles.View(), false, on.View());
    kernels::Rope(Cpu(), shape, table.View(), false, qkv.View());
    Expect(on, qkv, "Rope of " + std::to_string(head_dim));
    kernels::Rope(Stream(), shape, angles.View(), true, on.View());
    ExpectRows(on.Values(), before, Tolerance(1, 2), "turned back");
    const std::vector<std::int32_t> begins =
        BeginsAt(RandomBegins(shape.sequences, 15, 3, 4), 15, shape.positions);
    const OnGpu there(Stream(), begins);
    HostRows restarted = before;
    const GpuMatrix on_card = On(before);
    kernels::AttentionShape documents = shape;
    documents.begins = there.As<std::int32_t>();
    kernels::Rope(Stream(), documents, angles.View(), false, on_card.View());
    documents.begins = begins.data();
    kernels::Rope(Cpu(), documents, table.View(), false, restarted.View());
    Expect(on_card, restarted, "Rope in documents of " + std::to_string(head_dim));
  }
}

TEST_P(RowwiseElementwise, ConvertAndAccumulate) {
  for (const std::int64_t count : {1, 7, 8, 1000, 4099}) {
    for (const Dtype type : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBfloat16}) {
      HostRows x = HostRows::Random(1, count, 1), y = HostRows::Random(1, count, 2);
      const GpuMatrix from = On(x), added = On(y);
      const GpuMatrix to(Stream(), type, 1, count, {});
      kernels::Convert(Stream(), count, Type(), from.View().data, type, to.View().data);
      EXPECT_EQ(to.Values(), x.values) << count;
      kernels::Accumulate(Stream(), Type(), count, from.View().data, added.View().data);
      kernels::Accumulate(Cpu(), Dtype::kFloat64, count, x.values.data(), y.values.data());
      Expect(added, y, "Accumulate " + std::to_string(count));
    }
  }
}

// Narrowing rounds to nearest, ties to even, as the host does.
TEST_F(GpuTest, RowwiseConvertRoundsAsTheHost) {
  std::vector<float> values;
  for (int i = -2000; i < 2000; ++i) values.push_back(static_cast<float>(i) * 1.0009765625f);
  values.push_back(1.00390625f);  // halfway between two: to the even one
  values.push_back(1.01171875f);
  const auto count = static_cast<std::int64_t>(values.size());
  const OnGpu from(Stream(), values), to(Stream(), std::vector<std::uint16_t>(values.size()));
  kernels::Convert(Stream(), count, Dtype::kFloat32, from.Data(), Dtype::kBfloat16, to.Data());
  const auto got = to.Out<std::uint16_t>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(got[i], RoundToBfloat16(values[i])) << values[i];
  }
}

TEST_P(RowwiseElementwise, NoRowsAndNoColumnsAreNothing) {
  for (const RowwiseSize& size : {RowwiseSize{0, 8}, RowwiseSize{0, 3}}) {
    HostRows none(size.rows, size.columns), row(1, size.columns);
    const GpuMatrix some = On(row);
    const kernels::Matrix x{some.View().data, Type(), 0, size.columns, size.columns};
    kernels::AddBias(Stream(), x, some.View());
    kernels::Add(Stream(), x, x);
    kernels::Copy(Stream(), x, x);
    kernels::Clear(Stream(), x);
    kernels::DropoutForward(Stream(), x, {}, x);
    kernels::ResidualForward(Stream(), x, x, some.View(), {}, x);
    kernels::EmbeddingForward(Stream(), nullptr, 0, some.View(), 1, x);
    kernels::PositionForward(Stream(), some.View(), nullptr, {}, x);
    kernels::Accumulate(Stream(), Type(), 0, nullptr, nullptr);
    Synchronise();
    EXPECT_EQ(some.Values(), row.values);
  }
}

}  // namespace
}  // namespace trireme::test
