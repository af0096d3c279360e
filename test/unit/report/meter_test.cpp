// Energy: counters, and sums of a node.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <thread>

#include "counter.hpp"
#include "fake_counters.hpp"
#include "folders.hpp"

namespace trireme::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Discovery of counters: each joule once, and a reason for all that is not counted.

constexpr const char* kCard = "0123456789abcdef0123456789abcdef";
constexpr const char* kUuid = "GPU-01234567-89ab-cdef-0123-456789abcdef";

class CountersTest : public testing::Test {
 protected:
  CountersTest() : fake_(folder_.Path()) { unsetenv("TRIREME_STUB_NVML"); }
  Counters Find(const std::vector<std::string>& cards = {}) const {
    return FindCounters({.root = folder_.Path(), .nvml = STUB_NVML, .probe_seconds = 0}, cards);
  }
  // Joules of all counters of the node, without cards.
  static double Sum(const Counters& counters) {
    double sum = 0;
    for (const auto& counter : counters.node) sum += counter->Read().value_or(-1e9);
    return sum;
  }
  void Cards(const std::string& lines) const {
    test::FakeCounters::Put(folder_ / "cards", lines);
    setenv("TRIREME_STUB_NVML", (folder_ / "cards").c_str(), 1);
  }

  test::TemporaryFolder folder_;
  test::FakeCounters fake_;
};

TEST_F(CountersTest, PackagesAndMemoryAreCountedOnce) {
  fake_.Zone("intel-rapl:0", "package-0");
  fake_.Zone("intel-rapl:0:0", "core");
  fake_.Zone("intel-rapl:0:1", "uncore");
  fake_.Zone("intel-rapl:0:2", "dram");
  fake_.Zone("intel-rapl:1", "package-1");
  fake_.Zone("intel-rapl:1:0", "dram");
  fake_.Zone("intel-rapl:2", "psys");
  fake_.Zone("intel-rapl-mmio:0", "package-0");
  for (const char* zone : {"intel-rapl:0:0", "intel-rapl:0:1"}) fake_.Set(zone, 7);
  fake_.Set("intel-rapl:0", 100);
  fake_.Set("intel-rapl:1", 200);
  fake_.Set("intel-rapl:0:2", 10);
  fake_.Set("intel-rapl:1:0", 20);
  fake_.Set("intel-rapl:2", 1000);
  fake_.Set("intel-rapl-mmio:0", 100);
  const Counters counters = Find();
  EXPECT_NEAR(Sum(counters), 330, 1e-6);
  EXPECT_EQ(NameOf(counters.parts), "CPU packages, memory");
  EXPECT_THAT(counters.why, IsEmpty());
}

TEST_F(CountersTest, ThePlatformCountsWithoutPackagesAlone) {
  fake_.Zone("intel-rapl:0", "psys");
  fake_.Zone("intel-rapl:0:0", "dram");
  fake_.Set("intel-rapl:0", 50);
  fake_.Set("intel-rapl:0:0", 5);
  const Counters counters = Find();
  EXPECT_NEAR(Sum(counters), 50, 1e-6);
  EXPECT_EQ(NameOf(counters.parts), "boards (psys)");
}

TEST_F(CountersTest, PackagesOfSeveralDiesAndWithoutMemory) {
  fake_.Zone("intel-rapl:0", "package-0-die-0");
  fake_.Zone("intel-rapl:1", "package-0-die-1");
  fake_.Set("intel-rapl:0", 1);
  fake_.Set("intel-rapl:1", 2);
  const Counters counters = Find();
  EXPECT_NEAR(Sum(counters), 3, 1e-6);
  EXPECT_EQ(NameOf(counters.parts), "CPU packages");
}

TEST_F(CountersTest, TheNodesControllerHasAllItsParts) {
  fake_.Cray("energy", 5000);
  fake_.Cray("cpu_energy", 1000);
  fake_.Cray("memory_energy", 500);
  fake_.Cray("accel0_energy", 3000);
  fake_.Zone("intel-rapl:0", "package-0");
  fake_.Set("intel-rapl:0", 900);
  Cards(std::string(kUuid) + " 7000 100 50 1");
  const Counters counters = Find({kCard});
  EXPECT_NEAR(Sum(counters), 5000, 1e-9);
  EXPECT_EQ(counters.cards.size(), 1U);
  EXPECT_TRUE(counters.cards_within_node);
  EXPECT_EQ(NameOf(counters.parts), "whole nodes");
}

TEST_F(CountersTest, ReasonsAreGiven) {
  EXPECT_TRUE(Find().Empty());
  EXPECT_THAT(Find().why, ElementsAre(HasSubstr("/sys/class/powercap: no counters of RAPL")));
  fake_.Zone("intel-rapl:0", "package-0");
  std::filesystem::remove(fake_.Folder("intel-rapl:0") + "/energy_uj");
  std::filesystem::create_directory(fake_.Folder("intel-rapl:0") + "/energy_uj");
  EXPECT_THAT(Find().why, ElementsAre(HasSubstr("energy_uj: Is a directory")));
  EXPECT_TRUE(Find().Empty());
}

