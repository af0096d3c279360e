// Norms on a GPU against the CPU's: every path of the kernels, from a few lanes per row to rows too
// long for the registers of a block.
#include "rowwise_testing.hpp"
#include "trireme/kernels/elementwise.hpp"

namespace trireme::test {
namespace {

using kernels::NormKind;

constexpr double kEpsilon = 1e-5;

// One access of a few lanes, of a warp, of several warps, several accesses, longer than registers;
// odd ones go element by element.
std::vector<RowwiseSize> NormSizes() {
  return {{1, 1},    {3, 3},    {33, 31},  {65, 8},   {19, 128}, {9, 250},   {5, 768},   {3, 1000},
          {2, 1001}, {3, 2304}, {2, 4100}, {2, 4104}, {2, 8200}, {1, 16392}, {1, 33000}, {130, 5}};
}

class RowwiseNorm : public RowwiseTest {
 protected:
  template <typename Body>
  void EachCase(Body body) const {
    for (const RowwiseSize& size : NormSizes()) {
      // Long rows once are enough: they are many fibers' work.
      const RowLayout layout = GetParam().layout;
      if (size.columns > 5000 && layout != RowLayout::kDense && layout != RowLayout::kOdd) continue;
      for (const NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
        body(kind, size,
             (kind == NormKind::kLayerNorm ? "LayerNorm " : "RMSNorm ") + Describe(size));
      }
    }
  }
  // Sums of a row over many threads; in bf16 what is rounded on the way counts too.
  RowwiseTolerance Near(const RowwiseSize& size, int steps = 1) const {
    RowwiseTolerance tolerance = Tolerance(size.columns, steps);
    // A small deviation makes noise of the inputs' last places large: none here, but of rstd.
    tolerance.rounding *= Type() == Dtype::kBfloat16 ? 1.1 : 8;
    return tolerance;
  }
};
INSTANTIATE_TEST_SUITE_P(All, RowwiseNorm, testing::ValuesIn(RowwiseSettings()), NameOfSetting);

TEST_P(RowwiseNorm, Forward) {
  EachCase([&](NormKind kind, const RowwiseSize& size, const std::string& what) {
    HostRows x = HostRows::Random(size.rows, size.columns, 1);
    HostRows weight = HostRows::Random(1, size.columns, 2);
    HostRows bias = HostRows::Random(1, size.columns, 3);
    HostRows y(size.rows, size.columns, 5), statistics(size.rows, 2, 5);
    const bool biased = kind == NormKind::kLayerNorm;
    const GpuMatrix on = On(x), scale = On(weight), shift = On(bias), to = On(y);
    const GpuMatrix found = DenseSumsOn(statistics);
    kernels::NormForward(Stream(), kind, on.View(), scale.View(),
                         biased ? shift.View() : kernels::Matrix{}, kEpsilon, to.View(),
                         found.View());
    kernels::NormForward(Cpu(), kind, x.View(), weight.View(),
                         biased ? bias.View() : kernels::Matrix{}, kEpsilon, y.View(),
                         statistics.View());
    ExpectRows(to.Values(), y, Near(size), what);
    ExpectRows(found.Values(), statistics, ToleranceFor(SumTypeOf(Type()), size.columns),
               what + " statistics");
    EXPECT_TRUE(to.GapsUntouched()) << what;
  });
}

// The variance as a difference of squares would lose everything. (bf16 holds no such numbers.)
TEST_F(GpuTest, RowwiseNormALargeMeanDoesNotSpoilTheVariance) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    HostRows x = HostRows::Random(5, 64, 1), weight(1, 64, 1), y(5, 64), statistics(5, 2);
    for (double& value : x.values) value += 3000;
    const auto on = [&](const HostRows& host) {
      return GpuMatrix(Stream(), dtype, host.rows, host.columns, host.values);
    };
    const GpuMatrix from = on(x), scale = on(weight), to = on(y), found = on(statistics);
    kernels::NormForward(Stream(), NormKind::kLayerNorm, from.View(), scale.View(), {}, kEpsilon,
                         to.View(), found.View());
    kernels::NormForward({}, NormKind::kLayerNorm, x.View(), weight.View(), {}, kEpsilon, y.View(),
                         statistics.View());
    // fp32's mean itself is good to half a unit in the last place of 3000.
    ExpectRows(to.Values(), y, {0, dtype == Dtype::kFloat32 ? 1e-3 : 1e-11}, NameOf(dtype));
  }
}

