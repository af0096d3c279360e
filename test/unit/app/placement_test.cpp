// What the ranks of a node get: cores, cards, memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "folders.hpp"
#include "training_run.hpp"
#include "trireme/app/placement.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/node_memory.hpp"

namespace trireme::test {
namespace {

using testing::HasSubstr;
using testing::Not;

// Memory that a process may still take, from trees like /proc and /sys/fs/cgroup, and the refusal
// of more.

constexpr std::int64_t kMachine = std::int64_t{1000} * 1024;  // bytes, as MemAvailable says below
constexpr const char* kMemInfo = "MemTotal: 2000 kB\nMemFree: 10 kB\nMemAvailable:    1000 kB\n";
constexpr const char* kOnTheNode = "available on the node";
constexpr const char* kByTheGroup = "left by the control group's limit";

class NodeMemoryTest : public testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = folder_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void WriteGroup2(const std::string& path, const std::string& limit, std::int64_t used,
                   std::int64_t droppable = 0) {
    const std::string group = "cgroup" + path + "/";
    Write(group + "memory.max", limit + "\n");
    Write(group + "memory.current", std::to_string(used) + "\n");
    Write(group + "memory.stat",
          "anon 5\nactive_file 7\ninactive_file " + std::to_string(droppable) + "\n");
  }
  void WriteGroup1(const std::string& path, const std::string& limit, std::int64_t used,
                   std::int64_t droppable = 0) {
    const std::string group = "cgroup/memory" + path + "/";
    Write(group + "memory.limit_in_bytes", limit + "\n");
    Write(group + "memory.usage_in_bytes", std::to_string(used) + "\n");
    Write(group + "memory.stat",
          "inactive_file 3\ntotal_inactive_file " + std::to_string(droppable) + "\n");
  }
  void ExpectLeft(std::int64_t bytes, const char* source) {
    const comm::Available available = comm::AvailableMemory(folder_ / "proc", folder_ / "cgroup");
    EXPECT_EQ(available.bytes, bytes);
    EXPECT_EQ(available.source, source);
  }

