// Documents in a window: the model computes for each what it computes for a window of its own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "documents.hpp"
#include "trial.hpp"
#include "trireme/base/error.hpp"

namespace trireme::test {
namespace {

constexpr double kDocumentsFp64 = 1e-11;         // model_test.cpp
constexpr double kDocumentsFp32Loss = 1e-5;      // relative, of the loss
constexpr double kDocumentsFp32Gradient = 2e-4;  // in rule 4's norm

// With documents in the trial's batch.
Trial WithDocuments(const Configuration& configuration, Dtype dtype, int threads) {
  Trial trial = MakeTrial(configuration, dtype, threads);
  model::ModelPlan plan = PlanOf(configuration, dtype);
  plan.document_mask = true;
  trial.model = std::make_unique<WholeModel>(plan, Threads(threads));
  SetParameters(*trial.model, trial.parameters);
  trial.batch.begins = RandomBegins(kSequences, kLength, 2, 13);
  return trial;
}

class DocumentsAgainstReference : public testing::TestWithParam<Configuration> {
 protected:
  static void Compare(Trial& trial, double loss_tolerance, double gradient_tolerance) {
    const ReferenceResult right = RunReference(GetParam().options, trial.parameters, trial.batch,
                                               kSeed, GetParam().label_smoothing, true);
    const double loss = trial.model->ForwardBackward(trial.batch, {});
    EXPECT_NEAR(loss, right.loss_sum, loss_tolerance * std::abs(right.loss_sum));
    const auto [difference, name] = WorstGradient(*trial.model, right.gradients);
    EXPECT_LT(difference, gradient_tolerance) << name;
  }
};

TEST_P(DocumentsAgainstReference, EqualInFp64) {
  for (const int threads : {1, 2}) {
    Trial trial = WithDocuments(GetParam(), Dtype::kFloat64, threads);
    Compare(trial, kDocumentsFp64, kDocumentsFp64);
  }
}

TEST_P(DocumentsAgainstReference, EqualInFp32) {
  Trial trial = WithDocuments(GetParam(), Dtype::kFloat32, 2);
  Compare(trial, kDocumentsFp32Loss, kDocumentsFp32Gradient);
}

INSTANTIATE_TEST_SUITE_P(Table, DocumentsAgainstReference, testing::ValuesIn(AllConfigurations()),
                         [](const auto& info) { return info.param.name; });

// Two windows; the last documents reach to their ends.
constexpr std::int64_t kWindow = 300;
constexpr std::int64_t kDocuments[][5] = {{1, 130, 9, 31, 129}, {150, 2, 1, 17, 130}};

Configuration Long(const char* name, model::Position position, model::Recompute recompute,
                   std::int64_t kv_heads) {
  Configuration configuration{name, SmallOptions(), 0.1};
  configuration.options.max_positions = kWindow;
  configuration.options.position = position;
  configuration.options.kv_heads = kv_heads;
  configuration.options.recompute = recompute;
  return configuration;
}

class DocumentsAlone : public testing::TestWithParam<Configuration> {
 protected:
  DocumentsAlone() : window_(RandomBatch(GetParam().options.vocabulary, 2, kWindow, 0, 4)) {
    for (const auto& documents : kDocuments) {
      std::int32_t begin = 0;
      for (const std::int64_t length : documents) {
        window_.begins.insert(window_.begins.end(), static_cast<std::size_t>(length), begin);
        begin += static_cast<std::int32_t>(length);
      }
    }
  }
  std::unique_ptr<WholeModel> Make() const {
    model::ModelPlan plan = PlanOf(GetParam(), Dtype::kFloat64);
    plan.length = kWindow;
    plan.micro_batch = 2;
    plan.document_mask = true;
    auto model = std::make_unique<WholeModel>(plan, Threads(1));
    SetParameters(*model, RandomParameters(GetParam().options, 5));
    return model;
  }
  // Rows [begin, begin + length) of the windows as a window of their own.
  data::Entry Alone(std::int64_t begin, std::int64_t length) const {
    data::Entry entry;
    entry.sequences = 1;
    entry.length = entry.valid = length;
    const auto cut = [&](const std::vector<std::int32_t>& v) {
      return std::vector<std::int32_t>(v.begin() + begin, v.begin() + begin + length);
    };
    entry.inputs = cut(window_.inputs);
    entry.targets = cut(window_.targets);
    entry.ordinals = {3};
    return entry;
  }
  data::Entry window_;
};

TEST_P(DocumentsAlone, AreWhatTheyAreInAWindow) {
  const auto together = Make(), apart = Make();
  std::vector<double> losses(2 * kWindow);
  together->Loss(window_, losses.data());
  together->Parameters().ZeroGradients();
  apart->Parameters().ZeroGradients();
  const double loss = together->ForwardBackward(window_, {});
  double sum = 0;
  std::int64_t begin = 0;
  for (const auto& documents : kDocuments) {
    for (const std::int64_t length : documents) {
      const data::Entry alone = Alone(begin, length);
      std::vector<double> own(static_cast<std::size_t>(length));
      apart->Loss(alone, own.data());
      for (std::size_t i = 0; i < own.size(); ++i) {
        const double in_window = losses[static_cast<std::size_t>(begin) + i];
        EXPECT_NEAR(in_window, own[i], kDocumentsFp64 * std::abs(own[i]))
            << "row " << begin << " + " << i;
      }
      sum += apart->ForwardBackward(alone, {});
      begin += length;
    }
  }
  EXPECT_NEAR(loss, sum, kDocumentsFp64 * sum);
  Parameters wanted;
  for (const kernels::Parameter& parameter : apart->Parameters().Parameters()) {
    wanted[parameter.name] = GradientOf(*apart, parameter);
  }
  const auto [difference, name] = WorstGradient(*together, wanted);
  EXPECT_LT(difference, kDocumentsFp64) << name;
  // Without the mask the numbers are others.
  data::Entry without = window_;
  without.begins.clear();
  EXPECT_GT(std::abs(together->Loss(without) - together->Loss(window_)), 1e-3);
}

TEST_P(DocumentsAlone, DoNotKnowOfEachOther) {
  const auto model = Make();
  std::vector<double> before(2 * kWindow), after(2 * kWindow);
  model->Loss(window_, before.data());
  // Another token in the middle of the second document; the last one begins at 171.
  data::Entry changed = window_;
  changed.inputs[70] = (changed.inputs[70] + 1) % 23;
  model->Loss(changed, after.data());
  const auto same = [&](std::int64_t begin, std::int64_t end) {
    return std::memcmp(before.data() + begin, after.data() + begin,
                       static_cast<std::size_t>(end - begin) * sizeof(double)) == 0;
  };
  EXPECT_TRUE(same(0, 70));
  EXPECT_FALSE(same(70, 131));
  EXPECT_TRUE(same(131, 2 * kWindow));
}

INSTANTIATE_TEST_SUITE_P(
    Positions, DocumentsAlone,
    testing::Values(Long("Rope", model::Position::kRope, model::Recompute::kNone, 1),
                    Long("Learned", model::Position::kLearned, model::Recompute::kSelective, 3),
                    Long("Sinusoidal", model::Position::kSinusoidal, model::Recompute::kFull, 1)),
    [](const auto& info) { return info.param.name; });

TEST(Documents, AreAnErrorInAModelPlannedWithout) {
  const Configuration configuration{"Small", SmallOptions()};
  Trial trial = MakeTrial(configuration, Dtype::kFloat32, 1);
  trial.batch.begins = RandomBegins(kSequences, kLength, 2, 13);
  EXPECT_THROW(trial.model->Loss(trial.batch), Error);
  Trial planned = WithDocuments(configuration, Dtype::kFloat32, 1);
  planned.batch.begins.pop_back();
  EXPECT_THROW(planned.model->Loss(planned.batch), Error);
}

// Attention's share falls with the keys that are seen.
TEST(Documents, AreCountedByWhatTheirQueriesSee) {
  const model::Options options = SmallOptions();
  EXPECT_EQ(model::FlopsPerTokenOf(options, 3.5), model::FlopsPerToken(options, 6));
  EXPECT_DOUBLE_EQ(model::FlopsPerTokenOf(options, 3.5) - model::FlopsPerTokenOf(options, 1.5),
                   2.0 * 12 * static_cast<double>(options.layers * options.heads * 4));
}

}  // namespace
}  // namespace trireme::test
