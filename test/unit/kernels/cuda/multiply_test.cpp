// Products by cuBLASLt: their forms, the choice of algorithms, and operands that lie apart.
#include <functional>

#include "kernels/cuda/libraries.hpp"
#include "multiply_testing.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/json.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/elementwise.hpp"
#include "trireme/kernels/linear.hpp"

namespace trireme::test {
namespace {

using kernels::Form;
using nlohmann::json;

// Algorithms of products: chosen once, kept as text, taken over, agreed.

constexpr std::int64_t kMultiplyAlgorithmsRows = 40, kMultiplyAlgorithmsColumns = 72,
                       kMultiplyAlgorithmsInner = 1000;

class MultiplyAlgorithms : public ProductsTest {
 protected:
  // The bits of one product, with the algorithm that the stream's products have for it.
  std::vector<unsigned char> Bits() {
    const GpuMatrix a(
        Stream(), Dtype::kFloat32, kMultiplyAlgorithmsRows, kMultiplyAlgorithmsInner,
        Random(kMultiplyAlgorithmsRows * kMultiplyAlgorithmsInner, 1, Dtype::kFloat32));
    const GpuMatrix b(
        Stream(), Dtype::kFloat32, kMultiplyAlgorithmsColumns, kMultiplyAlgorithmsInner,
        Random(kMultiplyAlgorithmsColumns * kMultiplyAlgorithmsInner, 2, Dtype::kFloat32));
    const GpuMatrix c(Stream(), Dtype::kFloat32, kMultiplyAlgorithmsRows,
                      kMultiplyAlgorithmsColumns, {});
    kernels::MatrixMultiply(Stream(), Form::kPlain, a.View(), Form::kTransposed, b.View(), c.View(),
                            false);
    return c.Bits();
  }
  json ChosenNow() { return json::parse(Libraries().Chosen()); }
};

TEST_F(MultiplyAlgorithms, SayWhatTheyAreFor) {
  EXPECT_TRUE(ChosenNow().at("products").empty());
  Bits();
  const json chosen = ChosenNow();
  EXPECT_NE(chosen.at("card").get<std::string>().find(Stream().gpu->name), std::string::npos);
  EXPECT_EQ(chosen.at("library").get<std::string>().rfind("cuBLASLt ", 0), 0u);
  ASSERT_EQ(chosen.at("products").size(), 1u);
  EXPECT_EQ(chosen["products"][0].at("product"),
            "fp32 x fp32 -> fp32, nt, 40 x 72 x 1000, strides 1000 1000 72, aligned 256 256 256");
  EXPECT_EQ(chosen["products"][0].at("algorithm").get<std::string>().size(), 128u);
}

TEST_F(MultiplyAlgorithms, GiveTheSameBitsWhereTheyAreTakenOver) {
  const auto bits = Bits();
  EXPECT_EQ(Bits(), bits);
  const std::string text = Libraries().Chosen();
  for (const bool sealed : {false, true}) {
    Open();
    if (sealed) Libraries().Seal();
    EXPECT_TRUE(Libraries().Adopt({text}));
    EXPECT_EQ(Bits(), bits);
    EXPECT_EQ(Libraries().Chosen(), text);
  }
  // Also where another one was chosen before.
  Open();
  Libraries().Seal();
  Bits();
  EXPECT_TRUE(Libraries().Adopt({text}));
  EXPECT_EQ(Bits(), bits);
}

TEST_F(MultiplyAlgorithms, OfAnotherCardAreRefused) {
  Bits();
  const std::string text = Libraries().Chosen();
  for (const char* key : {"card", "library"}) {
    json other = json::parse(text);
    other[key] = "something else";
    Open();
    EXPECT_FALSE(Libraries().Adopt({text, other.dump()}));
    EXPECT_TRUE(ChosenNow().at("products").empty()) << "nothing may be taken over";
  }
  json damaged = json::parse(text);
  damaged["products"][0]["algorithm"] = "0123";
  EXPECT_FALSE(Libraries().Adopt({damaged.dump()}));
  EXPECT_FALSE(Libraries().Adopt({"{"}));
  EXPECT_FALSE(Libraries().Adopt({"[1]"}));
  EXPECT_TRUE(Libraries().Adopt({}));
}

// Algorithms chosen with more workspace may need it.
TEST_F(MultiplyAlgorithms, OfAnotherWorkspaceAreRefused) {
  Bits();
  const json chosen = ChosenNow();
  json other = chosen;
  std::string library = other.at("library");
  const std::string workspace = std::to_string(Stream().gpu->workspace_bytes);
  const std::size_t at = library.rfind(workspace);
  ASSERT_NE(at, std::string::npos) << library;
  other["library"] = library.replace(at, workspace.size(), workspace + "0");
  Open();
  EXPECT_FALSE(Libraries().Adopt({other.dump()}));
  EXPECT_TRUE(Libraries().Adopt({chosen.dump()}));
}

// The algorithm kept for this product belongs to another one: it is as if none were kept.
TEST_F(MultiplyAlgorithms, ThatDoNotFitAreReplacedWithAWarning) {
  if (!IsEmulated()) GTEST_SKIP() << "the library may admit it";
  Libraries().Seal();
  const auto bits = Bits();
  const json right = ChosenNow();
  json wrong = right;
  std::string algorithm = wrong["products"][0]["algorithm"];
  algorithm[3 * 16] = algorithm[3 * 16] == '0' ? '1' : '0';
  wrong["products"][0]["algorithm"] = algorithm;
  const auto said = [](const std::function<void()>& task) {
    testing::internal::CaptureStderr();
    task();
    return testing::internal::GetCapturedStderr();
  };
  const auto expect_warning = [](const std::string& text) {
    EXPECT_NE(text.find("warning: the algorithm kept for the matrix product fp32"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("40 x 72 x 1000"), std::string::npos) << text;
    EXPECT_NE(text.find("run.products"), std::string::npos) << text;
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  };
  // Of a product that is known: its algorithm stays.
  expect_warning(said([&] { EXPECT_TRUE(Libraries().Adopt({wrong.dump()})); }));
  EXPECT_EQ(ChosenNow(), right);
  EXPECT_EQ(said([&] { EXPECT_TRUE(Libraries().Adopt({wrong.dump()})); }), "") << "once";
  // Not known yet: timed, or where sealed the library's first.
  for (const bool sealed : {false, true}) {
    Open();
    if (sealed) Libraries().Seal();
    EXPECT_EQ(said([&] { EXPECT_TRUE(Libraries().Adopt({wrong.dump()})); }), "");
    std::vector<unsigned char> now;
    expect_warning(said([&] { now = Bits(); }));
    if (sealed) {
      EXPECT_EQ(now, bits);
      EXPECT_EQ(ChosenNow(), right);
    }
    EXPECT_NE(ChosenNow(), wrong);
    EXPECT_EQ(said([&] { EXPECT_EQ(Bits(), now); }), "");
  }
}

// Two ranks chose differently: all take the first one's, and have its bits.
TEST_F(MultiplyAlgorithms, OfSeveralRanksAreAgreed) {
  if (!IsEmulated()) GTEST_SKIP() << "needs two algorithms that are known to differ";
  Libraries().Seal();  // the library's first: the sum in one piece
  const auto first_bits = Bits();
  const std::string first = Libraries().Chosen();
  json other = ChosenNow();
  std::string algorithm = other["products"][0]["algorithm"];
  ASSERT_EQ(algorithm[2 * 16 - 1], '1');
  algorithm[2 * 16 - 1] = '3';  // in three pieces
  other["products"][0]["algorithm"] = algorithm;
  const std::string second = other.dump();
  Open();
  EXPECT_TRUE(Libraries().Adopt({second, first}));
  EXPECT_NE(Bits(), first_bits);
  Open();
  EXPECT_TRUE(Libraries().Adopt({first, second}));
  EXPECT_EQ(Bits(), first_bits);
}

TEST_F(MultiplyAlgorithms, AreTheLibrarysFirstWhereSealed) {
  Libraries().Seal();
  EXPECT_TRUE(Libraries().Sealed());
  const auto bits = Bits();
  for (int i = 0; i < 3; ++i) {
    Open();
    EXPECT_FALSE(Libraries().Sealed());
    Libraries().Seal();
    EXPECT_EQ(Bits(), bits);
  }
}

// Timing is impossible while a graph is recorded.
TEST_F(MultiplyAlgorithms, AreChosenWithinARecording) {
  const Values numbers = Random(24 * 24, 1, Dtype::kFloat32);
  const GpuMatrix a(Stream(), Dtype::kFloat32, 24, 24, numbers);
  const GpuMatrix c(Stream(), Dtype::kFloat32, 24, 24, {}),
      d(Stream(), Dtype::kFloat32, 24, 24, {});
  const auto multiply = [&](const GpuMatrix& result) {
    kernels::MatrixMultiply(Stream(), Form::kPlain, a.View(), Form::kPlain, a.View(), result.View(),
                            false);
  };
  device::Graph graph;
  graph.Begin(Stream());
  multiply(c);
  graph.End(Stream());
  graph.Launch(Stream());
  multiply(d);
  Synchronise();
  EXPECT_EQ(c.Bits(), d.Bits());
}

// Trials add nothing that shows in c, and take no memory for a large one.
TEST_F(MultiplyAlgorithms, AreTimedInPlaceWhereAProductAccumulates) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    for (const std::int64_t size : {std::int64_t{24}, std::int64_t{3000}}) {
      const auto count = static_cast<std::size_t>(size * size);
      const GpuMatrix a(Stream(), dtype, size, 3, Values(static_cast<std::size_t>(3 * size), 1));
      const GpuMatrix b(Stream(), dtype, 3, size, Values(static_cast<std::size_t>(3 * size), 2));
      for (const double start : {5.0, 0.0}) {
        Open();
        const GpuMatrix c(Stream(), dtype, size, size, Values(count, start));
        kernels::MatrixMultiply(Stream(), Form::kPlain, a.View(), Form::kPlain, b.View(), c.View(),
                                true);
        EXPECT_TRUE(c.Values() == Values(count, start + 6)) << size << " from " << start;
      }
    }
  }
}

// Products on a GPU against the CPU's in fp64: forms, types, strides, alignments, sums.

struct Case {
  std::int64_t rows, columns, inner;
  std::int64_t padding, offset;  // elements: between rows, and before the first
};
constexpr Case kCases[] = {{1, 1, 1, 0, 0},     {3, 5, 7, 0, 0},    {31, 33, 65, 3, 1},
                           {64, 48, 128, 8, 0}, {17, 130, 9, 1, 3}, {40, 24, 300, 0, 8}};
constexpr Form kMultipliedForms[] = {Form::kPlain, Form::kTransposed};

class MultiplyForms : public ProductsTest {
 protected:
  void Check(const Case& size, Form form_a, Form form_b, Dtype dtype, Dtype result,
             bool accumulate) {
    const bool a_turned = form_a == Form::kTransposed, b_turned = form_b == Form::kTransposed;
    const std::int64_t a_rows = a_turned ? size.inner : size.rows;
    const std::int64_t a_columns = a_turned ? size.rows : size.inner;
    const std::int64_t b_rows = b_turned ? size.columns : size.inner;
    const std::int64_t b_columns = b_turned ? size.inner : size.columns;
    const Values a = Random(a_rows * a_columns, 1, dtype), b = Random(b_rows * b_columns, 2, dtype);
    const Values c = Random(size.rows * size.columns, 3, result);
    HostMatrix host_a(a_rows, a_columns, a), host_b(b_rows, b_columns, b);
    HostMatrix expected(size.rows, size.columns, c);
    kernels::MatrixMultiply(device::Stream{}, form_a, host_a.View(), form_b, host_b.View(),
                            expected.View(), accumulate);
    const auto on_gpu = [&](Dtype type, std::int64_t rows, std::int64_t columns, const Values& v) {
      return GpuMatrix(Stream(), type, rows, columns, v, columns + size.padding, size.offset);
    };
    const GpuMatrix gpu_a = on_gpu(dtype, a_rows, a_columns, a);
    const GpuMatrix gpu_b = on_gpu(dtype, b_rows, b_columns, b);
    const GpuMatrix gpu_c = on_gpu(result, size.rows, size.columns, c);
    kernels::MatrixMultiply(Stream(), form_a, gpu_a.View(), form_b, gpu_b.View(), gpu_c.View(),
                            accumulate);
    // bf16 operands are multiplied and added up in fp32.
    const double sums = UnitOf(SumTypeOf(dtype)) * std::sqrt(static_cast<double>(size.inner)) * 16;
    // cuBLASLt's kernels for Hopper round a product to bf16 before they add it to c.
    const bool twice = accumulate && result == Dtype::kBfloat16;
    const Values& wanted = expected.Numbers();
    ExpectWithin(gpu_c.Values(), wanted, [&](std::size_t i) {
      const double product = twice ? std::fabs(wanted[i] - c[i]) : 0;
      return UnitOf(result) * (std::fabs(wanted[i]) + product) + sums;
    });
    EXPECT_TRUE(gpu_c.GapsUntouched());
  }
};

TEST_F(MultiplyForms, AgreeWithTheCpu) {
  for (const Case& size : kCases) {
    for (const Form form_a : kMultipliedForms) {
      for (const Form form_b : kMultipliedForms) {
        for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBfloat16}) {
          for (const bool accumulate : {false, true}) {
            SCOPED_TRACE(testing::Message()
                         << size.rows << " x " << size.columns << " x " << size.inner << " "
                         << trireme::NameOf(dtype) << (form_a == Form::kPlain ? " n" : " t")
                         << (form_b == Form::kPlain ? "n" : "t") << (accumulate ? " +=" : ""));
            Check(size, form_a, form_b, dtype, dtype, accumulate);
            if (SumTypeOf(dtype) != dtype) {
              Check(size, form_a, form_b, dtype, SumTypeOf(dtype), accumulate);
            }
          }
        }
      }
    }
  }
}

