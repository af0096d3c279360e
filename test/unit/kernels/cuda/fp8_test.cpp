// Linear layers in fp8 on a GPU: against products of operands that the test rounds itself, against
// bf16, the scales from step to step, and what is rounded once for several products.
#include <memory>
#include <tuple>
#include <utility>

#include "multiply_testing.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/json.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/linear.hpp"

namespace trireme::test {
namespace {

using kernels::Form;
using kernels::Matrix;

constexpr double kE4m3 = 448, kE5m2 = 57344;  // the largest of each type
constexpr int kSite = 1;

// To the nearest number of e4m3 (3 bits of mantissa, least exponent -6) or e5m2 (2, -14), ties to
// even, beyond the largest to the largest.
double RoundToFp8(double value, double largest) {
  const bool e4m3 = largest == kE4m3;
  if (value == 0) return 0;
  const int exponent = std::max(std::ilogb(value), e4m3 ? -6 : -14);
  const double unit = std::ldexp(1.0, exponent - (e4m3 ? 3 : 2));
  return std::clamp(std::nearbyint(value / unit) * unit, -largest, largest);
}

double LargestOf(const Values& values) {
  double largest = 0;
  for (const double value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

// As they are multiplied: rounded at the scale that follows from `amax`, scaled back.
Values Quantised(const Values& values, double largest, double amax) {
  const auto scale = static_cast<double>(static_cast<float>(largest / amax));
  Values result;
  for (const double value : values) {
    const auto scaled = static_cast<float>(value) * static_cast<float>(scale);
    result.push_back(RoundToFp8(static_cast<double>(scaled), largest) / scale);
  }
  return result;
}
Values Quantised(const Values& values, double largest) {
  return Quantised(values, largest, LargestOf(values));
}

Values AsBf16(Values values) { return Rounded(std::move(values), Dtype::kBfloat16); }

struct Shape {
  std::int64_t rows, in, out;
};

class Fp8Test : public ProductsTest {
 protected:
  void SetUp() override {
    ProductsTest::SetUp();
    if (IsSkipped()) return;
    constexpr int kHopper = 9;
    if (Stream().gpu->major < kHopper) GTEST_SKIP() << "this card multiplies no fp8";
    Stream().fp8 = true;
    Open();
  }
  // Anew, with memory for what the tests multiply.
  void Open() {
    ProductsTest::Open();
    Libraries().Reserve(1 << 16);
  }
  // Behind the products of a step, as one rank alone has it.
  void NextStep() {
    Libraries().QueueLargest(Stream());
    device::Synchronise(Stream());
    Libraries().UpdateScales(Stream());
  }
  bool UsesFp8() { return Libraries().Chosen().find("e4m3") != std::string::npos; }
  void Compare(const Shape& shape, Form form, bool quantised, std::int64_t padding);
  // Output of a layer with a weight of 1 for x: x as fp8 has it, at its present scale.
  Values Through(const Values& x) {
    Values unit(16 * 16);
    for (std::size_t i = 0; i < 16; ++i) unit[i * 17] = 1;
    const GpuMatrix weight(Stream(), Dtype::kBfloat16, 16, 16, unit);
    const GpuMatrix gpu_x(Stream(), Dtype::kBfloat16, 16, 16, x);
    const GpuMatrix y(Stream(), Dtype::kBfloat16, 16, 16, {});
    kernels::LinearForward(Stream(), {kSite, Form::kTransposed, weight.View()}, gpu_x.View(), {},
                           y.View(), [](const Part&) {});
    return y.Values();
  }
};

// Forward, input gradient and weight gradient; `quantised`: the reference rounds to fp8 as well.
void Fp8Test::Compare(const Shape& shape, Form form, bool quantised, std::int64_t padding) {
  const auto [rows, in, out] = shape;
  const bool turned = form == Form::kTransposed;
  const std::int64_t w_rows = turned ? out : in, w_columns = turned ? in : out;
  const Values x = Random(rows * in, 1, Dtype::kBfloat16, 3);
  const Values w = Random(in * out, 2, Dtype::kBfloat16, 0.02);
  const Values dy = Random(rows * out, 3, Dtype::kBfloat16, 1e-6);
  const Values bias = Random(out, 4, Dtype::kBfloat16);
  const Values before = Random(in * out, 5, Dtype::kFloat32, 1e-6);
  const auto as_multiplied = [&](const Values& values, double largest) {
    return quantised ? Quantised(values, largest) : values;
  };
  HostMatrix host_x(rows, in, as_multiplied(x, kE4m3));
  HostMatrix host_w(w_rows, w_columns, as_multiplied(w, kE4m3));
  HostMatrix host_dy(rows, out, as_multiplied(dy, kE5m2)), host_bias(1, out, bias);
  HostMatrix host_y(rows, out), host_dx(rows, in), host_dw(w_rows, w_columns, before);
  const kernels::Linear host{-1, form, host_w.View()};
  const auto ignore = [](const Part&) {};
  kernels::LinearForward({}, host, host_x.View(), host_bias.View(), host_y.View(), ignore);
  kernels::LinearInputGradient({}, host, host_dy.View(), host_dx.View());
  kernels::LinearWeightGradient({}, host, host_x.View(), host_dy.View(), host_dw.View());

  const Dtype half = Dtype::kBfloat16;
  const GpuMatrix gpu_x(Stream(), half, rows, in, x, in + padding);
  const GpuMatrix gpu_w(Stream(), half, w_rows, w_columns, w, w_columns + padding);
  const GpuMatrix gpu_dy(Stream(), half, rows, out, dy, out + padding);
  const GpuMatrix gpu_bias(Stream(), half, 1, out, bias);
  const GpuMatrix y(Stream(), half, rows, out, {}), dx(Stream(), half, rows, in, {});
  const GpuMatrix dw(Stream(), Dtype::kFloat32, w_rows, w_columns, before);
  const kernels::Linear gpu{kSite, form, gpu_w.View()};
  kernels::LinearForward(Stream(), gpu, gpu_x.View(), gpu_bias.View(), y.View(), ignore);
  kernels::LinearInputGradient(Stream(), gpu, gpu_dy.View(), dx.View());
  kernels::LinearWeightGradient(Stream(), gpu, gpu_x.View(), gpu_dy.View(), dw.View());
  // Errors of rounding to fp8 are independent: 2^-4 of a value of e4m3, 2^-3 of e5m2 at most.
  const double k_in = std::sqrt(static_cast<double>(in)),
               k_out = std::sqrt(static_cast<double>(out));
  const double k_rows = std::sqrt(static_cast<double>(rows));
  // A Hopper adds up the products of a step, and what came before, aligned to the largest of them
  // and cut off behind 13 bits of fraction: each is wrong by up to 2^-13 of a power of two that is
  // at most twice the largest. For k products that is a deviation of sqrt(k / 12) 2^-12 of the
  // largest; here it is given, times sqrt(k), as 2^-10: 14 deviations, or 5 where the sum so far
  // has come to nearly three times the largest product. Sums of the emulator are exact but for
  // fp32's rounding.
  const double cut = IsEmulated() ? 2e-4 : 1.0 / 1024;
  const double loose = quantised ? 0 : 0.25, tight = UnitOf(half), sums = quantised ? cut : 0;
  // A bias that a pass of its own adds: the product has been rounded before.
  const double before_bias = RefusedEpilogues() > 0 ? tight : 0;
  ExpectClose(y.Values(), host_y.Numbers(), tight,
              (sums + loose + before_bias) * 3 * 0.02 * k_in + 1e-6);
  ExpectClose(dx.Values(), host_dx.Numbers(), tight, (sums + loose) * 1e-6 * 0.02 * k_out);
  ExpectClose(dw.Values(), host_dw.Numbers(), 1e-6, (sums + loose) * 1e-6 * 3 * k_rows);
}

constexpr Shape kShapes[] = {{16, 16, 16}, {48, 80, 112}, {160, 64, 32}};
constexpr Form kFp8Forms[] = {Form::kTransposed, Form::kPlain};

TEST_F(Fp8Test, MultipliesOperandsRoundedToFp8) {
  for (const Shape& shape : kShapes) {
    for (const Form form : kFp8Forms) {
      for (const std::int64_t padding : {0, 8, 3}) {
        SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.out << " x " << shape.in
                                        << " padding " << padding);
        Open();
        Compare(shape, form, true, padding);
        EXPECT_TRUE(UsesFp8());
      }
    }
  }
}

TEST_F(Fp8Test, LiesCloseToBf16) {
  for (const Form form : kFp8Forms) {
    Open();
    Compare({48, 80, 112}, form, false, 0);
    EXPECT_TRUE(UsesFp8());
  }
}

// If a dimension is no multiple of 16, the product is bf16's, to bf16's rounding.
TEST_F(Fp8Test, FallsBackWhereTheShapeDoesNotFit) {
  for (const Shape& shape : {Shape{17, 16, 16}, Shape{16, 24, 16}, Shape{16, 16, 40}}) {
    const auto [rows, in, out] = shape;
    Open();
    const Values x = Random(rows * in, 1, Dtype::kBfloat16),
                 w = Random(in * out, 2, Dtype::kBfloat16);
    HostMatrix host_x(rows, in, x), host_w(out, in, w), host_y(rows, out);
    kernels::LinearForward({}, {-1, Form::kTransposed, host_w.View()}, host_x.View(), {},
                           host_y.View(), [](const Part&) {});
    const GpuMatrix gpu_x(Stream(), Dtype::kBfloat16, rows, in, x);
    const GpuMatrix gpu_w(Stream(), Dtype::kBfloat16, out, in, w);
    const GpuMatrix y(Stream(), Dtype::kBfloat16, rows, out, {});
    kernels::LinearForward(Stream(), {kSite, Form::kTransposed, gpu_w.View()}, gpu_x.View(), {},
                           y.View(), [](const Part&) {});
    EXPECT_FALSE(UsesFp8());
    ExpectClose(y.Values(), host_y.Numbers(), UnitOf(Dtype::kBfloat16), 1e-5);
  }
}

TEST_F(Fp8Test, LayersWithoutASiteStayBf16) {
  const GpuMatrix weight(Stream(), Dtype::kBfloat16, 16, 16, {});
  const GpuMatrix x(Stream(), Dtype::kBfloat16, 16, 16, {}),
      y(Stream(), Dtype::kBfloat16, 16, 16, {});
  const auto ignore = [](const Part&) {};
  kernels::LinearForward(Stream(), {-1, Form::kPlain, weight.View()}, x.View(), {}, y.View(),
                         ignore);
  EXPECT_FALSE(UsesFp8());
  try {
    kernels::LinearForward(Stream(), {kTestSites, Form::kPlain, weight.View()}, x.View(), {},
                           y.View(), ignore);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("linear layer 3 of 3"), std::string::npos)
        << error.what();
  }
}

// A scale is that of the largest of the last 16 steps; within a step it does not change.
TEST_F(Fp8Test, ScalesFollowTheLastSteps) {
  const Values x = Random(16 * 16, 1, Dtype::kBfloat16);
  const double amax = LargestOf(x);
  Values larger = x, smaller = x;
  for (double& value : larger) value *= 4;
  for (double& value : smaller) value /= 64;
  // The first time: from the tensor itself.
  ExpectClose(Through(x), AsBf16(Quantised(x, kE4m3, amax)), 1e-6, 0);
  // Four times as large in the same step: cut off.
  ExpectClose(Through(larger), AsBf16(Quantised(larger, kE4m3, amax)), 1e-6, 0);
  EXPECT_NEAR(LargestOf(Through(larger)), amax, 4e-3 * amax);
  NextStep();
  ExpectClose(Through(larger), AsBf16(Quantised(larger, kE4m3, 4 * amax)), 1e-6, 0);
  NextStep();
  for (int step = 0; step < 16; ++step) {
    ExpectClose(Through(smaller), AsBf16(Quantised(smaller, kE4m3, 4 * amax)), 1e-6, 0);
    NextStep();
  }
  ExpectClose(Through(smaller), AsBf16(Quantised(smaller, kE4m3, amax / 64)), 1e-6, 0);
}

// Values that another rank saw count, and those that are not finite do not.
TEST_F(Fp8Test, ScalesFollowWhatRanksAgreeOn) {
  const Values x = Random(16 * 16, 1, Dtype::kBfloat16);
  Through(x);
  Libraries().QueueLargest(Stream());
  device::Synchronise(Stream());
  const std::span<float> largest = Libraries().Largest();
  ASSERT_EQ(largest.size(), std::size_t{3 * kTestSites});
  EXPECT_EQ(largest[3 * kSite], static_cast<float>(LargestOf(x)));
  EXPECT_EQ(largest[0], 0.0f);  // not met
  largest[3 * kSite] = 11;
  largest[3 * kSite + 1] = std::numeric_limits<float>::infinity();
  Libraries().UpdateScales(Stream());
  ExpectClose(Through(x), AsBf16(Quantised(x, kE4m3, 11)), 1e-6, 0);
}

// Scales that are kept and taken over go on as if nothing had been in between.
TEST_F(Fp8Test, ScalesContinueFromWhatWasKept) {
  const Values x = Random(16 * 16, 1, Dtype::kBfloat16);
  Values larger = x, smaller = x;
  for (double& value : larger) value *= 5;
  for (double& value : smaller) value /= 3;
  EXPECT_FALSE(Libraries().Scaled());
  EXPECT_TRUE(Libraries().Scales().empty());
  Through(larger);
  NextStep();
  Through(smaller);
  NextStep();
  EXPECT_TRUE(Libraries().Scaled());
  const std::vector<float> kept = Libraries().Scales();
  const auto go_on = [&] {
    std::vector<Values> seen;
    for (int step = 0; step < 17; ++step) {  // the largest is forgotten on the way
      seen.push_back(Through(smaller));
      NextStep();
    }
    return seen;
  };
  const auto wanted = go_on();
  EXPECT_NE(wanted.front(), wanted.back());
  Open();
  Through(Values(16 * 16, 1000.0));
  NextStep();
  EXPECT_TRUE(Libraries().SetScales(Stream(), kept));
  EXPECT_EQ(Libraries().Scales(), kept);
  EXPECT_EQ(go_on(), wanted);
  // Of another model: anew.
  EXPECT_FALSE(Libraries().SetScales(Stream(), std::span(kept).first(kept.size() - 1)));
  EXPECT_FALSE(Libraries().Scaled());
  ExpectClose(Through(x), AsBf16(Quantised(x, kE4m3)), 1e-6, 0);
}

// A tensor as it is multiplied in one of the passes that round it: each is a product with 1.
struct RoundingPass {
  bool gradient, transposed;  // whether it is a layer's gradient; whether its transpose is made
  std::int64_t padding;
};

// The largest magnitude counts wherever it lies: in the first use of a tensor, and in every pass
// that rounds it.
TEST_F(Fp8Test, ScalesSeeEveryElement) {
  constexpr std::int64_t kSize = 64;
  Values unit(kSize * kSize);
  for (std::size_t i = 0; i < kSize; ++i) unit[i * (kSize + 1)] = 1;
  const GpuMatrix one(Stream(), Dtype::kBfloat16, kSize, kSize, unit);
  const auto through = [&](const Values& values, const RoundingPass& pass) {
    const GpuMatrix x(Stream(), Dtype::kBfloat16, kSize, kSize, values, kSize + pass.padding);
    const GpuMatrix y(Stream(), Dtype::kBfloat16, kSize, kSize, {});
    const GpuMatrix dw(Stream(), Dtype::kFloat32, kSize, kSize, {});
    const Form form = pass.gradient ? Form::kPlain : Form::kTransposed;
    const kernels::Linear layer{kSite, form, one.View()};
    if (pass.transposed) {
      kernels::LinearWeightGradient(Stream(), layer, pass.gradient ? one.View() : x.View(),
                                    pass.gradient ? x.View() : one.View(), dw.View());
      return dw.Values();
    }
    if (pass.gradient) {
      kernels::LinearInputGradient(Stream(), layer, x.View(), y.View());
    } else {
      kernels::LinearForward(Stream(), layer, x.View(), {}, y.View(), [](const Part&) {});
    }
    return y.Values();
  };
  double peak = 1e6;
  for (int number = 0; number < 8; ++number) {
    const RoundingPass pass{(number & 1) != 0, (number & 2) != 0, (number & 4) != 0 ? 3 : 0};
    const double largest = pass.gradient ? kE5m2 : kE4m3;
    for (const std::size_t place : {0u, 700u, 1500u, 2047u, 3000u, 4095u}) {
      SCOPED_TRACE(testing::Message() << "pass " << number << " element " << place);
      peak /= 4;  // less than any that may be left over from before
      Values first = Random(kSize * kSize, 1, Dtype::kFloat64, peak / 8), second = first;
      first[place] = peak / 3;  // by no power of two, which would change no rounding
      second[kSize * kSize - 1 - place] = peak;
      first = Rounded(first, Dtype::kBfloat16);
      second = Rounded(second, Dtype::kBfloat16);
      Open();
      ExpectClose(through(first, pass), Quantised(first, largest), UnitOf(Dtype::kBfloat16), 0);
      through(second, pass);
      NextStep();
      ExpectClose(through(first, pass), Quantised(first, largest, LargestOf(second)),
                  UnitOf(Dtype::kBfloat16), 0);
    }
  }
}

// Values that are not finite say nothing about a scale, and are not lost.
TEST_F(Fp8Test, WhatIsNotANumberStaysOne) {
  const Values x = Random(16 * 16, 1, Dtype::kBfloat16);
  const Values before = Through(x);
  NextStep();
  Values bad = x;
  bad[37] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(std::isnan(Through(bad)[37]));
  NextStep();
  EXPECT_EQ(Through(x), before);
  // All zero: the scale stays.
  for (int step = 0; step < 20; ++step) {
    EXPECT_EQ(Through(Values(16 * 16)), Values(16 * 16));
    NextStep();
  }
  EXPECT_EQ(Through(x), before);
}

// In an evaluation a tensor is scaled by itself, and training goes on as if there had been none.
TEST_F(Fp8Test, EvaluationKeepsItsScalesToItself) {
  const Values x = Random(16 * 16, 1, Dtype::kBfloat16);
  const double amax = LargestOf(x);
  Values larger = x, smaller = x;
  for (double& value : larger) value *= 3;
  for (double& value : smaller) value /= 100;
  larger = AsBf16(larger);
  smaller = AsBf16(smaller);
  const auto evaluate = [&] {
    Libraries().SetTraining(false);
    for (const Values& values : {larger, smaller, larger}) {
      ExpectClose(Through(values), AsBf16(Quantised(values, kE4m3)), 1e-6, 0);
    }
    Libraries().SetTraining(true);
  };
  evaluate();  // before training has a scale
  ExpectClose(Through(x), AsBf16(Quantised(x, kE4m3, amax)), 1e-6, 0);
  evaluate();  // within a step
  ExpectClose(Through(smaller), AsBf16(Quantised(smaller, kE4m3, amax)), 1e-6, 0);
  for (int step = 0; step < 3; ++step) {
    NextStep();
    evaluate();
    ExpectClose(Through(smaller), AsBf16(Quantised(smaller, kE4m3, amax)), 1e-6, 0);
  }
}

TEST_F(Fp8Test, ReservedMemoryNeverGrows) {
  const auto ignore = [](const Part&) {};
  const GpuMatrix weight(Stream(), Dtype::kBfloat16, 16, 16, {});
  const GpuMatrix x(Stream(), Dtype::kBfloat16, 48, 16, {}),
      y(Stream(), Dtype::kBfloat16, 48, 16, {});
  const auto multiply = [&] {
    kernels::LinearForward(Stream(), {kSite, Form::kPlain, weight.View()}, x.View(), {}, y.View(),
                           ignore);
  };
  ProductsTest::Open();
  const std::int64_t before = device::AllocatedBytes();
  Libraries().Reserve(16 * 16);
  EXPECT_EQ(device::AllocatedBytes(), before + 2 * 256);
  try {
    multiply();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("an fp8 operand of 768 bytes, where 256 are reserved"),
              std::string::npos)
        << error.what();
  }
  Libraries().Reserve(48 * 16);
  const std::int64_t reserved = device::AllocatedBytes();
  multiply();
  Libraries().Reserve(16 * 16);  // less than there is
  multiply();
  EXPECT_EQ(device::AllocatedBytes(), reserved);
  EXPECT_TRUE(UsesFp8());
}

// A layer's three products, kernel by kernel, and what they computed.
class Fp8Layer : public Fp8Test, public testing::WithParamInterface<std::tuple<Form, int>> {
 protected:
  static constexpr std::int64_t kRows = 48, kIn = 144, kOut = 80;  // no tile is whole
  using Bits = std::vector<unsigned char>;

