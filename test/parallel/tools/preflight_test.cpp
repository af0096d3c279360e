// Ranks that tell each other what they see: names of hosts, tallies, clocks that differ, speeds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "trireme/comm/communicator.hpp"
#include "trireme/comm/hosts.hpp"
#include "trireme/tools/preflight.hpp"

namespace trireme::tools {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

class PreflightTest : public testing::Test {
 protected:
  PreflightTest()
      : world_(comm::Communicator::Adopt(MPI_COMM_WORLD).Duplicate()),
        node_(world_.Split(world_.Rank() / 2, world_.Rank(), "node")) {}
  comm::Communicator world_, node_;  // two ranks a node
};

TEST_F(PreflightTest, NamesOfHostsAreKeptOnce) {
  const std::string name = world_.Rank() / 2 == 1 ? "second" : "first";
  const comm::HostMap map = comm::HostMap::Gather(world_, node_, name);
  ASSERT_EQ(map.hosts.Ranks(), world_.Size());
  for (int rank = 0; rank < world_.Size(); ++rank) {
    EXPECT_EQ(map.hosts.Of(rank), rank / 2 == 1 ? "second" : "first");
    EXPECT_EQ(map.nodes[static_cast<std::size_t>(rank)], rank / 2);
  }
  EXPECT_EQ(map.hosts.Names().size(), world_.Size() > 2 ? 2U : 1U);
  // Names that differ within what MPI takes for one node.
  const comm::HostMap own = comm::HostMap::Gather(world_, node_, std::to_string(world_.Rank()));
  for (int rank = 0; rank < world_.Size(); ++rank) {
    EXPECT_EQ(own.hosts.Of(rank), std::to_string(rank));
  }
}

TEST_F(PreflightTest, TextsAreComparedWithoutGathering) {
  EXPECT_TRUE(comm::SameEverywhere(world_, "text"));
  const bool last = world_.Rank() == world_.Size() - 1;
  EXPECT_EQ(comm::SameEverywhere(world_, last ? "other" : "text"), world_.Size() == 1);
}

TEST_F(PreflightTest, TalliesMeetOnTheRoot) {
  Tally mine;
  mine.Add("all", "same", world_.Rank());
  mine.Add("each", std::to_string(world_.Rank()), world_.Rank());
  const Tally all = MergeOnRoot(world_, mine);
  if (!world_.IsRoot()) return;
  EXPECT_EQ(all.Of("all")[0].count, world_.Size());
  EXPECT_THAT(all.Of("each"), SizeIs(static_cast<std::size_t>(world_.Size())));
}

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
int own_rank = 0;

TEST_F(PreflightTest, ClocksThatDifferAreProven) {
  own_rank = world_.Rank();
  EXPECT_EQ(CompareWallClocks(world_, Now).seconds, 0);
  if (world_.Size() < 2) return;
  const ClockSkew skew =
      CompareWallClocks(world_, [] { return Now() + (own_rank == 1 ? 30.0 : 0.0); });
  EXPECT_EQ(skew.ahead, 1);
  EXPECT_NE(skew.behind, 1);
  EXPECT_LE(skew.seconds, 30);
  EXPECT_GE(skew.seconds, 20);
}

TEST_F(PreflightTest, ALookFindsItsHost) {
  const comm::Hosts hosts(std::vector<std::string>(static_cast<std::size_t>(world_.Size()), "h"));
  Subject subject;
  subject.output = "/dev/shm/run";
  subject.data = {"/nowhere.h5"};
  const Findings findings = LookAround({world_, node_, hosts}, subject);
  EXPECT_LT(findings.seconds, 5);
  if (!world_.IsRoot()) return;
  EXPECT_THAT(findings.facts,
              testing::Contains(std::pair<std::string, std::string>("run folder", "tmpfs")));
  EXPECT_THAT(findings.facts, testing::Contains(std::pair<std::string, std::string>(
                                  "data", "/nowhere.h5 is missing")));
}

TEST_F(PreflightTest, SpeedsOfNodesAndOfRanks) {
  const Measured nodes = Measure(world_, node_, {}, Dtype::kFloat32);
  if (!world_.IsRoot()) return;
  const bool one = world_.Size() <= 2;
  EXPECT_EQ(nodes.of_ranks, one);
  ASSERT_THAT(nodes.units,
              SizeIs(static_cast<std::size_t>(one ? world_.Size() : world_.Size() / 2)));
  for (const Unit& unit : nodes.units) {
    EXPECT_EQ(unit.wrong, 0);
    EXPECT_GT(unit.values[0], 1e8);
    EXPECT_GT(unit.values[1], 1e7);
    if (world_.Size() == 1) continue;
    EXPECT_GT(unit.values[2], 1e5);
    EXPECT_GT(unit.values[3], 1e5);
    EXPECT_GE(unit.values[2], unit.worst_pair);
    EXPECT_GE(unit.worst_partner, 0);
  }
}

TEST_F(PreflightTest, TheProgramsFileIsHashedOnce) {
  const std::string file = ProgramFile(node_);
  EXPECT_TRUE(comm::SameEverywhere(world_, file));
  EXPECT_THAT(file, testing::HasSubstr(" bytes)"));
}

}  // namespace
}  // namespace trireme::tools
