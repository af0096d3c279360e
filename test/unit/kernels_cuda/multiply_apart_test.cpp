// Epilogues of products against passes of their own: timed when an algorithm is chosen, kept with
// it, taken over.
#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <tuple>

#include "kernels/cuda/libraries.hpp"
#include "multiply_testing.hpp"
#include "trireme/base/json.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/elementwise.hpp"
#include "trireme/kernels/linear.hpp"

namespace trireme::test {
namespace {

using kernels::Form;
using nlohmann::json;

constexpr std::int64_t kMultiplyApartRows = 48, kMultiplyApartColumns = 64,
                       kMultiplyApartInner = 32;

class MultiplyApart : public ProductsTest {
 protected:
  GpuMatrix Operand(std::int64_t rows, std::int64_t columns, std::uint32_t seed) const {
    return {Stream(), Dtype::kBfloat16, rows, columns,
            Random(rows * columns, seed, Dtype::kBfloat16)};
  }
  kernels::cuda::GpuLibraries& Products() { return kernels::cuda::GpuLibrariesOf(Stream()); }
  // Text of a list of products with every epilogue apart.
  static std::string Apart(const std::string& chosen) {
    json all = json::parse(chosen);
    for (json& product : all["products"]) {
      const auto text = product.at("product").get<std::string>();
      if (text.find("gelu") != std::string::npos) product["algorithm"] = "apart";
    }
    return all.dump();
  }
};

TEST_F(MultiplyApart, WhatIsFasterIsTaken) {
  const GpuMatrix a = Operand(kMultiplyApartRows, kMultiplyApartInner, 1),
                  b = Operand(kMultiplyApartColumns, kMultiplyApartInner, 2);
  const GpuMatrix c(Stream(), Dtype::kBfloat16, kMultiplyApartRows, kMultiplyApartColumns, {});
  kernels::cuda::Product product = kernels::cuda::MakeProduct(
      Form::kPlain, a.View(), Form::kTransposed, b.View(), c.View(), false);
  product.epilogue = kernels::cuda::Epilogue::kRelu;
  int calls = 0;
  const auto nothing = [&] { ++calls; };
  const device::Buffer memory = device::AllocateZeroed(1 << 26, device::Kind::kCuda);
  const auto much = [&] {
    for (int i = 0; i < 20; ++i) device::SetZero(Stream(), memory.get(), 1 << 26);
  };
  const FunctionRef<void()> fast = nothing, slow = much;
  EXPECT_FALSE(Products().Run(Stream(), product, &fast));
  EXPECT_GT(calls, 1);
  const std::string chosen = Products().Chosen();
  EXPECT_EQ(json::parse(chosen)["products"][0]["algorithm"], "apart");
  calls = 0;
  EXPECT_FALSE(Products().Run(Stream(), product, &slow)) << "it is known";
  Open();
  EXPECT_TRUE(Products().Run(Stream(), product, &slow));
  EXPECT_NE(json::parse(Products().Chosen())["products"][0]["algorithm"], "apart");
  EXPECT_TRUE(Products().Adopt({chosen}));
  EXPECT_FALSE(Products().Run(Stream(), product, &slow)) << "as another rank has it";
  Open();
  Products().Seal();
  EXPECT_TRUE(Products().Run(Stream(), product, &fast)) << "no timing after the rehearsal";
  EXPECT_EQ(calls, 0);
}

TEST_F(MultiplyApart, AProductWithoutAnEpilogueIsNever) {
  const GpuMatrix a = Operand(kMultiplyApartRows, kMultiplyApartInner, 1),
                  b = Operand(kMultiplyApartColumns, kMultiplyApartInner, 2);
  const GpuMatrix c(Stream(), Dtype::kBfloat16, kMultiplyApartRows, kMultiplyApartColumns, {});
  const auto multiply = [&] {
    kernels::MatrixMultiply(Stream(), Form::kPlain, a.View(), Form::kTransposed, b.View(), c.View(),
                            false);
    return c.Bits();
  };
  Products().Seal();
  const auto bits = multiply();
  json damaged = json::parse(Products().Chosen());
  damaged["products"][0]["algorithm"] = "apart";
  Open();
  Products().Seal();
  testing::internal::CaptureStderr();
  EXPECT_TRUE(Products().Adopt({damaged.dump()}));
  EXPECT_EQ(multiply(), bits);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("does not fit it"), std::string::npos);
}

// Layers whose GELU is computed apart: the numbers of the two passes, to the bit.
TEST_F(MultiplyApart, LayersComputeTheSame) {
  const GpuMatrix x = Operand(kMultiplyApartRows, kMultiplyApartInner, 1),
                  w = Operand(kMultiplyApartColumns, kMultiplyApartInner, 2);
  const GpuMatrix bias = Operand(1, kMultiplyApartColumns, 3),
                  dy = Operand(kMultiplyApartRows, kMultiplyApartInner, 4);
  const GpuMatrix back = Operand(kMultiplyApartInner, kMultiplyApartColumns, 5);
  const auto fresh = [&] {
    return GpuMatrix(Stream(), Dtype::kBfloat16, kMultiplyApartRows, kMultiplyApartColumns, {});
  };
  const GpuMatrix pre = fresh(), out = fresh(), dpre = fresh();
  const auto gelu = kernels::ActivationKind::kGelu;
  const kernels::Linear up = {.weight = w.View()}, down = {.weight = back.View()};
  const auto run = [&] {
    kernels::LinearActivation(Stream(), up, x.View(), bias.View(), gelu, {}, pre.View(),
                              out.View());
    kernels::LinearActivationGradient(Stream(), down, dy.View(), gelu, pre.View(), {}, dpre.View(),
                                      dpre.View());
    std::vector<unsigned char> all;
    for (const GpuMatrix* m : {&pre, &out, &dpre}) {
      const auto bits = m->Bits();
      all.insert(all.end(), bits.begin(), bits.end());
    }
    return all;
  };
  Products().Seal();
  const auto fused = run();
  const std::string chosen = Products().Chosen();
  Open();
  Products().Seal();
  EXPECT_TRUE(Products().Adopt({Apart(chosen)}));
  const auto apart = run();
  EXPECT_NE(apart, fused);
  EXPECT_EQ(run(), apart);

  kernels::MatrixMultiply(Stream(), Form::kPlain, x.View(), Form::kTransposed, w.View(), pre.View(),
                          false);
  kernels::ActivationForward(Stream(), gelu, pre.View(), bias.View(), {}, out.View());
  kernels::MatrixMultiply(Stream(), Form::kPlain, dy.View(), Form::kPlain, back.View(), dpre.View(),
                          false);
  kernels::ActivationBackward(Stream(), gelu, pre.View(), {}, dpre.View(), dpre.View());
  std::vector<unsigned char> want;
  for (const GpuMatrix* m : {&pre, &out, &dpre}) {
    const auto bits = m->Bits();
    want.insert(want.end(), bits.begin(), bits.end());
  }
  EXPECT_EQ(apart, want);
}

// A weight's gradient and those of its layer's biases: of the first columns, and of the last.
class BiasSums : public MultiplyApart, public testing::WithParamInterface<std::tuple<Form, Dtype>> {
 protected:
  static constexpr std::int64_t kRows = 80, kIn = 48, kOut = 64, kFirst = 40, kLast = 16;