  static Form OfLayer() { return std::get<0>(GetParam()); }
  void SetUp() override {
    Fp8Test::SetUp();
    if (IsSkipped()) return;
    const int padding = std::get<1>(GetParam());
    const bool turned = OfLayer() == Form::kTransposed;
    const Dtype half = Dtype::kBfloat16;
    const auto make = [&](Dtype dtype, std::int64_t rows, std::int64_t columns, unsigned seed) {
      return std::make_unique<GpuMatrix>(Stream(), dtype, rows, columns,
                                         Random(rows * columns, seed, dtype), columns + padding);
    };
    weight_ = turned ? make(half, kOut, kIn, 1) : make(half, kIn, kOut, 1);
    other_weight_ = turned ? make(half, kOut, kIn, 5) : make(half, kIn, kOut, 5);
    x_ = make(half, kRows, kIn, 2);
    dy_ = make(half, kRows, kOut, 3);
    y_ = std::make_unique<GpuMatrix>(Stream(), half, kRows, kOut, Values());
    dx_ = std::make_unique<GpuMatrix>(Stream(), half, kRows, kIn, Values());
    const Matrix shape = weight_->View();  // rows of its gradient begin on 16 bytes
    dweight_ = std::make_unique<GpuMatrix>(Stream(), Dtype::kFloat32, shape.rows, shape.columns,
                                           Random(kIn * kOut, 4, Dtype::kFloat32));
    before_ = dweight_->Bits();
    OpenAlike();
  }
  // Anew, with the same algorithms for its products as before.
  void OpenAlike() {
    Open();
    Libraries().Seal();
  }
  kernels::Linear Layer() const { return {kSite, OfLayer(), weight_->View()}; }
  void Forward(const kernels::Linear& layer) {
    kernels::LinearForward(Stream(), layer, x_->View(), {}, y_->View(), [](const Part&) {});
  }
  void InputGradient(const kernels::Linear& layer) {
    kernels::LinearInputGradient(Stream(), layer, dy_->View(), dx_->View());
  }
  void WeightGradient(const kernels::Linear& layer) {
    kernels::LinearWeightGradient(Stream(), layer, x_->View(), dy_->View(), dweight_->View());
  }
  // Outputs of the three products, one after the other.
  std::vector<Bits> Run(const kernels::Linear& layer) {
    const Matrix to = dweight_->View();
    device::CopyIn(Stream(), before_.data(), to.data, std::ssize(before_));
    Forward(layer);
    InputGradient(layer);
    WeightGradient(layer);
    return {y_->Bits(), dx_->Bits(), dweight_->Bits()};
  }
  // Kernels that `queue` launches; nothing runs.
  template <typename Queue>
  std::int64_t Launches(const Queue& queue) {
    device::Synchronise(Stream());
    device::Graph graph;
    graph.Begin(Stream());
    queue();
    graph.End(Stream());
    return graph.Nodes();
  }

