// Properties that the reference must have whatever its gradients say: causality, masking, dropout
// that does not know the batch, and losses that can be computed by hand.
#include <gtest/gtest.h>

#include <cmath>

#include "configurations.hpp"
#include "documents.hpp"
#include "reference_layers.hpp"
#include "reference_model.hpp"

namespace trireme::test {
namespace {

constexpr std::int64_t kSequences = 3, kLength = 7;
constexpr std::uint32_t kSeed = 11;

class ReferenceProperty : public testing::TestWithParam<Configuration> {
 protected:
  const model::Options& Options() const { return GetParam().options; }
  const Parameters parameters_ = RandomParameters(GetParam().options, 3);
  const data::Entry batch_ = RandomBatch(GetParam().options.vocabulary, kSequences, kLength, 0, 5);

  ReferenceResult Run(const data::Entry& batch, bool training = true, bool causal = true) const {
    return RunReference(Options(), parameters_, batch, kSeed, GetParam().label_smoothing, training,
                        causal);
  }
  // Whether the logits of sequence b, positions [0, end), are the same bits.
  bool SameLogits(const ReferenceResult& a, const ReferenceResult& b, std::int64_t sequence,
                  std::int64_t end) const {
    const std::int64_t first = sequence * kLength * Options().vocabulary;
    const std::int64_t count = end * Options().vocabulary;
    return std::equal(a.logits.begin() + first, a.logits.begin() + first + count,
                      b.logits.begin() + first);
  }
};

TEST_P(ReferenceProperty, NoPredictionSeesAFutureToken) {
  const ReferenceResult before = Run(batch_);
  const ReferenceResult open = Run(batch_, true, false);
  for (std::int64_t t = 1; t < kLength; ++t) {
    data::Entry changed = batch_;
    std::int32_t& token = changed.inputs[static_cast<std::size_t>(kLength + t)];
    token = static_cast<std::int32_t>((token + 1) % Options().vocabulary);
    const ReferenceResult after = Run(changed);
    EXPECT_TRUE(SameLogits(before, after, 1, t)) << "position " << t;
    EXPECT_FALSE(SameLogits(before, after, 1, t + 1)) << "position " << t;
    EXPECT_TRUE(SameLogits(before, after, 0, kLength)) << "another sequence";
    EXPECT_TRUE(SameLogits(before, after, 2, kLength)) << "another sequence";
    if (t == kLength - 1 && GetParam().options.attention_dropout == 0) {
      EXPECT_FALSE(SameLogits(open, Run(changed, true, false), 1, t))
          << "without the causal mask the change must show: else this test sees nothing";
    }
  }
}

TEST_P(ReferenceProperty, MaskedTargetsGiveNothing) {
  data::Entry odd = batch_, even = batch_, none = batch_;
  for (std::size_t i = 0; i < batch_.targets.size(); ++i) {
    (i % 2 == 0 ? odd : even).targets[i] = data::kMasked;
    none.targets[i] = data::kMasked;
  }
  const ReferenceResult all = Run(batch_), a = Run(odd), b = Run(even), zero = Run(none);
  EXPECT_EQ(a.valid + b.valid, all.valid);
  EXPECT_NEAR(a.loss_sum + b.loss_sum, all.loss_sum, 1e-12 * all.loss_sum);
  EXPECT_EQ(zero.valid, 0);
  EXPECT_EQ(zero.loss_sum, 0);
  for (const auto& [name, gradient] : all.gradients) {
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      ASSERT_NEAR(a.gradients.at(name)[i] + b.gradients.at(name)[i], gradient[i], 1e-10) << name;
      ASSERT_EQ(zero.gradients.at(name)[i], 0) << name;
    }
  }
}

TEST_P(ReferenceProperty, WhatStandsBehindAShortWindowDoesNotMatter) {
  const data::Entry padded = RandomBatch(Options().vocabulary, kSequences, kLength, 3, 5);
  data::Entry other = padded;
  other.inputs.back() = 7;
  const ReferenceResult a = Run(padded), b = Run(other);
  EXPECT_EQ(a.valid, kSequences * kLength - 3);
  EXPECT_EQ(a.loss_sum, b.loss_sum);
  EXPECT_EQ(a.gradients, b.gradients);
}

TEST_P(ReferenceProperty, ASequenceIsTheSameInAnyBatch) {
  const ReferenceResult together = Run(batch_);
  double loss = 0;
  for (std::int64_t b = 0; b < kSequences; ++b) {
    data::Entry alone;
    alone.sequences = 1;
    alone.length = alone.valid = kLength;
    const auto slice = [&](const std::vector<std::int32_t>& v) {
      return std::vector<std::int32_t>(v.begin() + b * kLength, v.begin() + (b + 1) * kLength);
    };
    alone.inputs = slice(batch_.inputs);
    alone.targets = slice(batch_.targets);
    alone.ordinals = {batch_.ordinals[static_cast<std::size_t>(b)]};
    const ReferenceResult result = Run(alone);
    const auto first = together.logits.begin() + b * kLength * Options().vocabulary;
    EXPECT_TRUE(std::equal(result.logits.begin(), result.logits.end(), first)) << b;
    loss += result.loss_sum;
  }
  EXPECT_NEAR(loss, together.loss_sum, 1e-12 * loss);
}

TEST_P(ReferenceProperty, ADocumentIsAWindowOfItsOwn) {
  data::Entry together = batch_;
  together.begins = RandomBegins(kSequences, kLength, 2, 13);
  const ReferenceResult whole = Run(together, false);
  double loss = 0;
  Parameters sum;
  const auto rows = static_cast<std::size_t>(kSequences * kLength);
  for (std::size_t first = 0, end = 0; first < rows; first = end) {
    for (end = first + 1; end < rows && end % kLength != 0; ++end) {
      if (together.begins[end] != together.begins[first]) break;
    }
    data::Entry alone;
    alone.sequences = 1;
    alone.length = alone.valid = static_cast<std::int64_t>(end - first);
    alone.inputs.assign(batch_.inputs.begin() + static_cast<std::ptrdiff_t>(first),
                        batch_.inputs.begin() + static_cast<std::ptrdiff_t>(end));
    alone.targets.assign(batch_.targets.begin() + static_cast<std::ptrdiff_t>(first),
                         batch_.targets.begin() + static_cast<std::ptrdiff_t>(end));
    alone.ordinals = {1};
    const ReferenceResult result = Run(alone, false);
    loss += result.loss_sum;
    for (const auto& [name, gradient] : result.gradients) {
      sum[name].resize(gradient.size());
      for (std::size_t i = 0; i < gradient.size(); ++i) sum[name][i] += gradient[i];
    }
  }
  EXPECT_NEAR(whole.loss_sum, loss, 1e-12 * loss);
  for (const auto& [name, gradient] : whole.gradients) {
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      ASSERT_NEAR(gradient[i], sum[name][i], 1e-10) << name;
    }
  }
  EXPECT_GT(std::abs(Run(batch_, false).loss_sum - loss), 1e-3) << "the mask acts";
}

