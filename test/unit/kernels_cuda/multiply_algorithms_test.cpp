// Algorithms of products: chosen once, kept as text, taken over, agreed.
#include <functional>

#include "multiply_testing.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/json.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/kernels/linear.hpp"

namespace trireme::test {
namespace {

using kernels::Form;
using nlohmann::json;

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

}  // namespace
}  // namespace trireme::test