  std::unique_ptr<GpuMatrix> weight_, other_weight_, x_, dy_, y_, dx_, dweight_;

 private:
  Bits before_;  // of dweight
};

INSTANTIATE_TEST_SUITE_P(Forms, Fp8Layer,
                         testing::Combine(testing::Values(Form::kTransposed, Form::kPlain),
                                          testing::Values(0, 3)));

// A kept weight gives the same bits as one that is rounded at each product, step after step.
TEST_P(Fp8Layer, AKeptWeightIsThatOfTheStep) {
  std::vector<std::vector<Bits>> wanted;
  const auto steps = [&](bool keep, const auto& look) {
    OpenAlike();
    if (keep) Libraries().KeepWeights(std::vector{Layer()});
    for (int step = 0; step < 3; ++step) {
      // The last step has other values in the same place.
      const GpuMatrix& values = step == 2 ? *other_weight_ : *weight_;
      const auto bits = values.Bits();
      const GpuMatrix held(Stream(), Dtype::kBfloat16, values.View().rows, values.View().columns,
                           weight_->Values(), values.View().stride);
      const kernels::Linear layer{kSite, OfLayer(), held.View()};
      Libraries().SetTraining(true);
      look(Run(layer));
      look(Run(layer));
      device::CopyIn(Stream(), bits.data(), held.View().data, std::ssize(bits));
      Libraries().SetTraining(true);
      look(Run(layer));
      NextStep();
    }
  };
  steps(false, [&](std::vector<Bits> bits) { wanted.push_back(std::move(bits)); });
  std::size_t at = 0;
  steps(true, [&](const std::vector<Bits>& bits) { EXPECT_TRUE(bits == wanted.at(at++)) << at; });
  EXPECT_EQ(at, wanted.size());
  EXPECT_TRUE(wanted[7] != wanted[8]) << "other weights";
}

TEST_P(Fp8Layer, AKeptWeightIsRoundedOnceAStep) {
  const auto twice = [&] {
    Libraries().SetTraining(true);
    for (int i = 0; i < 2; ++i) {
      Forward(Layer());
      InputGradient(Layer());
    }
  };
  twice();  // scales, and algorithms of the products
  // A product each, its operand, and its weight.
  EXPECT_EQ(Launches(twice), 4 * 3);
  Libraries().KeepWeights(std::vector{Layer()});
  EXPECT_EQ(Launches(twice), 4 * 2 + 1);
  // With the next scales it is rounded again, though nobody said that a step begins.
  Launches([&] { Forward(Layer()); });
  NextStep();
  EXPECT_EQ(Launches([&] { Forward(Layer()); }), 3);
}

// An evaluation rounds a weight at its own scale, and the step that it interrupts goes on.
TEST_P(Fp8Layer, AnEvaluationKeepsNoWeight) {
  const auto step = [&] {
    Libraries().SetTraining(true);
    const auto bits = Run(Layer());
    NextStep();
    return bits;
  };
  const auto evaluate = [&] {
    Libraries().SetTraining(false);
    Forward(Layer());
    return y_->Bits();
  };
  const auto first = step(), second = step();
  const Bits evaluated = evaluate();
  OpenAlike();
  Libraries().KeepWeights(std::vector{Layer()});
  EXPECT_TRUE(step() == first);
  EXPECT_TRUE(evaluate() == evaluated);
  EXPECT_TRUE(step() == second);
}

// What products leave for the weight gradient is what it would have rounded: the same bits, and
// from there on nobody reads x and dy.
TEST_P(Fp8Layer, TransposesAreWrittenBesideTheOperands) {
  Libraries().SetTraining(true);
  const auto wanted = Run(Layer());
  const device::Buffer x_turned = device::AllocateZeroed(kRows * kIn, device::Kind::kCuda);
  const device::Buffer dy_turned = device::AllocateZeroed(kRows * kOut, device::Kind::kCuda);
  for (const bool with_x : {false, true}) {
    OpenAlike();
    kernels::Fp8Transposes transposes;
    if (with_x) transposes.x.memory = x_turned.get();
    transposes.dy.memory = dy_turned.get();
    kernels::Linear layer = Layer();
    layer.transposes = &transposes;
    EXPECT_TRUE(Run(layer) == wanted);
    EXPECT_EQ(transposes.x.written, with_x);
    EXPECT_TRUE(transposes.dy.written);
    EXPECT_EQ(Launches([&] { WeightGradient(layer); }), with_x ? 1 : 2);
    // An operand and its transpose in one pass.
    EXPECT_EQ(Launches([&] { Forward(layer); }), 3);
    EXPECT_EQ(Launches([&] { InputGradient(layer); }), 3);
  }
}

// A product that is not fp8's, here since the rows do not fit, leaves no transpose.
TEST_P(Fp8Layer, BesideOtherOperandsNothingIsWritten) {
  const device::Buffer turned = device::AllocateZeroed(kRows * kIn, device::Kind::kCuda);
  kernels::Fp8Transposes transposes;
  transposes.x.memory = transposes.dy.memory = turned.get();
  kernels::Linear layer = Layer();
  layer.transposes = &transposes;
  const std::int64_t odd = kRows - 1;
  kernels::LinearForward(Stream(), layer, x_->View().Rows(0, odd), {}, y_->View().Rows(0, odd),
                         [](const Part&) {});
  kernels::LinearInputGradient(Stream(), layer, dy_->View().Rows(0, odd), dx_->View().Rows(0, odd));
  EXPECT_FALSE(transposes.x.written);
  EXPECT_FALSE(transposes.dy.written);
}

// Two forms of a byte each, of weights that fit; a second call adds to the first one.
TEST_F(Fp8Test, KeptWeightsTakeTwoBytesEach) {
  const auto weight = [](std::int64_t rows, std::int64_t columns) {
    return Matrix{nullptr, Dtype::kBfloat16, rows, columns, columns};
  };
  const kernels::Linear wide{0, Form::kPlain, weight(32, 64)},
      tall{2, Form::kPlain, weight(80, 16)};
  const kernels::Linear odd{1, Form::kPlain, weight(24, 64)},
      none{-1, Form::kPlain, weight(32, 64)};
  const std::vector all{wide, odd, none, tall};
  EXPECT_EQ(kernels::KeptWeightBytes(all), 2 * (32 * 64 + 80 * 16));
  const std::int64_t before = device::AllocatedBytes();
  Libraries().KeepWeights(all);
  EXPECT_EQ(device::AllocatedBytes(), before + kernels::KeptWeightBytes(all));
  Libraries().KeepWeights(all);
  EXPECT_EQ(device::AllocatedBytes(), before + kernels::KeptWeightBytes(all));
  Stream().fp8 = false;
  Open();
  const std::int64_t without = device::AllocatedBytes();
  Libraries().KeepWeights(all);
  EXPECT_EQ(device::AllocatedBytes(), without);
}

TEST_F(Fp8Test, NothingIsReservedWithoutFp8) {
  Stream().fp8 = false;
  ProductsTest::Open();
  const std::int64_t before = device::AllocatedBytes();
  Libraries().Reserve(1 << 20);
  EXPECT_EQ(device::AllocatedBytes(), before);
}

TEST_F(Fp8Test, RecordedInAGraphWithItsScales) {
  const Values x = Random(32 * 32, 1, Dtype::kBfloat16), w = Random(32 * 32, 2, Dtype::kBfloat16);
  const GpuMatrix gpu_x(Stream(), Dtype::kBfloat16, 32, 32, x);
  const GpuMatrix gpu_w(Stream(), Dtype::kBfloat16, 32, 32, w);
  const GpuMatrix y(Stream(), Dtype::kBfloat16, 32, 32, {});
  const auto queue = [&] {
    kernels::LinearForward(Stream(), {kSite, Form::kPlain, gpu_w.View()}, gpu_x.View(), {},
                           y.View(), [](const Part&) {});
    Libraries().QueueLargest(Stream());
  };
  queue();
  device::Synchronise(Stream());
  Libraries().UpdateScales(Stream());
  const auto bits = y.Bits();
  device::Graph graph;
  graph.Begin(Stream());
  queue();
  graph.End(Stream());
  for (int i = 0; i < 20; ++i) {
    graph.Launch(Stream());
    device::Synchronise(Stream());
    EXPECT_EQ(Libraries().Largest()[kSite * 3], static_cast<float>(LargestOf(x)));
    Libraries().UpdateScales(Stream());
  }
  EXPECT_EQ(y.Bits(), bits);
}

}  // namespace
}  // namespace trireme::test