TEST_P(RowwiseNorm, ResidualInFront) {
  EachCase([&](NormKind kind, const RowwiseSize& size, const std::string& what) {
    HostRows residual = HostRows::Random(size.rows, size.columns, 1);
    HostRows branch = HostRows::Random(size.rows, size.columns, 2);
    HostRows bias = HostRows::Random(1, size.columns, 3);
    HostRows weight = HostRows::Random(1, size.columns, 4);
    HostRows y(size.rows, size.columns, 5), statistics(size.rows, 2, 5);
    const RowwiseDropout dropout(Stream(), kind == NormKind::kLayerNorm ? 0.2 : 0.0,
                                 (size.rows + 3) / 4, 1, 0, 0.3);
    const GpuMatrix sum = On(residual), goes = On(branch), add = On(bias), scale = On(weight);
    const GpuMatrix to = On(y), found = DenseSumsOn(statistics), again = On(y);
    const GpuMatrix found_again = DenseSumsOn(statistics);
    kernels::ResidualNormForward(Stream(), kind, sum.View(), goes.View(), add.View(),
                                 dropout.OnCard(), sum.View(), scale.View(), {}, kEpsilon,
                                 to.View(), found.View());
    kernels::ResidualNormForward(Cpu(), kind, residual.View(), branch.View(), bias.View(),
                                 dropout.OnHost(), residual.View(), weight.View(), {}, kEpsilon,
                                 y.View(), statistics.View());
    ExpectRows(sum.Values(), residual, Tolerance(), what + " sum");
    ExpectRows(to.Values(), y, Near(size, 2), what);
    EXPECT_EQ(goes.Values(), branch.values) << what << ": the branch is only read";
    EXPECT_TRUE(sum.GapsUntouched() && to.GapsUntouched()) << what;
    // Recomputation does the norm alone, to the bit.
    kernels::NormForward(Stream(), kind, sum.View(), scale.View(), {}, kEpsilon, again.View(),
                         found_again.View());
    EXPECT_EQ(again.Bits(), to.Bits()) << what;
    EXPECT_EQ(found_again.Bits(), found.Bits()) << what;
  });
}

struct BackwardOperands {
  HostRows dy, more, x, weight, statistics, residual, dx, dbranch, dweight, dbias, scratch;

  BackwardOperands(NormKind kind, const RowwiseSize& size)
      : dy(HostRows::Random(size.rows, size.columns, 1)),
        more(HostRows::Random(size.rows, size.columns, 2)),
        x(HostRows::Random(size.rows, size.columns, 3)),
        weight(HostRows::Random(1, size.columns, 4)),
        statistics(size.rows, 2),
        residual(HostRows::Random(size.rows, size.columns, 5)),
        dx(size.rows, size.columns, 7),
        dbranch(size.rows, size.columns, 7),
        dweight(HostRows::Random(1, size.columns, 6)),
        dbias(HostRows::Random(1, size.columns, 7)),
        scratch(kernels::kReductionBlocks, 2 * size.columns) {
    HostRows y(size.rows, size.columns);
    kernels::NormForward({}, kind, x.View(), weight.View(), {}, kEpsilon, y.View(),
                         statistics.View());
  }
};

