// Activations on a GPU against the CPU's.
#include "rowwise_testing.hpp"
#include "trireme/kernels/elementwise.hpp"

namespace trireme::test {
namespace {

using kernels::ActivationKind;

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

}  // namespace
}  // namespace trireme::test
