// A small model with the reference's parameters and a batch, and the comparison of gradients.
#ifndef TRIREME_TEST_UNIT_MODEL_TRIAL_HPP_
#define TRIREME_TEST_UNIT_MODEL_TRIAL_HPP_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "configurations.hpp"
#include "reference.hpp"
#include "rule_four.hpp"
#include "whole_model.hpp"

namespace trireme::test {

inline constexpr std::uint32_t kSeed = 77;
inline constexpr std::int64_t kSequences = 3, kLength = 7, kMasked = 2;

struct Trial {
  std::unique_ptr<WholeModel> model;
  Parameters parameters;
  data::Entry batch;
};

inline model::ModelPlan PlanOf(const Configuration& configuration, Dtype dtype) {
  model::ModelPlan plan;
  plan.options = configuration.options;
  plan.dtype = dtype;
  plan.seed = kSeed;
  plan.length = kLength;
  plan.micro_batch = kSequences;
  plan.label_smoothing = configuration.label_smoothing;
  return plan;
}

inline device::Stream Threads(int threads) { return {.threads = threads}; }

inline void SetParameters(WholeModel& model, const Parameters& parameters) {
  const kernels::Registry& registry = model.Parameters();
  DispatchDtype(registry.Type(), [&](auto zero) {
    for (const kernels::Parameter& parameter : registry.Parameters()) {
      const std::vector<double>& values = parameters.at(parameter.name);
      ASSERT_EQ(static_cast<std::int64_t>(values.size()), parameter.end);
      auto* to = static_cast<decltype(zero)*>(registry.Values()) + parameter.offset;
      for (std::size_t i = 0; i < values.size(); ++i) {
        to[i] = static_cast<decltype(zero)>(values[i]);
      }
    }
  });
}

inline std::vector<double> GradientOf(const WholeModel& model,
                                      const kernels::Parameter& parameter) {
  const kernels::Registry& registry = model.Parameters();
  std::vector<double> values;
  DispatchDtype(registry.Type(), [&](auto zero) {
    const auto* from = static_cast<const decltype(zero)*>(registry.Gradients()) + parameter.offset;
    values.assign(from, from + parameter.end);
  });
  return values;
}

inline Trial MakeTrial(const Configuration& configuration, Dtype dtype, int threads) {
  Trial trial;
  trial.model = std::make_unique<WholeModel>(PlanOf(configuration, dtype), Threads(threads));
  trial.parameters = RandomParameters(configuration.options, 5);
  SetParameters(*trial.model, trial.parameters);
  trial.batch = RandomBatch(configuration.options.vocabulary, kSequences, kLength, kMasked, 9);
  return trial;
}

// Rule 4's measure of the gradients against `wanted`, and the worst parameter's name.
inline std::pair<double, std::string> WorstGradient(const WholeModel& model,
                                                    const Parameters& wanted) {
  std::vector<std::vector<double>> got, right;
  const auto& parameters = model.Parameters().Parameters();
  for (const kernels::Parameter& parameter : parameters) {
    got.push_back(GradientOf(model, parameter));
    right.push_back(wanted.at(parameter.name));
  }
  const LargestDifference worst = RuleFourDifference(got, right);
  return {worst.relative, parameters[worst.tensor].name};
}

// Gradients are reported final from the end of the storage to its start, each when it is that of a
// whole pass. twin: the same trial.
inline void ExpectReportsWhenFinal(Trial& trial, Trial& twin) {
  twin.model->ForwardBackward(twin.batch, {});
  const kernels::Registry& registry = trial.model->Parameters();
  const auto* final_values = static_cast<const double*>(twin.model->Parameters().Gradients());
  const auto* now = static_cast<const double*>(registry.Gradients());
  std::int64_t last = registry.Size() + 1;
  trial.model->ForwardBackward(trial.batch, [&](std::int64_t begin) {
    EXPECT_LT(begin, last);
    last = begin;
    EXPECT_TRUE(std::equal(now + begin, now + registry.Size(), final_values + begin))
        << "at offset " << begin;
  });
  EXPECT_EQ(last, 0);
}

}  // namespace trireme::test

#endif  // TRIREME_TEST_UNIT_MODEL_TRIAL_HPP_