  TemporaryFolder folder_;
};

TEST_F(NodeMemoryTest, TheMachineAloneLimitsWithoutGroups) {
  Write("proc/meminfo", kMemInfo);
  ExpectLeft(kMachine, kOnTheNode);
  // Groups are named, but nothing is known about their memory.
  Write("proc/self/cgroup", "0::/user.slice/job\n4:memory:/job\n");
  ExpectLeft(kMachine, kOnTheNode);
  Write("proc/self/cgroup", "no line of that file\n7\n");
  ExpectLeft(kMachine, kOnTheNode);
}

TEST_F(NodeMemoryTest, NothingIsKnownWhereNoFileSaysAnything) {
  ExpectLeft(std::numeric_limits<std::int64_t>::max(), kOnTheNode);
}

TEST_F(NodeMemoryTest, NoLimitIsNone) {
  Write("proc/meminfo", kMemInfo);
  Write("proc/self/cgroup", "0::/job\n4:cpu,memory:/job\n");
  WriteGroup2("/job", "max", 50);
  // "No limit" in version 1.
  WriteGroup1("/job", "9223372036854771712", 50);
  ExpectLeft(kMachine, kOnTheNode);
}

TEST_F(NodeMemoryTest, AGroupOfVersion2LeavesItsLimitLessWhatItUses) {
  Write("proc/meminfo", kMemInfo);
  Write("proc/self/cgroup", "0::/job\n");
  WriteGroup2("/job", "5000", 1200);
  ExpectLeft(3800, kByTheGroup);
  // Pages of files that can be dropped are there to take.
  WriteGroup2("/job", "5000", 1200, 700);
  ExpectLeft(4500, kByTheGroup);
  WriteGroup2("/job", "5000", 1200, 1300);
  ExpectLeft(5000, kByTheGroup);
  // A limit that was lowered below the use.
  WriteGroup2("/job", "1000", 1200);
  ExpectLeft(0, kByTheGroup);
  // More than the machine has.
  WriteGroup2("/job", std::to_string(2 * kMachine), 0);
  ExpectLeft(kMachine, kOnTheNode);
}

TEST_F(NodeMemoryTest, TheTightestOfNestedGroupsCounts) {
  Write("proc/meminfo", kMemInfo);
  Write("proc/self/cgroup", "0::/system.slice/job_7/step_0\n");
  WriteGroup2("/system.slice/job_7/step_0", "9000", 1000);  // 8,000
  WriteGroup2("/system.slice/job_7", "9000", 3000);         // 6,000
  WriteGroup2("/system.slice", "max", 500000);
  ExpectLeft(6000, kByTheGroup);
  WriteGroup2("/system.slice/job_7/step_0", "6500", 1000);  // 5,500
  ExpectLeft(5500, kByTheGroup);
  WriteGroup2("/system.slice", "505000", 500000);  // 5,000
  ExpectLeft(5000, kByTheGroup);
  // Another process's group has no say.
  WriteGroup2("/system.slice/job_8", "10", 0);
  ExpectLeft(5000, kByTheGroup);
  // The root's own files, as a container shows its group.
  WriteGroup2("", "4000", 100);
  ExpectLeft(3900, kByTheGroup);
}

TEST_F(NodeMemoryTest, GroupsOfVersion1) {
  Write("proc/meminfo", kMemInfo);
  Write("proc/self/cgroup",
        "9:name=systemd:/\n6:cpu,cpuacct:/elsewhere\n4:memory:/job/step\n0::/\n");
  WriteGroup1("/job/step", "9000", 1000, 400);  // 8,400
  ExpectLeft(8400, kByTheGroup);
  WriteGroup1("/job", "9000", 3000);  // 6,000
  ExpectLeft(6000, kByTheGroup);
  WriteGroup1("/elsewhere", "10", 0);
  ExpectLeft(6000, kByTheGroup);
  WriteGroup1("", "5000", 0);
  ExpectLeft(5000, kByTheGroup);
}

TEST_F(NodeMemoryTest, BothVersionsCount) {
  Write("proc/meminfo", kMemInfo);
  Write("proc/self/cgroup", "4:memory:/one\n0::/two\n");
  WriteGroup1("/one", "9000", 1000);
  WriteGroup2("/two", "9000", 2000);
  ExpectLeft(7000, kByTheGroup);
  WriteGroup1("/one", "9000", 3000);
  ExpectLeft(6000, kByTheGroup);
}

TEST_F(NodeMemoryTest, ThisMachineSaysSomething) {
  const comm::Available available = comm::AvailableMemory();
  EXPECT_GT(available.bytes, 0);
  EXPECT_LT(available.bytes, std::int64_t{1} << 60);
}

constexpr std::int64_t kGib = std::int64_t{1} << 30;

TEST(NodeDemand, AddsUpTheTerms) {
  const comm::Communicator world = World();
  const device::MemoryTerms mine{.parameters = 5, .moments = 7};
  const comm::NodeDemand demand = comm::DemandOf(world, mine);
  EXPECT_EQ(demand.ranks, 1);
  EXPECT_EQ(demand.terms, mine);
  EXPECT_EQ(demand.terms.Total(), 12);
  EXPECT_GT(demand.available.bytes, 0);
}

// A field that is missing from the table of terms would be missing from every sum.
TEST(MemoryTerms, TheTableNamesEveryField) {
  EXPECT_EQ(sizeof(device::MemoryTerms),
            device::kMemoryTerms.size() * sizeof(device::kMemoryTerms[0].bytes));
  device::MemoryTerms terms;
  for (const device::MemoryTerm& term : device::kMemoryTerms) terms.*term.bytes += 1;
  EXPECT_EQ(terms.Total(), static_cast<std::int64_t>(device::kMemoryTerms.size()));
}

TEST(NodeDemand, IsRefusedWhereItIsTooMuch) {
  const comm::Communicator world = World();
  const comm::ProcessGrid grid(world, comm::GridShape{});
  comm::NodeDemand demand{
      1, {.parameters = kGib, .activations = 2 * kGib}, {3 * kGib, kByTheGroup}};
  EXPECT_NO_THROW(comm::CheckNodeMemory(demand, grid, false));
  demand.available.bytes -= 1;
  try {
    comm::CheckNodeMemory(demand, grid, false);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    const std::string text = error.what();
    EXPECT_THAT(text, HasSubstr("memory: the one rank of this node plans 3.0 GiB (parameters 1.0 "
                                "GiB + activations 2.0 GiB), but 3.0 GiB are left by the control "
                                "group's limit; nothing was allocated\n  What helps: "));
    EXPECT_THAT(text, HasSubstr("a smaller data.micro_batch, model.recompute = full."));
    // No rank to share with.
    EXPECT_THAT(text, Not(HasSubstr("grid.sharding")));
  }
}

}  // namespace
}  // namespace trireme::test

