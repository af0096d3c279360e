// Every gradient of the reference against finite differences of its loss, one parameter tensor at a
// time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>

#include "configurations.hpp"
#include "reference_model.hpp"

namespace trireme::test {
namespace {

constexpr std::int64_t kSequences = 3, kLength = 7, kMaskedTail = 2;
constexpr std::uint32_t kSeed = 11;
// Fourth-order stencil: truncation ~ h^4, rounding ~ 1e-16 loss / h; both stay below 1e-9 here.
constexpr double kStep = 2e-4;
constexpr int kHalvings = 4;  // of the step, if it crossed a ReLU's kink
constexpr double kTolerance = 1e-7;
// A key bias without rotation shifts all scores of a query alike: its true gradient is zero.
constexpr double kZero = 1e-9;

class ReferenceGradient : public testing::TestWithParam<Configuration> {};

double Norm(const std::vector<double>& v) {
  double sum = 0;
  for (const double x : v) sum += x * x;
  return std::sqrt(sum);
}

// Half along the gradient, so that the derivative is not small beside the gradient; half random, so
// that a missing or wrong component shows.
std::vector<double> Direction(const std::vector<double>& gradient, std::uint32_t seed) {
  std::mt19937_64 engine(seed);
  std::vector<double> direction;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    direction.push_back(static_cast<double>(engine() >> 11) * 0x1p-52 - 1);
  }
  const double random_norm = Norm(direction), gradient_norm = Norm(gradient);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    direction[i] /= random_norm;
    if (gradient_norm > kZero) direction[i] += gradient[i] / gradient_norm;
  }
  return direction;
}

// d loss / d (tensor along direction), or nothing if the stencil crosses a kink.
std::optional<double> FiniteDifference(const Configuration& configuration,
                                       const Parameters& parameters, const data::Entry& batch,
                                       const ReferenceResult& middle, const std::string& name,
                                       const std::vector<double>& direction, double step) {
  const double points[] = {-2, -1, 1, 2};
  const double factors[] = {1.0 / 12, -8.0 / 12, 8.0 / 12, -1.0 / 12};
  double derivative = 0;
  Parameters moved = parameters;
  for (int k = 0; k < 4; ++k) {
    for (std::size_t i = 0; i < direction.size(); ++i) {
      moved[name][i] = parameters.at(name)[i] + points[k] * step * direction[i];
    }
    const ReferenceResult result = RunReference(configuration.options, moved, batch, kSeed,
                                                configuration.label_smoothing, true);
    if (result.relu_on != middle.relu_on) return std::nullopt;
    derivative += factors[k] * result.loss_sum / step;
  }
  return derivative;
}

TEST_P(ReferenceGradient, IsTheDerivativeOfTheLoss) {
  const Configuration& configuration = GetParam();
  const model::Options& options = configuration.options;
  const Parameters parameters = RandomParameters(options, 3);
  const data::Entry batch = RandomBatch(options.vocabulary, kSequences, kLength, kMaskedTail, 5);
  const ReferenceResult result =
      RunReference(options, parameters, batch, kSeed, configuration.label_smoothing, true);
  ASSERT_EQ(result.valid, kSequences * kLength - kMaskedTail);
  ASSERT_EQ(result.gradients.size(), parameters.size());
  std::uint32_t seed = 100;
  for (const auto& [name, gradient] : result.gradients) {
    const std::vector<double> direction = Direction(gradient, ++seed);
    double expected = 0;
    for (std::size_t i = 0; i < gradient.size(); ++i) expected += gradient[i] * direction[i];
    std::optional<double> found;
    double step = kStep;
    for (int k = 0; k <= kHalvings && !found; ++k, step /= 2) {
      found = FiniteDifference(configuration, parameters, batch, result, name, direction, step);
    }
    ASSERT_TRUE(found) << name << ": every step crosses a kink of ReLU";
    const bool vanishes =
        name.ends_with("attention.key.bias") && options.position != model::Position::kRope;
    if (vanishes) {
      EXPECT_LT(Norm(gradient), kZero) << name;
      EXPECT_LT(std::abs(*found), 1e2 * kZero) << name;
    } else {
      EXPECT_GT(Norm(gradient), 1e-3) << name << " hardly takes part: the test says nothing";
      EXPECT_LT(std::abs(*found - expected) / std::abs(expected), kTolerance)
          << name << ": gradient " << expected << ", finite difference " << *found;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Table, ReferenceGradient, testing::ValuesIn(AllConfigurations()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace trireme::test
