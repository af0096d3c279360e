// Meter: four ranks as if on two nodes of two, each with a tree of counters of its own.
#include "trireme/report/meter.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "fake_counters.hpp"
#include "folders.hpp"
#include "trireme/comm/communicator.hpp"

namespace trireme::report {
namespace {

using comm::Communicator;
using test::FakeCounters;
using testing::HasSubstr;

constexpr const char* kZone = "intel-rapl:0";

std::string Card(int number) {
  std::string digits(32, '0');
  digits.back() = static_cast<char>('0' + number);
  return digits;
}

class MeterTest : public testing::Test {
 protected:
  MeterTest()
      : world_(Communicator::Adopt(MPI_COMM_WORLD)),
        nodes_((world_.Size() + 1) / 2),
        number_(world_.Rank() / 2),
        node_(world_.Split(number_, world_.Rank())),
        folder_(world_),
        fake_(folder_ / ("node" + std::to_string(number_))) {
    setenv("TRIREME_STUB_NVML", (folder_ / "cards").c_str(), 1);
  }
  // Readings at Collect() alone.
  report::Setup MakeSetup(const std::string& card = {}) const {
    return {.places = {.root = fake_.Root(),
                       .nvml = STUB_NVML,
                       .probe_seconds = 0,
                       .period_seconds = 1000},
            .host = "node" + std::to_string(number_),
            .card = card,
            .cores = {}};
  }
  void OnEachNode(const std::function<void()>& body) const {
    world_.Barrier();
    if (node_.IsRoot()) body();
    world_.Barrier();
  }
  // Time enough for another reading.
  static void Pause() { usleep(60'000); }

  Communicator world_;
  int nodes_, number_;
  Communicator node_;
  test::SharedFolder folder_;
  FakeCounters fake_;
};

TEST_F(MeterTest, SumsOverNodesNotOverRanks) {
  OnEachNode([&] { fake_.Zone(kZone, "package-0"); });
  Meter meter(world_, node_, MakeSetup());
  ASSERT_TRUE(meter.Available()) << meter.WhyNot();
  EXPECT_EQ(meter.Covers(), "CPU packages");
  EXPECT_EQ(meter.Nodes(), nodes_);
  meter.Collect();
  for (int round = 1; round <= 2; ++round) {
    Pause();
    OnEachNode([&] { fake_.Set(kZone, 10.0 * round * (number_ + 1)); });
    const Sums sums = meter.Collect();
    EXPECT_NEAR(sums.joules, nodes_ == 2 ? 30 : 10, 1e-6);
    EXPECT_GT(sums.node_seconds, 0.05 * nodes_);
    EXPECT_TRUE(sums.Whole());
    EXPECT_EQ(sums.card_bytes, 0);
  }
}

TEST_F(MeterTest, AThreadReadsBetween) {
  OnEachNode([&] { fake_.Zone(kZone, "package-0", 1000); });
  report::Setup setup = MakeSetup();
  setup.places.period_seconds = 0.06;
  Meter meter(world_, node_, setup);
  meter.Collect();
  // Wraps around twice: seen by the readings between alone.
  for (int step = 1; step <= 8; ++step) {
    OnEachNode([&] { fake_.Set(kZone, (300 * step) % 1000); });
    usleep(300'000);
  }
  const Sums sums = meter.Collect();
  // Under load a reading may come too late: then its time is lost.
  if (sums.Whole()) {
    EXPECT_NEAR(sums.joules, 2400.0 * nodes_, 1e-6);
  }
  EXPECT_LE(sums.joules, 2400.0 * nodes_ + 1e-6);
  EXPECT_GT(sums.node_seconds, 0);
}

TEST_F(MeterTest, ACardThatRanksShareCountsOnce) {
  OnEachNode([&] { fake_.Zone(kZone, "package-0"); });
  const auto cards = [&](int joules) {
    if (!world_.IsRoot()) return;
    std::string lines;
    for (int number = 0; number < 2; ++number) {
      lines += "GPU-00000000-0000-0000-0000-00000000000" + std::to_string(number) + " " +
               std::to_string(1000 * joules) + " 0 50 " + std::to_string(1000 + number) + "\n";
    }
    FakeCounters::Put(folder_ / "cards", lines);
  };
  cards(0);
  world_.Barrier();
  Meter meter(world_, node_, MakeSetup(Card(number_)));
  ASSERT_TRUE(meter.Available()) << meter.WhyNot();
  EXPECT_EQ(meter.Covers(), "CPU packages, GPUs");
  EXPECT_EQ(meter.Cards(), nodes_);
  meter.Collect();
  Pause();
  cards(7);
  OnEachNode([&] { fake_.Set(kZone, 5); });
  const Sums sums = meter.Collect();
  EXPECT_NEAR(sums.joules, 12.0 * nodes_, 1e-6);
  EXPECT_NEAR(sums.card_joules, 7.0 * nodes_, 1e-6);
  EXPECT_NEAR(sums.busy_seconds / sums.card_seconds, 0.5, 1e-9);
  EXPECT_EQ(sums.card_bytes, 999 + nodes_);
}

TEST_F(MeterTest, WithoutCountersNothingIsSent) {
  const Meter meter(world_, node_, MakeSetup());
  EXPECT_FALSE(meter.Available());
  EXPECT_THAT(meter.WhyNot(), HasSubstr("no counters of RAPL"));
  // One rank alone: a collective would hang.
  Meter alone(world_, node_, MakeSetup());
  if (world_.IsRoot()) {
    EXPECT_EQ(alone.Collect().joules, 0);
  }
}

TEST_F(MeterTest, NodesThatDifferAreNotAdded) {
  if (nodes_ == 1) GTEST_SKIP() << "one node";
  OnEachNode([&] {
    if (number_ == 0) fake_.Zone("intel-rapl:0:0", "dram");
    fake_.Zone(kZone, "package-0");
  });
  const Meter meter(world_, node_, MakeSetup());
  EXPECT_FALSE(meter.Available());
  EXPECT_THAT(meter.WhyNot(), HasSubstr("nodes count different parts: CPU packages, memory on one, "
                                        "CPU packages on node1"));
}

TEST_F(MeterTest, ANodeWithoutCountersIsNamed) {
  if (nodes_ == 1) GTEST_SKIP() << "one node";
  OnEachNode([&] {
    if (number_ == 0) fake_.Zone(kZone, "package-0");
  });
  const Meter meter(world_, node_, MakeSetup());
  EXPECT_THAT(meter.WhyNot(),
              AllOf(HasSubstr("nothing on node1"), HasSubstr("no counters of RAPL")));
}

TEST_F(MeterTest, ACounterThatVanishesLosesTimeAndNoRun) {
  OnEachNode([&] { fake_.Zone(kZone, "package-0"); });
  Meter meter(world_, node_, MakeSetup());
  meter.Collect();
  Pause();
  OnEachNode([&] {
    if (number_ == nodes_ - 1) fake_.Remove(kZone);
  });
  const Sums sums = meter.Collect();
  EXPECT_FALSE(sums.Whole());
  EXPECT_GT(sums.lost_seconds, 0.05);
}

}  // namespace
}  // namespace trireme::report