TEST_P(RowwiseNorm, BackwardInOnePass) {
  EachCase([&](NormKind kind, const RowwiseSize& size, const std::string& what) {
    BackwardOperands host(kind, size);
    const bool whole = kind == NormKind::kLayerNorm;  // else without all that may be Empty()
    const RowwiseDropout dropout(Stream(), whole ? 0.2 : 0.0, (size.rows + 3) / 4, 1, 0,
                                 size.rows % 2 == 0 ? 0 : 0.3);
    const GpuMatrix dy = On(host.dy), more = On(host.more), x = On(host.x),
                    weight = On(host.weight);
    const GpuMatrix statistics = DenseSumsOn(host.statistics), residual = On(host.residual);
    const GpuMatrix dx = On(host.dx), dbranch = On(host.dbranch);
    const GpuMatrix dweight = SumsOn(host.dweight), dbias = SumsOn(host.dbias);
    kernels::NormBackwardPass pass{.kind = kind,
                                   .dy = dy.View(),
                                   .x = x.View(),
                                   .weight = weight.View(),
                                   .statistics = statistics.View(),
                                   .dropout = dropout.OnCard(),
                                   .dx = dx.View(),
                                   .dbranch = dbranch.View(),
                                   .dweight = dweight.View()};
    kernels::NormBackwardPass cpu{.kind = kind,
                                  .dy = host.dy.View(),
                                  .x = host.x.View(),
                                  .weight = host.weight.View(),
                                  .statistics = host.statistics.View(),
                                  .dropout = dropout.OnHost(),
                                  .dx = host.dx.View(),
                                  .dbranch = host.dbranch.View(),
                                  .dweight = host.dweight.View(),
                                  .scratch = host.scratch.View()};
    if (whole) {
      pass.more = more.View();
      cpu.more = host.more.View();
      pass.residual = residual.View();
      cpu.residual = host.residual.View();
      pass.dbias = dbias.View();
      cpu.dbias = host.dbias.View();
    }
    kernels::NormBackward(Stream(), pass);
    kernels::NormBackward(Cpu(), cpu);
    ExpectRows(dx.Values(), host.dx, Near(size), what + " dx", 1);
    ExpectRows(dbranch.Values(), host.dbranch, Near(size, 2), what + " dbranch", 1);
    const RowwiseTolerance sums = ToleranceFor(SumTypeOf(Type()), 16 * size.rows + size.columns);
    ExpectRows(dweight.Values(), host.dweight, sums, what + " dweight");
    ExpectRows(dbias.Values(), host.dbias, sums, what + " dbias");
    EXPECT_TRUE(dx.GapsUntouched() && dbranch.GapsUntouched()) << what;
    EXPECT_TRUE(dweight.GapsUntouched() && dbias.GapsUntouched()) << what;
  });
}

// A backward pass that reads what the forward pass kept has the bits of one that draws again.
TEST_P(RowwiseNorm, KeptElementsAreThoseThatAreDrawn) {
  EachCase([&](NormKind kind, const RowwiseSize& size, const std::string& what) {
    BackwardOperands host(kind, size);
    const RowwiseDropout dropout(Stream(), 0.3, (size.rows + 3) / 4, 1, 0, 0.3);
    const std::int64_t stride = kernels::Dropout::KeptBytes(size.columns);
    constexpr std::uint8_t kUntouched = 0xA5;
    const OnGpu kept(Stream(), std::vector<std::uint8_t>(
                                   static_cast<std::size_t>(size.rows * stride + 1), kUntouched));
    kernels::Dropout keeps = dropout.OnCard();
    keeps.kept = kept.As<std::uint8_t>();
    keeps.kept_stride = stride;
    const GpuMatrix x = On(host.x), weight = On(host.weight), residual = On(host.residual);
    const GpuMatrix statistics = DenseSumsOn(host.statistics), y = On(host.dx);
    const GpuMatrix branch = On(host.more), sum = On(host.dx);
    kernels::ResidualNormForward(Stream(), kind, residual.View(), branch.View(), {}, keeps,
                                 sum.View(), weight.View(), {}, kEpsilon, y.View(),
                                 statistics.View());
    EXPECT_EQ(kept.Out<std::uint8_t>().back(), kUntouched) << what;
    const auto backward = [&](const kernels::Dropout& by) {
      const GpuMatrix dy = On(host.dy), dx = On(host.dx), dbranch = On(host.dbranch);
      kernels::NormBackward(Stream(), {.kind = kind,
                                       .dy = dy.View(),
                                       .x = sum.View(),
                                       .weight = weight.View(),
                                       .statistics = statistics.View(),
                                       .residual = residual.View(),
                                       .dropout = by,
                                       .dx = dx.View(),
                                       .dbranch = dbranch.View()});
      return dbranch.Bits();
    };
    EXPECT_EQ(backward(keeps), backward(dropout.OnCard())) << what;
  });
}

