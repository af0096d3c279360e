// The Kneser-Ney model against its definition with tables of n-grams, and as a distribution.
#include "trireme/tasks/evaluate.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <set>

namespace trireme::tasks {
namespace {

constexpr double kRounding = 1e-12;  // relative

// Documents of random lengths; a word depends on the one before it, so that counts differ.
TargetStream RandomStream(std::uint32_t seed, std::uint32_t tokens, std::uint32_t vocabulary,
                          bool documents) {
  std::mt19937 random(seed);
  TargetStream stream;
  std::uint8_t known = 0;
  for (std::uint32_t i = 0; i < tokens; ++i) {
    if (documents && random() % 9 == 0) known = 0;
    const std::uint32_t before = stream.ids.empty() ? 0 : stream.ids.back();
    const std::uint32_t spread = 1 + random() % vocabulary;
    stream.ids.push_back((before + random() % spread) % vocabulary);
    stream.known.push_back(known);
    if (known > 0 && random() % 10 != 0) stream.targets.push_back(i);
    known = static_cast<std::uint8_t>(std::min(known + 1, kOrder - 1));
  }
  return stream;
}

using Gram = std::vector<std::uint32_t>;  // the oldest token first

// By the definition: of Chen and Goodman 1999, section 3.
class Definition {
 public:
  Definition(const TargetStream& train, std::uint32_t vocabulary) : vocabulary_(vocabulary) {
    std::map<Gram, std::set<std::uint32_t>> before;
    for (const std::uint32_t at : train.targets) {
      const int known = train.known[at];
      for (int order = 1; order <= std::min(kOrder, known + 1); ++order) {
        const Gram gram(train.ids.begin() + at + 1 - order, train.ids.begin() + at + 1);
        if (order == kOrder) {
          ++counts_[gram];
        } else {
          before[gram].insert(known < order ? vocabulary : train.ids[at - order]);
        }
      }
    }
    for (const auto& [gram, tokens] : before) counts_[gram] = static_cast<int>(tokens.size());
    std::map<std::size_t, std::array<std::int64_t, 4>> kinds;
    for (const auto& [gram, count] : counts_) {
      if (count <= 4) ++kinds[gram.size()][static_cast<std::size_t>(count - 1)];
    }
    for (std::size_t order = 1; order <= kOrder; ++order) {
      discounts_[order] = KneserNey::DiscountsOf(kinds[order]);
    }
  }

  double Probability(const Gram& context, std::uint32_t word) const {
    double total = 0, given = 0;
    for (std::uint32_t next = 0; next < vocabulary_; ++next) {
      total += Count(context, next);
      given += Discount(context, next);
    }
    const double shorter = context.empty()
                               ? 1.0 / vocabulary_
                               : Probability({context.begin() + 1, context.end()}, word);
    if (total == 0) return shorter;
    return (Count(context, word) - Discount(context, word) + given * shorter) / total;
  }

  const std::array<double, 3>& Discounts(int order) const {
    return discounts_.at(static_cast<std::size_t>(order));
  }

 private:
  double Count(Gram gram, std::uint32_t word) const {
    gram.push_back(word);
    const auto found = counts_.find(gram);
    return found == counts_.end() ? 0 : found->second;
  }
  double Discount(const Gram& context, std::uint32_t word) const {
    const auto count = static_cast<int>(Count(context, word));
    if (count == 0) return 0;
    return discounts_.at(context.size() + 1)[static_cast<std::size_t>(std::min(count, 3) - 1)];
  }

  std::uint32_t vocabulary_;
  std::map<Gram, int> counts_;
  std::map<std::size_t, std::array<double, 3>> discounts_;
};

struct Case {
  std::uint32_t tokens, vocabulary;
  bool documents;
};

class KneserNeyCase : public testing::TestWithParam<Case> {};

TEST_P(KneserNeyCase, GivesTheDefinitionsProbabilities) {
  const auto [tokens, vocabulary, documents] = GetParam();
  const TargetStream train = RandomStream(1, tokens, vocabulary - 1, documents);
  const Definition definition(train, vocabulary);
  const KneserNey model(train, vocabulary);  // the last word is unseen
  for (int order = 1; order <= kOrder; ++order) {
    EXPECT_EQ(model.Discounts(order), definition.Discounts(order)) << order;
  }
  const TargetStream asked = RandomStream(2, 400, vocabulary, documents);
  const std::vector<double> losses = model.Losses(asked);
  ASSERT_EQ(losses.size(), asked.targets.size());
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const std::uint32_t at = asked.targets[i];
    const Gram context(asked.ids.begin() + at - asked.known[at], asked.ids.begin() + at);
    EXPECT_NEAR(std::exp(-losses[i]) / definition.Probability(context, asked.ids[at]), 1, kRounding)
        << i;
  }
}

TEST_P(KneserNeyCase, SumsToOneAfterAnyContext) {
  const auto [tokens, vocabulary, documents] = GetParam();
  const KneserNey model(RandomStream(3, tokens, vocabulary - 1, documents), vocabulary);
  std::mt19937 random(4);
  for (int trial = 0; trial < 60; ++trial) {
    // Contexts of 1 to 4 tokens, seen or not, before each word.
    const auto length = static_cast<std::uint8_t>(1 + random() % 4);
    Gram context;
    for (int i = 0; i < length; ++i) context.push_back(random() % vocabulary);
    TargetStream asked;
    for (std::uint32_t word = 0; word < vocabulary; ++word) {
      for (std::uint8_t i = 0; i < length; ++i) {
        asked.ids.push_back(context[i]);
        asked.known.push_back(i);
      }
      asked.targets.push_back(static_cast<std::uint32_t>(asked.ids.size()));
      asked.ids.push_back(word);
      asked.known.push_back(length);
    }
    double sum = 0;
    for (const double loss : model.Losses(asked)) sum += std::exp(-loss);
    EXPECT_NEAR(sum, 1, kRounding) << trial;
  }
}

INSTANTIATE_TEST_SUITE_P(Streams, KneserNeyCase,
                         testing::Values(Case{300, 8, true}, Case{5000, 40, true},
                                         Case{5000, 40, false}, Case{20000, 200, true},
                                         Case{12, 5, false}));

// n1 = 10, n2 = 6, n3 = 4, n4 = 3: Y = 10/22.
TEST(KneserNey, DiscountsAreThoseOfChenAndGoodman) {
  const std::array<double, 3> got = KneserNey::DiscountsOf({10, 6, 4, 3});
  EXPECT_DOUBLE_EQ(got[0], 1 - 2 * (10.0 / 22) * 6 / 10);
  EXPECT_DOUBLE_EQ(got[1], 2 - 3 * (10.0 / 22) * 4 / 6);
  EXPECT_DOUBLE_EQ(got[2], 3 - 4 * (10.0 / 22) * 3 / 4);
  const std::array<double, 3> otherwise = {0.5, 1, 1.5};
  EXPECT_EQ(KneserNey::DiscountsOf({10, 0, 4, 3}), otherwise);
  EXPECT_EQ(KneserNey::DiscountsOf({10, 6, 4, 300}), otherwise);  // D3 below 0
}

TEST(KneserNey, WithoutTrainingTargetsIsUniform) {
  TargetStream asked;
  asked.ids = {1, 2};
  asked.known = {0, 1};
  asked.targets = {1};
  EXPECT_DOUBLE_EQ(KneserNey({}, 10).Losses(asked).at(0), std::log(10.0));
}

}  // namespace
}  // namespace trireme::tasks
