// Epilogues of products against passes of their own: timed when an algorithm is chosen, kept with
// it, taken over.

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

}  // namespace
}  // namespace trireme::test