  static Form OfLayer() { return std::get<0>(GetParam()); }
  static Dtype Type() { return std::get<1>(GetParam()); }
  static std::int64_t Rows() { return OfLayer() == Form::kTransposed ? kOut : kIn; }
  void SetUp() override {
    MultiplyApart::SetUp();
    if (IsSkipped()) return;
    const auto make = [&](Dtype dtype, std::int64_t rows, std::int64_t columns, unsigned seed) {
      return std::make_unique<GpuMatrix>(Stream(), dtype, rows, columns,
                                         Random(rows * columns, seed, dtype));
    };
    x_ = make(Type(), kRows, kIn, 1);
    dy_ = make(Type(), kRows, kOut, 2);
    dweight_ = make(Dtype::kFloat32, Rows(), kIn * kOut / Rows(), 3);
    first_ = make(Dtype::kFloat32, 1, kFirst, 4);
    last_ = make(Dtype::kFloat32, 1, kLast, 5);
  }
  kernels::BiasGradients Biases(bool alike = false) const {
    return {{{0, first_->View()}, {kOut - kLast, last_->View()}}, {}, alike};
  }
  void Gradients(const kernels::BiasGradients& biases) {
    kernels::Linear layer{-1, OfLayer(), {}};
    layer.biases = &biases;
    kernels::LinearWeightGradient(Stream(), layer, x_->View(), dy_->View(), dweight_->View());
  }
  kernels::cuda::Product Product() const {
    const bool transposed = OfLayer() == Form::kTransposed;
    kernels::cuda::Product product = kernels::cuda::MakeProduct(
        Form::kTransposed, transposed ? dy_->View() : x_->View(), Form::kPlain,
        transposed ? x_->View() : dy_->View(), dweight_->View(), true);
    product.epilogue =
        transposed ? kernels::cuda::Epilogue::kSumsOfA : kernels::cuda::Epilogue::kSumsOfB;
    product.bias = Stream().gpu->scratch;
    return product;
  }
  // The algorithm kept for the sums in the epilogue, "apart" too; "": they were not met.
  std::string Chosen() {
    const json chosen = json::parse(Products().Chosen());
    for (const json& product : chosen["products"]) {
      if (product["product"].get<std::string>().find("sums_of") == std::string::npos) continue;
      return product["algorithm"];
    }
    return "";
  }
  // From here on the product sums them, by the algorithm that the library proposes first. False: it
  // has none.
  bool Fuse() {
    cublasLtHandle_t created = nullptr;
    kernels::cuda::Check(cublasLtCreate(&created), "opening cuBLASLt");
    const kernels::cuda::Handle handle(created);
    const kernels::cuda::Plan plan(Product());
    cublasLtMatmulHeuristicResult_t proposal{};
    if (plan.Propose(created, Stream().gpu->workspace_bytes, 1, &proposal) == 0) return false;
    std::string words;
    for (const std::uint64_t word : proposal.algo.data) words += fmt::format("{:016x}", word);
    json all = json::parse(Products().Chosen());
    all["products"] = json::array({{{"product", plan.Key().Text()}, {"algorithm", words}}});
    return Products().Adopt({all.dump()});
  }
  // The library may have no such epilogue.
  bool IsUnknown() { return Chosen().empty() && (!IsEmulated() || RefusedEpilogues() > 0); }
  // Whether the emulated library sums in an order that changes from run to run.
  static bool Varies() { return std::getenv("TRIREME_EMULATOR_CUBLASLT_VARY") != nullptr; }
  // Sums of dy's columns added to what was there, in fp64.
  static Values Wanted(const Values& before, const Values& dy, std::int64_t begin) {
    Values sums = before;
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::size_t i = 0; i < sums.size(); ++i) {
        sums[i] += dy[static_cast<std::size_t>(row * kOut + begin) + i];
      }
    }
    return sums;
  }

  std::unique_ptr<GpuMatrix> x_, dy_, dweight_, first_, last_;
};