TEST_F(CountersTest, RootAloneMayRead) {
  fake_.Zone("intel-rapl:0", "package-0");
  ASSERT_EQ(chmod((fake_.Folder("intel-rapl:0") + "/energy_uj").c_str(), 0), 0);
  ASSERT_EQ(chmod(folder_.Path().c_str(), 0755), 0);
  const bool root = geteuid() == 0;
  if (root) {
    ASSERT_EQ(seteuid(65534), 0);
  }
  const Counters counters = Find();
  if (root) {
    ASSERT_EQ(seteuid(0), 0);
  }
  EXPECT_TRUE(counters.Empty());
  EXPECT_THAT(counters.why,
              ElementsAre(HasSubstr("energy_uj: Permission denied (root alone may read it)")));
}

TEST_F(CountersTest, CountersThatStandStillAreLeftOut) {
  fake_.Zone("intel-rapl:0", "package-0");
  const Counters counters = FindCounters({.root = folder_.Path(), .probe_seconds = 0.01}, {});
  EXPECT_TRUE(counters.Empty());
  EXPECT_THAT(counters.why, ElementsAre(HasSubstr("stands still")));
}

// A machine under load may be slow to look: a package that moves speaks for the others.
TEST_F(CountersTest, AKindIsNeverCountedInPart) {
  fake_.Zone("intel-rapl:0", "package-0");
  fake_.Zone("intel-rapl:1", "package-1");
  fake_.Zone("intel-rapl:1:0", "dram");
  std::jthread moves([this](const std::stop_token& stop) {
    for (int joules = 1; !stop.stop_requested(); ++joules) {
      fake_.Set("intel-rapl:1", joules);
      usleep(1000);
    }
  });
  const Counters counters = FindCounters({.root = folder_.Path(), .probe_seconds = 0.2}, {});
  EXPECT_EQ(counters.node.size(), 2U);
  EXPECT_EQ(NameOf(counters.parts), "CPU packages");
  EXPECT_THAT(counters.why, ElementsAre(HasSubstr("intel-rapl:1:0/energy_uj: stands still")));
}

TEST_F(CountersTest, RubbishIsNoNumber) {
  for (const char* text : {"", "abc", "-5", "1e999", "nan", "inf", "12x", "0x10"}) {
    EXPECT_FALSE(NumberIn(text)) << text;
  }
  EXPECT_EQ(NumberIn("12"), 12);
  EXPECT_EQ(NumberIn("1234 J"), 1234);
}

TEST_F(CountersTest, CardsByTheLibrary) {
  Cards("GPU-ffffffff-ffff-ffff-ffff-ffffffffffff 1 1 1 1\n" + std::string(kUuid) +
        " 123456 250000 87 1073741824");
  const Counters counters = Find({kCard});
  ASSERT_EQ(counters.cards.size(), 1U);
  EXPECT_NEAR(counters.cards[0]->Read().value_or(0), 123.456, 1e-9);
  const auto state = counters.cards[0]->Look();
  ASSERT_TRUE(state);
  EXPECT_NEAR(state->utilisation, 0.87, 1e-9);
  EXPECT_EQ(state->bytes, 1073741824);
  EXPECT_EQ(NameOf(counters.parts), "GPUs");
  EXPECT_FALSE(counters.Empty());
}

TEST_F(CountersTest, ACardWithoutACounterIsIntegrated) {
  Cards(std::string(kUuid) + " -1 300000 87 1");
  const Counters counters = Find({kCard});
  ASSERT_EQ(counters.cards.size(), 1U);
  const double before = counters.cards[0]->Read().value_or(-1);
  usleep(100'000);
  const double gained = counters.cards[0]->Read().value_or(-1) - before;
  EXPECT_GT(gained, 29);
  EXPECT_LT(gained, 300);
}

TEST_F(CountersTest, CardsThatCannotBeCounted) {
  EXPECT_THAT(Find({kCard}).why.back(), HasSubstr("Driver Not Loaded"));
  Cards("GPU-ffffffff-ffff-ffff-ffff-ffffffffffff 1 1 1 1");
  EXPECT_THAT(Find({kCard}).why.back(), AllOf(HasSubstr(kUuid), HasSubstr("Not Found")));
  Cards("MIG-01234567-89ab-cdef-0123-456789abcdef 1 1 1 1");
  EXPECT_THAT(Find({kCard}).why.back(), HasSubstr("a part of a card (MIG)"));
  Cards(std::string(kUuid) + " -1 -1 87 1");
  EXPECT_THAT(Find({kCard}).why.back(), HasSubstr("neither energy nor power"));
  const Counters none = FindCounters({.root = folder_.Path(), .nvml = "libnowhere.so.1"}, {kCard});
  EXPECT_THAT(none.why.back(), HasSubstr("libnowhere.so.1"));
  EXPECT_TRUE(none.Empty());
}

// Sums over readings: counters that wrap around, vanish, stand still and lie.

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