TEST_P(ReferenceProperty, DropoutIsForTraining) {
  const bool drops = Options().dropout + Options().attention_dropout + Options().ffn_dropout > 0;
  model::Options without = Options();
  without.dropout = without.attention_dropout = without.ffn_dropout = 0;
  const ReferenceResult evaluated = Run(batch_, false);
  const ReferenceResult plain =
      RunReference(without, parameters_, batch_, kSeed, GetParam().label_smoothing, true);
  EXPECT_EQ(evaluated.loss_sum, plain.loss_sum);
  EXPECT_EQ(evaluated.gradients, plain.gradients);
  EXPECT_EQ(Run(batch_).loss_sum != plain.loss_sum, drops);
}

INSTANTIATE_TEST_SUITE_P(Table, ReferenceProperty, testing::ValuesIn(AllConfigurations()),
                         [](const auto& info) { return info.param.name; });

TEST(ReferenceDropout, KeepsItsShareAndItsMean) {
  const DropoutSite site = {0.3, MakeKey(1, Purpose::kFfnDropout, 2)};
  const Array ones(64, 1000, std::vector<double>(64000, 1.0));
  const std::vector<std::uint64_t> ordinals = {1, 2, 3, std::uint64_t{1} << 32};
  const Array dropped = Dropout(site, ordinals, 16, ones);
  double kept = 0;
  const double scale = 65536.0 / (65536 - std::lround(0.3 * 65536));
  for (const double value : dropped.values) {
    ASSERT_TRUE(value == 0 || value == scale) << value;
    kept += value != 0;
  }
  // Binomial deviation of the share: sqrt(0.3 0.7 / 64000) = 0.0018; four of them.
  EXPECT_NEAR(kept / 64000, 0.7, 0.0073);
}

TEST(ReferenceLoss, OfUniformLogitsIsTheLogarithmOfTheVocabulary) {
  for (const double smoothing : {0.0, 0.2}) {
    const LossResult loss = CrossEntropy(Array(3, 50), {4, -1, 49}, smoothing);
    EXPECT_EQ(loss.valid, 2);
    EXPECT_NEAR(loss.sum, 2 * std::log(50.0), 1e-13);
    EXPECT_NEAR(loss.gradient(0, 4), 0.02 - (1 - smoothing) - smoothing / 50, 1e-15);
    EXPECT_NEAR(loss.gradient(0, 5), 0.02 - smoothing / 50, 1e-15);
    EXPECT_EQ(loss.gradient(1, 5), 0);
  }
}

TEST(ReferenceLoss, StaysFiniteForLargeLogits) {
  const LossResult loss = CrossEntropy(Array(1, 3, {1e4, 0, -1e4}), {1}, 0);
  EXPECT_DOUBLE_EQ(loss.sum, 1e4);
}

TEST(ReferenceModel, NamesAMissingOrMisshapenParameter) {
  const model::Options options = SmallOptions();
  const data::Entry batch = RandomBatch(options.vocabulary, 1, 2, 0, 5);
  Parameters parameters = RandomParameters(options, 3);
  parameters["norm.weight"].pop_back();
  EXPECT_THROW(RunReference(options, parameters, batch, 0, 0, false), std::invalid_argument);
  parameters.erase("norm.weight");
  EXPECT_THROW(RunReference(options, parameters, batch, 0, 0, false), std::out_of_range);
}

}  // namespace
}  // namespace trireme::test
