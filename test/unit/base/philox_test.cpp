// Golden numbers: the generator against its published vectors, and what the layouts of
// doc/numerics.md make of it. A change here changes every run.
#include "trireme/base/philox.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "trireme/kernels/elementwise.hpp"
#include "trireme/kernels/registry.hpp"

namespace trireme::test {
namespace {

// Known-answer vectors of Random123 for philox4x32-10.
TEST(Philox, EqualsThePublishedVectors) {
  EXPECT_EQ(Philox({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(Philox({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, KeyHasItsPlaces) {
  EXPECT_EQ(MakeKey(7, Purpose::kAttentionDropout, 3, 5), (PhiloxKey{7, 4 | 3 << 8 | 5 << 20}));
}

TEST(Philox, UniformIsNeverZero) {
  EXPECT_EQ(UniformFrom(0), 0x1.0p-24);
  EXPECT_EQ(UniformFrom(0xffffffff), 1.0);
}

TEST(InitialWeights, AreWhatTheyWere) {
  kernels::ParameterList list;
  list.Add({.name = "embedding.token.weight",
            .shape = {2, 3},
            .initialiser = {kernels::InitialiserKind::kNormal, 1.0}});
  list.Add({.name = "head.weight",
            .shape = {2, 3},
            .initialiser = {kernels::InitialiserKind::kUniform, 1.0}});
  kernels::Registry registry(list, Dtype::kFloat32);
  registry.Initialise(1);
  const float normal[] = {-0.229227066F, 1.04389095F,   1.05394983F,
                          0.997808218F,  -0.145413443F, -0.496243685F};
  const float uniform[] = {0.192840219F, 0.0852226019F, 0.903516173F,
                           0.900551558F, 0.211510301F,  -0.625775337F};
  // A last bit may differ between mathematics libraries.
  for (int i = 0; i < 6; ++i) {
    EXPECT_FLOAT_EQ(registry.Value(0).As<float>()[i], normal[i]) << i;
    EXPECT_FLOAT_EQ(registry.Value(1).As<float>()[i], uniform[i]) << i;
  }
}

// Lane by lane, as the layout is written down.
TEST(DropoutMask, IsTheLayoutOfTheDocument) {
  constexpr std::uint32_t kSeed = 9, kLayer = 2, kSite = 1;
  constexpr std::int64_t kLength = 3, kFeatures = 21;
  const std::vector<std::uint64_t> ordinals = {5, (std::uint64_t{1} << 32) + 6};
  const kernels::Dropout dropout{
      0.3, kSeed, Purpose::kResidualDropout, kLayer, kSite, ordinals.data(), kLength};
  std::vector<float> x(2 * kLength * kFeatures, 1.0F), y(x.size());
  const kernels::Matrix in{x.data(), Dtype::kFloat32, 2 * kLength, kFeatures, kFeatures};
  const kernels::Matrix out{y.data(), Dtype::kFloat32, 2 * kLength, kFeatures, kFeatures};
  kernels::DropoutForward({}, in, dropout, out);
  const std::uint32_t threshold = 19661;  // round(0.3 * 65536)
  ASSERT_EQ(dropout.Threshold(), threshold);
  for (std::int64_t row = 0; row < in.rows; ++row) {
    const std::uint64_t ordinal = ordinals[static_cast<std::size_t>(row / kLength)];
    for (std::int64_t f = 0; f < kFeatures; ++f) {
      const PhiloxCounter words =
          Philox({static_cast<std::uint32_t>(f / 8), static_cast<std::uint32_t>(row % kLength),
                  static_cast<std::uint32_t>(ordinal), static_cast<std::uint32_t>(ordinal >> 32)},
                 {kSeed, 5 | kLayer << 8 | kSite << 20});
      const std::uint32_t word = words[static_cast<std::size_t>(f % 8 / 2)];
      const std::uint32_t lane = f % 2 == 0 ? word & 0xffff : word >> 16;
      const float wanted = lane >= threshold ? 65536.0F / (65536.0F - 19661.0F) : 0.0F;
      EXPECT_FLOAT_EQ(y[static_cast<std::size_t>(row * kFeatures + f)], wanted) << row << ", " << f;
    }
  }
}

}  // namespace
}  // namespace trireme::test
