// Sums over readings: counters that wrap around, vanish, stand still and lie.
#include "counter.hpp"

#include <gtest/gtest.h>

#include <optional>

namespace trireme::report {
namespace {

class Told : public Card {
 public:
  explicit Told(double range = 0) : range_(range) {}
  std::optional<double> Read() override { return joules; }
  double Range() const override { return range_; }
  std::optional<CardState> Look() override { return state; }

  std::optional<double> joules = 0;
  std::optional<CardState> state;

 private:
  double range_;
};

// A node with a counter and a card, read once a second.
class NodeSumsTest : public testing::Test {
 protected:
  explicit NodeSumsTest(double range = 10000, bool within = false) {
    Counters counters;
    auto node = std::make_unique<Told>(range);
    auto card = std::make_unique<Told>();
    node_ = node.get();
    card_ = card.get();
    counters.node.push_back(std::move(node));
    counters.cards.push_back(std::move(card));
    counters.cards_within_node = within;
    sums_ = std::make_unique<NodeSums>(std::move(counters));
    sums_->Tick(now_);
  }
  // A second passes, in which the counters gain.
  void Pass(double node, double card, double seconds = 1) {
    if (node_->joules) node_->joules = *node_->joules + node;
    if (card_->joules) card_->joules = *card_->joules + card;
    sums_->Tick(now_ += seconds);
  }

  Told* node_;
  Told* card_;
  std::unique_ptr<NodeSums> sums_;
  double now_ = 5;
};

TEST_F(NodeSumsTest, AddsUp) {
  card_->state = {0.5, 100};
  Pass(10, 1);
  card_->state = {1.0, 50};
  Pass(20, 2);
  const Sums sums = sums_->Take();
  EXPECT_DOUBLE_EQ(sums.joules, 33);
  EXPECT_DOUBLE_EQ(sums.card_joules, 3);
  EXPECT_DOUBLE_EQ(sums.node_seconds, 2);
  EXPECT_DOUBLE_EQ(sums.busy_seconds / sums.card_seconds, 0.75);
  EXPECT_DOUBLE_EQ(sums.card_bytes, 100);
  EXPECT_TRUE(sums.Whole());
  EXPECT_FALSE(sums_->Take().Whole());
}

TEST_F(NodeSumsTest, WrapsAround) {
  node_->joules = 9990;
  Pass(0, 1);
  sums_->Take();
  node_->joules = 5;
  Pass(0, 1);
  const Sums sums = sums_->Take();
  EXPECT_DOUBLE_EQ(sums.joules, 16);
  EXPECT_TRUE(sums.Whole());
}

TEST_F(NodeSumsTest, AWrapThatMayHaveBeenMissedIsLost) {
  Pass(10, 1, 4);  // 10 kJ would be gone at 2.5 kW
  const Sums sums = sums_->Take();
  EXPECT_EQ(sums.joules, 0);
  EXPECT_DOUBLE_EQ(sums.lost_seconds, 4);
  EXPECT_FALSE(sums.Whole());
}

TEST_F(NodeSumsTest, AVanishedCounterIsLostUntilItIsBack) {
  Pass(10, 1, 0.1);
  node_->joules.reset();
  Pass(0, 1, 0.1);
  Sums sums = sums_->Take();
  EXPECT_DOUBLE_EQ(sums.joules, 11);
  EXPECT_NEAR(sums.lost_seconds, 0.1, 1e-12);
  EXPECT_FALSE(sums.Whole());
  // The counter has counted meanwhile.
  node_->joules = 30;
  Pass(0, 1, 0.1);
  const Sums later = sums_->Take();
  EXPECT_DOUBLE_EQ(later.joules, 22);
  EXPECT_NEAR(later.node_seconds, 0.2, 1e-12);
  sums += later;
  EXPECT_TRUE(sums.Whole());
  EXPECT_DOUBLE_EQ(sums.joules, 33);
}

TEST_F(NodeSumsTest, TooSoonIsNoReading) {
  Pass(10, 1, 0.01);
  EXPECT_EQ(sums_->Take().joules, 0);
  Pass(10, 1, 0.05);
  EXPECT_DOUBLE_EQ(sums_->Take().joules, 22);
}

// Without a range a counter never begins anew by itself.
class EndlessTest : public NodeSumsTest {
 protected:
  EndlessTest() : NodeSumsTest(0) {}
};

TEST_F(EndlessTest, FallsAndJumpsAreLost) {
  Pass(500, 1);
  node_->joules = 3;  // a driver that was loaded again
  Pass(0, 1);
  Pass(7, 1);
  Pass(1e9, 1);
  Pass(7, 1);
  const Sums sums = sums_->Take();
  EXPECT_DOUBLE_EQ(sums.joules, 501 + 8 + 8);
  EXPECT_DOUBLE_EQ(sums.node_seconds, 3);
  EXPECT_DOUBLE_EQ(sums.lost_seconds, 2);
}

TEST_F(EndlessTest, StandingStillIsNoReading) {
  for (int i = 0; i < 30; ++i) Pass(0, 1);
  const Sums still = sums_->Take();
  EXPECT_GT(still.lost_seconds, 19);
  EXPECT_FALSE(still.Whole());
  Pass(3000, 1);
  const Sums sums = sums_->Take();
  EXPECT_DOUBLE_EQ(still.joules + sums.joules, 3000 + 31);
}

class WithinTest : public NodeSumsTest {
 protected:
  WithinTest() : NodeSumsTest(0, true) {}
};

TEST_F(WithinTest, CardsAreNotAdded) {
  Pass(100, 60);
  const Sums sums = sums_->Take();
  EXPECT_DOUBLE_EQ(sums.joules, 100);
  EXPECT_DOUBLE_EQ(sums.card_joules, 60);
  card_->joules.reset();
  Pass(100, 0);
  EXPECT_TRUE(sums_->Take().Whole());
}

}  // namespace
}  // namespace trireme::report
