// Kernels of rows but norms against the CPU's: elementwise, activations, sums, updates.
#include <array>
#include <cmath>
#include <limits>

#include "documents.hpp"
#include "rowwise_testing.hpp"
#include "trireme/kernels/attention.hpp"
#include "trireme/kernels/elementwise.hpp"
#include "trireme/kernels/update.hpp"

namespace trireme::test {
namespace {

using kernels::ActivationKind;
using kernels::UpdateScalars;

// Element-wise kernels on a GPU against the CPU's: biases, residuals, copies, dropout, embeddings,
// rotary positions.

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

TEST_P(RowwiseElementwise, AddClearCopyAndScale) {
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
    kernels::Scale(Stream(), from.View(), 0.3, cleared.View());
    kernels::Scale(Cpu(), x.View(), 0.3, x.View());
    Expect(cleared, x, "Scale " + Describe(size));
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
        const RowwiseDropout dropout(Stream(), probability, (size.rows + 3) / 4, 2, 8,
                                     biased ? 0.5 : 0);
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
    // Elements alone, with rows of a sequence or of a word, and words alone.
    for (const int which : {0, 1, 2, 3}) {
      const std::int64_t first_feature = std::array{0, 16, 3, 5}[static_cast<std::size_t>(which)];
      HostRows x = HostRows::Random(size.rows, size.columns, 1), want(size.rows, size.columns);
      const GpuMatrix from = On(x), to = On(want);
      const RowwiseDropout dropout(Stream(), which == 3 ? 0 : 0.25, (size.rows + 4) / 5, 1,
                                   first_feature, which == 0 ? 0 : 0.4, which >= 2);
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
    const RowwiseDropout dropout(Stream(), 0.25, (size.rows + 4) / 5, 1, 0, 0.3);
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
    kernels::Scale(Stream(), x, 2, x);
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

// Activations on a GPU against the CPU's.

std::string NameOfKind(ActivationKind kind) {
  return kind == ActivationKind::kRelu ? "relu" : kind == ActivationKind::kGelu ? "gelu" : "swiglu";
}

class RowwiseActivation : public RowwiseTest {
 protected:
  template <typename Body>
  void EachCase(Body body) const {
    for (const RowwiseSize& size : RowwiseSizes()) {
      for (const ActivationKind kind :
           {ActivationKind::kRelu, ActivationKind::kGelu, ActivationKind::kSwiglu}) {
        for (const double probability : {0.0, 0.3}) {
          const RowwiseDropout dropout(Stream(), probability, (size.rows + 3) / 4, 2, 8);
          body(size, kind, dropout,
               NameOfKind(kind) + (probability > 0 ? " with dropout " : " ") + Describe(size));
        }
      }
    }
  }
  static std::int64_t Width(const RowwiseSize& size, ActivationKind kind) {
    return kind == ActivationKind::kSwiglu ? 2 * size.columns : size.columns;
  }
  // exp's few units in the last place come on top of the rounding.
  RowwiseTolerance Near() const {
    RowwiseTolerance tolerance = Tolerance(16);
    if (Type() == Dtype::kFloat32) tolerance.rounding *= 4;
    if (Type() == Dtype::kFloat64) tolerance.noise *= 4;
    return tolerance;
  }
};
INSTANTIATE_TEST_SUITE_P(All, RowwiseActivation, testing::ValuesIn(RowwiseSettings()),
                         NameOfSetting);

TEST_P(RowwiseActivation, Forward) {
  EachCase([&](const RowwiseSize& size, ActivationKind kind, const RowwiseDropout& dropout,
               const std::string& what) {
    HostRows pre = HostRows::Random(size.rows, Width(size, kind), 1);
    HostRows out(size.rows, size.columns, 5);
    const GpuMatrix before = On(pre), after = On(out);
    kernels::ActivationForward(Stream(), kind, before.View(), {}, dropout.OnCard(), after.View());
    kernels::ActivationForward(Cpu(), kind, pre.View(), {}, dropout.OnHost(), out.View());
    ExpectRows(after.Values(), out, Near(), what);
    EXPECT_EQ(before.Values(), pre.values) << what;
    EXPECT_TRUE(after.GapsUntouched()) << what;
  });
}

TEST_P(RowwiseActivation, TheBiasStaysInPre) {
  EachCase([&](const RowwiseSize& size, ActivationKind kind, const RowwiseDropout& dropout,
               const std::string& what) {
    HostRows pre = HostRows::Random(size.rows, Width(size, kind), 1);
    HostRows bias = HostRows::Random(1, Width(size, kind), 2), out(size.rows, size.columns, 5);
    const GpuMatrix before = On(pre), add = On(bias), after = On(out);
    kernels::ActivationForward(Stream(), kind, before.View(), add.View(), dropout.OnCard(),
                               after.View());
    kernels::ActivationForward(Cpu(), kind, pre.View(), bias.View(), dropout.OnHost(), out.View());
    ExpectRows(before.Values(), pre, Near(), what + " pre");
    // In bf16 out is computed from the rounded pre.
    ExpectRows(after.Values(), out, Type() == Dtype::kBfloat16 ? Tolerance(1, 2) : Near(), what);
    EXPECT_TRUE(before.GapsUntouched()) << what;
  });
}

TEST_P(RowwiseActivation, ReluInPlace) {
  for (const RowwiseSize& size : RowwiseSizes()) {
    HostRows pre = HostRows::Random(size.rows, size.columns, 1);
    HostRows bias = HostRows::Random(1, size.columns, 2);
    const GpuMatrix on = On(pre), add = On(bias);
    const RowwiseDropout dropout(Stream(), 0.3, (size.rows + 3) / 4);
    kernels::ActivationForward(Stream(), ActivationKind::kRelu, on.View(), add.View(),
                               dropout.OnCard(), on.View());
    kernels::ActivationForward(Cpu(), ActivationKind::kRelu, pre.View(), bias.View(),
                               dropout.OnHost(), pre.View());
    ExpectRows(on.Values(), pre, Type() == Dtype::kBfloat16 ? Tolerance(1, 2) : Tolerance(),
               Describe(size));
  }
}

// relu's `pre` is what the forward pass left: some kept, some dropped, some negative.
TEST_P(RowwiseActivation, BackwardAndItsPlaces) {
  EachCase([&](const RowwiseSize& size, ActivationKind kind, const RowwiseDropout& dropout,
               const std::string& what) {
    HostRows pre = HostRows::Random(size.rows, Width(size, kind), 1);
    HostRows dout = HostRows::Random(size.rows, size.columns, 2);
    HostRows dpre(size.rows, Width(size, kind), 5);
    const GpuMatrix from = On(pre), gradient = On(dout), to = On(dpre), in_place = On(pre);
    kernels::ActivationBackward(Stream(), kind, from.View(), dropout.OnCard(), gradient.View(),
                                to.View());
    kernels::ActivationBackward(Stream(), kind, in_place.View(), dropout.OnCard(), gradient.View(),
                                in_place.View());
    kernels::ActivationBackward(Cpu(), kind, pre.View(), dropout.OnHost(), dout.View(),
                                dpre.View());
    ExpectRows(to.Values(), dpre, Near(), what);
    EXPECT_TRUE(to.GapsUntouched()) << what;
    EXPECT_EQ(in_place.Values(), to.Values()) << what << " dpre = pre";
    if (kind == ActivationKind::kSwiglu) return;
    kernels::ActivationBackward(Stream(), kind, from.View(), dropout.OnCard(), gradient.View(),
                                gradient.View());
    EXPECT_EQ(gradient.Values(), to.Values()) << what << " dpre = dout";
  });
}

// If exp overflows, GELU and its gradient are their limits.
TEST_P(RowwiseActivation, LargeValues) {
  HostRows pre(1, 8), dout(1, 8, 1), out(1, 8), dpre(1, 8);
  pre.values = {-1000, -100, -20, -8, 8, 20, 100, 1000};
  const GpuMatrix from = On(pre), ones = On(dout), to = On(out), gradient = On(dpre);
  kernels::ActivationForward(Stream(), ActivationKind::kGelu, from.View(), {}, {}, to.View());
  kernels::ActivationBackward(Stream(), ActivationKind::kGelu, from.View(), {}, ones.View(),
                              gradient.View());
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_NEAR(to.Values()[i], i < 4 ? 0 : pre.values[i], 1e-6) << pre.values[i];
    EXPECT_NEAR(gradient.Values()[i], i < 4 ? 0 : 1, 1e-6) << pre.values[i];
  }
}

// Sums over rows on a GPU against the CPU's: columns, positions, the rows of a token.

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

// Updates of the weights on a GPU against the CPU's, and sums of squares.

const UpdateScalars kScalars{.learning_rate = 0.01,
                             .beta1 = 0.9,
                             .beta2 = 0.95,
                             .epsilon = 1e-8,
                             .correction1 = 0.271,
                             .correction2 = 0.1426,
                             .gradient_scale = 0.25};

// Storage of one range: element by element behind an odd offset, or on a boundary.
struct Storage {
  Storage(const device::Stream& stream, Dtype dtype, const HostRows& host, std::int64_t offset)
      : on(stream, dtype, 1, host.columns, host.values, 0, offset) {}
  void* Data() const { return on.View().data; }
  GpuMatrix on;
};

class RowwiseUpdate : public GpuTest, public testing::WithParamInterface<Dtype> {
 protected:
  // Lengths of ranges: many, of which some are empty, one is longer than a block's share and
  // some begin on no boundary.
  static std::vector<std::int64_t> Lengths() {
    std::vector<std::int64_t> lengths = {5000, 0, 1, 2, 3, 1024, 1023};
    while (lengths.size() < 130) lengths.push_back(static_cast<std::int64_t>(lengths.size()) % 9);
    return lengths;
  }
  RowwiseTolerance Near() const {
    return GetParam() == Dtype::kFloat32 ? RowwiseTolerance{2e-6, 2e-7}
                                         : RowwiseTolerance{1e-14, 1e-15};
  }
};
INSTANTIATE_TEST_SUITE_P(All, RowwiseUpdate, testing::Values(Dtype::kFloat32, Dtype::kFloat64),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

// All ranges' four arrays on either side.
struct UpdateProblem {
  std::vector<HostRows> gradients, values, first, second;
  std::vector<Storage> gradients_on, values_on, first_on, second_on, copies_on;
  std::vector<kernels::UpdateRange> host, card;

  UpdateProblem(const device::Stream& stream, Dtype dtype, const std::vector<std::int64_t>& lengths,
                bool copies) {
    unsigned seed = 0;
    for (const std::int64_t length : lengths) {
      const std::int64_t offset = seed % 3 == 2 ? 1 : 0;
      gradients.push_back(HostRows::Random(1, length, ++seed));
      values.push_back(HostRows::Random(1, length, ++seed));
      first.push_back(HostRows::Random(1, length, ++seed));
      second.push_back(HostRows::Random(1, length, ++seed));
      for (double& value : second.back().values) value = std::abs(value);
      gradients_on.emplace_back(stream, dtype, gradients.back(), offset);
      values_on.emplace_back(stream, dtype, values.back(), offset);
      first_on.emplace_back(stream, dtype, first.back(), offset);
      second_on.emplace_back(stream, dtype, second.back(), offset);
      copies_on.emplace_back(stream, Dtype::kBfloat16, HostRows(1, length), offset);
    }
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      const double decay = i % 2 == 0 ? 0.1 : 0;
      host.push_back({lengths[i], decay, gradients[i].values.data(), values[i].values.data(),
                      first[i].values.data(), second[i].values.data()});
      card.push_back({lengths[i], decay, gradients_on[i].Data(), values_on[i].Data(),
                      first_on[i].Data(), second_on[i].Data(),
                      copies && i % 5 != 4 ? copies_on[i].Data() : nullptr});
      host.back().rate = card.back().rate = i % 4 == 1 ? 0.5 : 1;
    }
  }
};

TEST_P(RowwiseUpdate, AdamW) {
  const OnGpu scalars(Stream(), std::vector<UpdateScalars>{kScalars});
  for (const bool clear : {false, true}) {
    UpdateProblem problem(Stream(), GetParam(), Lengths(), clear);
    kernels::AdamW(Stream(), GetParam(), problem.card, scalars.As<UpdateScalars>(), clear);
    kernels::AdamW({}, Dtype::kFloat64, problem.host, &kScalars, clear);
    for (std::size_t i = 0; i < problem.host.size(); ++i) {
      const std::string what = "range " + std::to_string(i);
      ExpectRows(problem.values_on[i].on.Values(), problem.values[i], Near(), what + " values");
      ExpectRows(problem.first_on[i].on.Values(), problem.first[i], Near(), what + " first");
      ExpectRows(problem.second_on[i].on.Values(), problem.second[i], Near(), what + " second");
      EXPECT_EQ(problem.gradients_on[i].on.Values(), problem.gradients[i].values) << what;
      const std::vector<double> copies = problem.copies_on[i].on.Values();
      const std::vector<double> values = problem.values_on[i].on.Values();
      for (std::size_t j = 0; j < copies.size(); ++j) {
        const bool wanted = problem.card[i].copies != nullptr;
        const double rounded =
            static_cast<double>(FromBfloat16(RoundToBfloat16(static_cast<float>(values[j]))));
        ASSERT_EQ(copies[j], wanted ? rounded : 0) << what << " copy " << j;
      }
    }
  }
}

// Elements with neither momentum nor gradient do not move.
TEST_P(RowwiseUpdate, Lion) {
  const OnGpu scalars(Stream(), std::vector<UpdateScalars>{kScalars});
  for (const bool clear : {false, true}) {
    UpdateProblem problem(Stream(), GetParam(), Lengths(), false);
    kernels::Lion(Stream(), GetParam(), problem.card, scalars.As<UpdateScalars>(), clear);
    kernels::Lion({}, Dtype::kFloat64, problem.host, &kScalars, clear);
    for (std::size_t i = 0; i < problem.host.size(); ++i) {
      const std::string what = "range " + std::to_string(i);
      ExpectRows(problem.values_on[i].on.Values(), problem.values[i], Near(), what + " values");
      ExpectRows(problem.first_on[i].on.Values(), problem.first[i], Near(), what + " first");
      EXPECT_EQ(problem.gradients_on[i].on.Values(), problem.gradients[i].values) << what;
    }
  }
}

TEST_P(RowwiseUpdate, GradientDescentNeedsNoMoments) {
  const OnGpu scalars(Stream(), std::vector<UpdateScalars>{kScalars});
  UpdateProblem problem(Stream(), GetParam(), Lengths(), false);
  for (kernels::UpdateRange& range : problem.card) range.first = range.second = nullptr;
  kernels::GradientDescent(Stream(), GetParam(), problem.card, scalars.As<UpdateScalars>(), true);
  kernels::GradientDescent({}, Dtype::kFloat64, problem.host, &kScalars, true);
  for (std::size_t i = 0; i < problem.host.size(); ++i) {
    ExpectRows(problem.values_on[i].on.Values(), problem.values[i], Near(),
               "range " + std::to_string(i));
    EXPECT_EQ(problem.gradients_on[i].on.Values(), problem.gradients[i].values);
  }
  kernels::AdamW(Stream(), GetParam(), {}, scalars.As<UpdateScalars>(), true);
}

TEST_P(RowwiseUpdate, GradientDescentScalesByASumOnTheCard) {
  const OnGpu scalars(Stream(), std::vector<UpdateScalars>{kScalars});
  const std::vector<double> squares = {0.0, 6.25};
  const OnGpu squares_there(Stream(), squares);
  UpdateProblem problem(Stream(), GetParam(), Lengths(), false);
  for (std::size_t i = 0; i < problem.host.size(); ++i) {
    problem.card[i].scale = problem.host[i].scale = -1.5;
    if (i % 3 == 0) continue;
    problem.card[i].squares = squares_there.As<double>() + i % 2;
    problem.host[i].squares = squares.data() + i % 2;
  }
  kernels::GradientDescent(Stream(), GetParam(), problem.card, scalars.As<UpdateScalars>(), false);
  kernels::GradientDescent({}, Dtype::kFloat64, problem.host, &kScalars, false);
  for (std::size_t i = 0; i < problem.host.size(); ++i) {
    ExpectRows(problem.values_on[i].on.Values(), problem.values[i], Near(),
               "range " + std::to_string(i));
  }
}

TEST_P(RowwiseUpdate, SumsOfSquares) {
  std::vector<HostRows> host;
  std::vector<Storage> card;
  std::vector<kernels::FlatRange> on_host, on_card;
  unsigned seed = 0;
  std::vector<std::int64_t> lengths = Lengths();
  lengths.push_back(70000);  // several blocks
  for (const std::int64_t length : lengths) {
    host.push_back(HostRows::Random(1, length, ++seed));
    card.emplace_back(Stream(), GetParam(), host.back(), seed % 3 == 2 ? 1 : 0);
  }
  HostRows want(1, static_cast<std::int64_t>(lengths.size()));
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    on_host.push_back({lengths[i], host[i].values.data()});
    on_card.push_back({lengths[i], card[i].Data()});
  }
  const GpuMatrix sums(Stream(), Dtype::kFloat64, 1, want.columns,
                       std::vector<double>(lengths.size(), 9));
  kernels::SquareSums(Stream(), GetParam(), on_card, sums.View().As<double>());
  kernels::SquareSums({}, Dtype::kFloat64, on_host, want.values.data());
  ExpectRows(sums.Values(), want, {1e-14, 0}, "sums");
  const double total = kernels::SquareSum({}, Dtype::kFloat64, on_host);
  const double found = kernels::SquareSum(Stream(), GetParam(), on_card);
  EXPECT_NEAR(found, total, 1e-13 * total);
  EXPECT_EQ(kernels::SquareSum(Stream(), GetParam(), on_card), found);
  EXPECT_EQ(kernels::SquareSum(Stream(), GetParam(), {}), 0);
}

TEST_P(RowwiseUpdate, SumsOfSquaresThatAreNotFinite) {
  for (const double bad :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    for (const std::size_t at : {0, 1000, 4098}) {
      HostRows values = HostRows::Random(1, 4099, 1);
      values.values[at] = bad;
      const Storage on(Stream(), GetParam(), values, 0);
      const kernels::FlatRange range{values.columns, on.Data()};
      EXPECT_FALSE(std::isfinite(kernels::SquareSum(Stream(), GetParam(), {&range, 1}))) << at;
    }
  }
}

}  // namespace
}  // namespace trireme::test