INSTANTIATE_TEST_SUITE_P(Forms, BiasSums,
                         testing::Combine(testing::Values(Form::kTransposed, Form::kPlain),
                                          testing::Values(Dtype::kFloat32, Dtype::kBfloat16)));

// Whoever sums them, the product or passes of their own, they are added to what was there, and the
// weight's gradient is the same.
TEST_P(BiasSums, AreAddedToWhatWasThere) {
  const Values dy = dy_->Values();
  for (const bool fused : {false, true}) {
    SCOPED_TRACE(fused ? "in the epilogue" : "apart");
    Open();
    Products().Seal();
    if (fused && !Fuse()) continue;
    const Values first = first_->Values(), last = last_->Values(), before = dweight_->Values();
    Gradients(Biases());
    EXPECT_TRUE(IsUnknown() || (Chosen() == "apart") == !fused);
    ExpectClose(first_->Values(), Wanted(first, dy, 0), 1e-6, 1e-5);
    ExpectClose(last_->Values(), Wanted(last, dy, kOut - kLast), 1e-6, 1e-5);
    HostMatrix x(kRows, kIn, x_->Values()), host_dy(kRows, kOut, dy);
    HostMatrix dweight(Rows(), kIn * kOut / Rows(), before);
    kernels::LinearWeightGradient({}, {-1, OfLayer(), {}}, x.View(), host_dy.View(),
                                  dweight.View());
    ExpectClose(dweight_->Values(), dweight.Numbers(), 1e-6, 1e-5);
  }
}

// They are timed without a trace in the gradients.
TEST_P(BiasSums, TimingThemAddsNothing) {
  const Values first = first_->Values(), last = last_->Values(), dy = dy_->Values();
  Gradients(Biases());
  ExpectClose(first_->Values(), Wanted(first, dy, 0), 1e-6, 1e-5);
  ExpectClose(last_->Values(), Wanted(last, dy, kOut - kLast), 1e-6, 1e-5);
  EXPECT_TRUE(IsUnknown() || !Chosen().empty());
}

// Sums that other ranks make alike, and those of products that take no epilogue, are passes' own.
TEST_P(BiasSums, ThatAreAlikeOnOtherRanksAreSummedApart) {
  Gradients(Biases(true));
  EXPECT_EQ(Chosen(), "");
}

// However slow passes of their own may be: the product sums only what it sums to the same bits.
TEST_P(BiasSums, OfTheSameBitsAlone) {
  const device::Buffer memory = device::AllocateZeroed(1 << 26, device::Kind::kCuda);
  const auto much = [&] {
    for (int i = 0; i < 20; ++i) device::SetZero(Stream(), memory.get(), 1 << 26);
  };
  const FunctionRef<void()> slow = much;
  const bool taken = Products().Run(Stream(), Product(), &slow);
  if (Chosen().empty()) return;  // this library has no such epilogue
  // Sums of so few numbers of bf16 are exact in fp32, in whatever order.
  EXPECT_TRUE(!IsEmulated() || taken == !(Varies() && Type() == Dtype::kFloat32));
  EXPECT_EQ(Chosen() == "apart", !taken);
}

// Nothing is timed behind the rehearsal, nor while a graph is recorded.
TEST_P(BiasSums, UnknownToASealedListAreSummedApart) {
  Products().Seal();
  Gradients(Biases());
  EXPECT_TRUE(IsUnknown() || Chosen() == "apart");
}

}  // namespace
}  // namespace trireme::test