namespace trireme::app {
namespace {

using device::HardwareThread;

// Cores that the ranks of a node get: pure, from the cores that each rank is bound to.

// Cores [begin, end), each with one hardware thread.
std::vector<HardwareThread> Single(int begin, int end) {
  std::vector<HardwareThread> threads;
  for (int number = begin; number < end; ++number) threads.push_back({number, number});
  return threads;
}
// Cores 0 to 3, whose second hardware threads are 4 to 7; as DescribeThreads lists them.
std::vector<HardwareThread> Double() {
  std::vector<HardwareThread> threads;
  for (int core = 0; core < 4; ++core) {
    threads.push_back({core, core});
    threads.push_back({core + 4, core});
  }
  return threads;
}

std::vector<NodePlacement> All(const std::vector<RankThreads>& node, device::Pin pin) {
  std::vector<NodePlacement> all;
  for (std::size_t rank = 0; rank < node.size(); ++rank) {
    all.push_back(PlaceOnNode(node, static_cast<int>(rank), pin));
  }
  return all;
}

using Numbers = std::vector<int>;

TEST(Placement, SharesWhatRanksAreBoundToAlike) {
  const auto all = All({4, RankThreads{0, Single(0, 8)}}, device::Pin::kAuto);
  for (int rank = 0; rank < 4; ++rank) {
    const NodePlacement& placement = all[static_cast<std::size_t>(rank)];
    EXPECT_EQ(placement.threads, 2);
    EXPECT_EQ(placement.numbers, (Numbers{2 * rank, 2 * rank + 1}));
    EXPECT_EQ(placement.shortage, "");
  }
}

TEST(Placement, ABindingOfItsOwnIsUsed) {
  const auto all = All({{0, Single(4, 6)}, {0, Single(0, 1)}}, device::Pin::kAuto);
  EXPECT_EQ(all[0].numbers, (Numbers{4, 5}));
  EXPECT_EQ(all[1].numbers, (Numbers{0}));
}

// Two sockets, two ranks bound to each.
TEST(Placement, GroupsOfRanksShareApart) {
  const auto all = All({{0, Single(0, 4)}, {0, Single(0, 4)}, {0, Single(4, 8)}, {0, Single(4, 8)}},
                       device::Pin::kAuto);
  EXPECT_EQ(all[1].numbers, (Numbers{2, 3}));
  EXPECT_EQ(all[2].numbers, (Numbers{4, 5}));
}

// Cores that are left may be another program's; yes spreads the ranks over all of them.
TEST(Placement, AutoPinsWhereNoCoreIsLeft) {
  const std::vector<RankThreads> node(2, RankThreads{1, Single(0, 8)});
  for (const NodePlacement& placement : All(node, device::Pin::kAuto)) {
    EXPECT_EQ(placement.threads, 1);
    EXPECT_TRUE(placement.numbers.empty());
    EXPECT_EQ(placement.shortage, "");
  }
  const auto all = All(node, device::Pin::kYes);
  EXPECT_EQ(all[0].numbers, (Numbers{0}));
  EXPECT_EQ(all[1].numbers, (Numbers{4}));
}

TEST(Placement, NoPinsNothing) {
  for (const NodePlacement& placement : All({2, RankThreads{0, Single(0, 2)}}, device::Pin::kNo)) {
    EXPECT_EQ(placement.threads, 1);
    EXPECT_TRUE(placement.numbers.empty());
  }
}

TEST(Placement, SecondHardwareThreadsServeOnRequestOnly) {
  const auto share = All({2, RankThreads{0, Double()}}, device::Pin::kAuto);
  EXPECT_EQ(share[0].numbers, (Numbers{0, 1}));
  EXPECT_EQ(share[1].numbers, (Numbers{2, 3}));
  const auto twice = All({2, RankThreads{4, Double()}}, device::Pin::kAuto);
  EXPECT_EQ(twice[0].numbers, (Numbers{0, 4, 1, 5}));
  EXPECT_EQ(twice[1].numbers, (Numbers{2, 6, 3, 7}));
  EXPECT_EQ(PlaceOnNode({2, RankThreads{5, Double()}}, 0, device::Pin::kYes).shortage,
            "2 ranks x 5 threads on 4 cores");
}

TEST(Placement, UnequalRanksGetTheirProportion) {
  const auto all =
      All({{3, Single(0, 6)}, {1, Single(0, 6)}, {2, Single(0, 6)}}, device::Pin::kYes);
  EXPECT_EQ(all[0].numbers, (Numbers{0, 1, 2}));
  EXPECT_EQ(all[1].numbers, (Numbers{3}));
  EXPECT_EQ(all[2].numbers, (Numbers{4, 5}));
}

TEST(Placement, SaysWhatIsShort) {
  const auto says = [](const std::vector<RankThreads>& node, const std::string& text) {
    for (const NodePlacement& placement : All(node, device::Pin::kYes)) {
      EXPECT_EQ(placement.shortage, text);
      EXPECT_TRUE(placement.numbers.empty());
    }
  };
  says({2, RankThreads{2, Single(0, 2)}}, "2 ranks x 2 threads on 2 cores");
  says({2, RankThreads{0, Single(5, 6)}}, "2 ranks x 1 thread on 1 core");
  says({1, RankThreads{4, Single(0, 1)}}, "1 rank x 4 threads on 1 core");
  says({{2, Single(0, 2)}, {1, Single(0, 2)}}, "2 ranks with 3 threads in all on 2 cores");
}

TEST(Placement, AQuotaIsSharedByTheNodesRanks) {
  const auto all = All({2, RankThreads{0, Single(0, 8), 3}}, device::Pin::kAuto);
  EXPECT_EQ(all[0].threads, 2);  // ceil(3 / 2)
  EXPECT_TRUE(all[0].numbers.empty());
  EXPECT_EQ(All({1, RankThreads{0, Single(0, 2), 0.5}}, device::Pin::kYes)[0].threads, 1);
  EXPECT_EQ(All({1, RankThreads{0, Single(0, 2), 1}}, device::Pin::kYes)[0].shortage, "");
  EXPECT_EQ(All({1, RankThreads{2, Single(0, 2), 1.5}}, device::Pin::kYes)[0].shortage, "");
  EXPECT_EQ(All({1, RankThreads{2, Single(0, 2), 1}}, device::Pin::kYes)[0].shortage,
            "1 rank x 2 threads on a quota of 1 processor");
  EXPECT_EQ(All({4, RankThreads{0, Single(0, 8), 2.5}}, device::Pin::kYes)[0].shortage,
            "4 ranks x 1 thread on a quota of 2.5 processors");
}

// A rank that is bound to a part of what another one may use.
TEST(Placement, LeavesPartlySharedCoresAlone) {
  const auto all =
      All({{2, Single(0, 4)}, {0, Single(2, 6)}, {0, Single(6, 7)}}, device::Pin::kYes);
  EXPECT_EQ(all[0].threads, 2);
  EXPECT_TRUE(all[0].numbers.empty());
  EXPECT_EQ(all[1].threads, 2);
  EXPECT_TRUE(all[1].numbers.empty());
  EXPECT_EQ(all[2].numbers, (Numbers{6}));
}

// Choice of a card for each rank of a node.

using Visible = std::vector<std::vector<std::string>>;

std::vector<std::string> Taken(const Visible& visible) {
  std::vector<std::string> cards;
  for (int rank = 0; rank < static_cast<int>(visible.size()); ++rank) {
    const auto device = static_cast<std::size_t>(AssignGpu(visible, rank));
    cards.push_back(visible[static_cast<std::size_t>(rank)].at(device));
  }
  return cards;
}

using Cards = std::vector<std::string>;

TEST(GpuChoice, RanksThatSeeAllCardsTakeThemInOrder) {
  EXPECT_EQ(Taken({{"a", "b"}, {"a", "b"}}), (Cards{"a", "b"}));
  // CUDA_VISIBLE_DEVICES=1,0: its order is kept.
  EXPECT_EQ(Taken({{"b", "a"}, {"b", "a"}}), (Cards{"b", "a"}));
}

TEST(GpuChoice, ABatchSystemsBindingIsKept) {
  EXPECT_EQ(Taken({{"a"}, {"b"}, {"c"}}), (Cards{"a", "b", "c"}));
  // Two ranks see one pair of cards, two the other.
  EXPECT_EQ(Taken({{"a", "b"}, {"c", "d"}, {"a", "b"}, {"c", "d"}}), (Cards{"a", "c", "b", "d"}));
}

TEST(GpuChoice, MoreRanksThanCardsGoRound) {
  EXPECT_EQ(Taken({{"a", "b"}, {"a", "b"}, {"a", "b"}}), (Cards{"a", "b", "a"}));
  EXPECT_EQ(Taken({{"a"}, {"a"}}), (Cards{"a", "a"}));
}

TEST(GpuChoice, RanksThatSeeApartAreFound) {
  EXPECT_TRUE(SeeApart({{"a"}, {"b"}}));
  EXPECT_FALSE(SeeApart({{"a", "b"}, {"a", "b"}}));
  EXPECT_FALSE(SeeApart({{"a"}}));
  EXPECT_FALSE(SeeApart({{"a", "b"}, {"b"}}));
}

}  // namespace
}  // namespace trireme::app