TEST_F(MultiplyForms, OfNothing) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBfloat16}) {
    const Values before = Random(3 * 4, 5, dtype);
    const GpuMatrix a(Stream(), dtype, 3, 1, {}), b(Stream(), dtype, 1, 4, {});
    const GpuMatrix c(Stream(), dtype, 3, 4, before, 7, 1);
    const auto multiply = [&](std::int64_t inner, std::int64_t rows, std::int64_t columns,
                              bool accumulate) {
      kernels::MatrixMultiply(Stream(), Form::kPlain, a.View().Rows(0, rows).Columns(0, inner),
                              Form::kPlain, b.View().Rows(0, inner).Columns(0, columns),
                              c.View().Rows(0, rows).Columns(0, columns), accumulate);
    };
    multiply(0, 3, 4, true);
    multiply(1, 0, 4, false);
    multiply(1, 3, 0, false);
    EXPECT_EQ(c.Values(), before);
    multiply(0, 3, 4, false);
    EXPECT_EQ(c.Values(), Values(12, 0.0));
    EXPECT_TRUE(c.GapsUntouched());
  }
}

// TF32 keeps 10 bits of the mantissa; 1 + 2^-20 would become 1.
TEST_F(MultiplyForms, Fp32OperandsStayWhole) {
  const double fine = 1 + std::ldexp(1, -20);
  const GpuMatrix a(Stream(), Dtype::kFloat32, 32, 32, Values(32 * 32, fine));
  Values unit(32 * 32);
  for (std::size_t i = 0; i < 32; ++i) unit[i * 33] = 1;
  const GpuMatrix b(Stream(), Dtype::kFloat32, 32, 32, unit);
  const GpuMatrix c(Stream(), Dtype::kFloat32, 32, 32, {});
  kernels::MatrixMultiply(Stream(), Form::kPlain, a.View(), Form::kPlain, b.View(), c.View(),
                          false);
  EXPECT_EQ(c.Values(), Values(32 * 32, fine));
}