// Very long rows, so many that a block's threads share the rows of its sums: on a card of one
// multiprocessor a few are enough.
TEST_P(RowwiseNorm, BackwardOfLongRowsSumsOverManyRows) {
  if (GetParam().layout != RowLayout::kDense) GTEST_SKIP() << "other layouts change nothing here";
  const RowwiseSize size{23, 4101};
  device::GpuContext small = *Stream().gpu;
  small.multiprocessors = 1;
  device::Stream stream = Stream();
  stream.gpu = &small;
  BackwardOperands host(NormKind::kLayerNorm, size);
  const GpuMatrix dy = On(host.dy), x = On(host.x), weight = On(host.weight);
  const GpuMatrix statistics = DenseSumsOn(host.statistics), dx = On(host.dx);
  const GpuMatrix dweight = SumsOn(host.dweight), dbias = SumsOn(host.dbias);
  const auto pass = [](auto& dy, auto& x, auto& weight, auto& statistics, auto& dx, auto& dweight,
                       auto& dbias) {
    return kernels::NormBackwardPass{.kind = NormKind::kLayerNorm,
                                     .dy = dy.View(),
                                     .x = x.View(),
                                     .weight = weight.View(),
                                     .statistics = statistics.View(),
                                     .dx = dx.View(),
                                     .dweight = dweight.View(),
                                     .dbias = dbias.View()};
  };
  kernels::NormBackward(stream, pass(dy, x, weight, statistics, dx, dweight, dbias));
  kernels::NormBackwardPass cpu =
      pass(host.dy, host.x, host.weight, host.statistics, host.dx, host.dweight, host.dbias);
  cpu.scratch = host.scratch.View();
  kernels::NormBackward(Cpu(), cpu);
  ExpectRows(dx.Values(), host.dx, Near(size), "dx", 1);
  const RowwiseTolerance sums = ToleranceFor(SumTypeOf(Type()), 16 * size.rows + size.columns);
  ExpectRows(dweight.Values(), host.dweight, sums, "dweight");
  ExpectRows(dbias.Values(), host.dbias, sums, "dbias");
}

// dx may be any of what it is made from; the weights' gradients must not suffer.
TEST_P(RowwiseNorm, BackwardInPlaceTwiceTheSameBits) {
  EachCase([&](NormKind kind, const RowwiseSize& size, const std::string& what) {
    BackwardOperands host(kind, size);
    const GpuMatrix x = On(host.x), weight = On(host.weight);
    const GpuMatrix statistics = DenseSumsOn(host.statistics);
    std::vector<double> first_dx, first_dweight;
    for (int place = 0; place < 4; ++place) {
      const GpuMatrix dy = On(host.dy), more = On(host.more), residual = On(host.residual);
      const GpuMatrix other = On(host.dx), dweight = SumsOn(host.dweight);
      const GpuMatrix* const dx[] = {&other, &dy, &more, &residual};
      kernels::NormBackward(Stream(), {.kind = kind,
                                       .dy = dy.View(),
                                       .more = more.View(),
                                       .x = x.View(),
                                       .weight = weight.View(),
                                       .statistics = statistics.View(),
                                       .residual = residual.View(),
                                       .dx = dx[place]->View(),
                                       .dweight = dweight.View()});
      if (place == 0) {
        first_dx = dx[place]->Values();
        first_dweight = dweight.Values();
      }
      EXPECT_EQ(dx[place]->Values(), first_dx) << what << " place " << place;
      EXPECT_EQ(dweight.Values(), first_dweight) << what << " place " << place;
    }
  });
}

TEST_P(RowwiseNorm, NoRowsAreNothing) {
  HostRows row(1, 8, 3);
  const GpuMatrix some = On(row), sums = SumsOn(row);
  const kernels::Matrix x{some.View().data, Type(), 0, 8, 8};
  const kernels::Matrix statistics{sums.View().data, SumTypeOf(Type()), 0, 2, 2};
  kernels::NormForward(Stream(), NormKind::kLayerNorm, x, some.View(), {}, kEpsilon, x, statistics);
  kernels::ResidualNormForward(Stream(), NormKind::kLayerNorm, x, x, {}, {}, x, some.View(), {},
                               kEpsilon, x, statistics);
  kernels::NormBackward(Stream(), {.dy = x,
                                   .x = x,
                                   .weight = some.View(),
                                   .statistics = statistics,
                                   .dx = x,
                                   .dweight = sums.View()});
  kernels::ColumnSum(Stream(), x, sums.View(), {});
  Synchronise();
  EXPECT_EQ(some.Values(), row.values);
  EXPECT_EQ(sums.Values(), row.values);
}

}  // namespace
}  // namespace trireme::test