TEST_F(MultiplyForms, ThenFollowsOnceWithAllRows) {
  const GpuMatrix a(Stream(), Dtype::kFloat32, 9, 4, Random(36, 1, Dtype::kFloat32));
  const GpuMatrix b(Stream(), Dtype::kFloat32, 4, 5, Random(20, 2, Dtype::kFloat32));
  const GpuMatrix c(Stream(), Dtype::kFloat32, 9, 5, {});
  int calls = 0;
  const kernels::Linear linear{.form = Form::kPlain, .weight = b.View()};
  kernels::LinearForward(Stream(), linear, a.View(), {}, c.View(), [&](const Part& rows) {
    ++calls;
    EXPECT_EQ(rows.begin, 0);
    EXPECT_EQ(rows.end, 9);
  });
  EXPECT_EQ(calls, 1);
}

TEST_F(MultiplyForms, RefusedWithTheReason) {
  const GpuMatrix a(Stream(), Dtype::kFloat32, 4, 4, {}), c(Stream(), Dtype::kFloat32, 4, 4, {});
  const GpuMatrix d(Stream(), Dtype::kFloat64, 4, 4, {});
  const auto message = [&](const device::Stream& stream, const GpuMatrix& result) {
    try {
      kernels::MatrixMultiply(stream, Form::kPlain, a.View(), Form::kPlain, a.View(), result.View(),
                              false);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  device::Stream canonical = Stream();
  canonical.canonical = true;
  EXPECT_NE(message(canonical, c).find("no canonical product on a GPU"), std::string::npos);
  EXPECT_NE(message(Stream(), d).find("fp32 and fp32 into fp64"), std::string::npos);
  device::Stream bare = Stream();
  bare.libraries = nullptr;
  EXPECT_NE(message(bare, c).find("has no libraries"), std::string::npos);
}

TEST_F(MultiplyForms, RecordedInAGraph) {
  const Values numbers = Random(48 * 48, 1, Dtype::kBfloat16);
  const GpuMatrix a(Stream(), Dtype::kBfloat16, 48, 48, numbers);
  const GpuMatrix once(Stream(), Dtype::kFloat32, 48, 48, {});
  const GpuMatrix sums(Stream(), Dtype::kFloat32, 48, 48, {});
  const auto multiply = [&](const GpuMatrix& c) {
    kernels::MatrixMultiply(Stream(), Form::kPlain, a.View(), Form::kTransposed, a.View(), c.View(),
                            true);
  };
  multiply(once);
  device::Graph graph;
  graph.Begin(Stream());
  multiply(sums);
  graph.End(Stream());
  for (int i = 0; i < 3; ++i) graph.Launch(Stream());
  Synchronise();
  Values expected = once.Values();
  for (double& value : expected) value *= 3;
  ExpectClose(sums.Values(), expected, 1e-6, 1e-5);
}

// Epilogues of products against passes of their own: timed when an algorithm is chosen, kept with
// it, taken over.
#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <tuple>

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
  // Sums of bf16 that are whole eighths are exact in fp32, in whatever order.
  Values dy = dy_->Values();
  if (Type() == Dtype::kBfloat16) {
    for (double& value : dy) value = std::round(value * 8) / 8;
  }
  dy_ = std::make_unique<GpuMatrix>(Stream(), Type(), kRows, kOut, dy);
  const device::Buffer memory = device::AllocateZeroed(1 << 26, device::Kind::kCuda);
  const auto much = [&] {
    for (int i = 0; i < 20; ++i) device::SetZero(Stream(), memory.get(), 1 << 26);
  };
  const FunctionRef<void()> slow = much;
  const bool taken = Products().Run(Stream(), Product(), &slow);
  if (Chosen().empty()) return;  // this library has no such epilogue
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
