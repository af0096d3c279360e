// The preflight: facts of the system, and the judgement of measurements.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <vector>

#include "folders.hpp"
#include "trireme/base/files.hpp"
#include "trireme/tools/preflight.hpp"

namespace trireme::tools {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// Facts of a host from trees of the test's own: network devices, distances, file systems, fabrics.

class SystemTest : public testing::Test {
 protected:
  void Put(const std::string& path, const std::string& text) {
    const std::filesystem::path at(folder_ / path);
    std::filesystem::create_directories(at.parent_path());
    std::ofstream(at) << text << '\n';
  }
  Roots Root() const { return {.sys = folder_.Path(), .proc = folder_.Path()}; }
  test::TemporaryFolder folder_;
};

TEST_F(SystemTest, DevicesThatAreUp) {
  Put("class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE");
  Put("class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand");
  Put("class/infiniband/mlx5_0/ports/1/rate", "200 Gb/sec (4X HDR)");
  Put("class/infiniband/mlx5_1/ports/1/state", "1: DOWN");
  Put("class/net/lo/operstate", "unknown");
  Put("class/net/eth0/operstate", "up");
  Put("class/net/eth0/speed", "25000");
  Put("class/net/eth1/operstate", "down");
  const Devices devices = FindDevices(Root());
  EXPECT_THAT(devices.infiniband, testing::ElementsAre("mlx5_0 InfiniBand 200 Gb/sec (4X HDR)"));
  EXPECT_THAT(devices.ethernet, testing::ElementsAre("eth0 25 Gbit/s"));
  EXPECT_TRUE(devices.Fast());
  Put("class/cxi/cxi0/device/numa_node", "3");
  EXPECT_THAT(FindDevices(Root()).slingshot, testing::ElementsAre("cxi0"));
  EXPECT_FALSE(FindDevices({.sys = folder_ / "nowhere"}).Fast());
}

TEST_F(SystemTest, ACardFarFromItsCoresOrItsNetworkCard) {
  Put("bus/pci/devices/0000:41:00.0/numa_node", "1");
  Put("bus/pci/devices/0000:41:00.0/local_cpulist", "8-15,24-31");
  const std::vector<int> near = {8, 9}, far = {0, 1, 2}, both = {7, 8};
  const auto complaint = [&](const std::vector<int>& cores, const char* chosen) {
    return FarCard("0000:41:00.0", cores, chosen, Root());
  };
  EXPECT_THAT(complaint(far, ""), HasSubstr("is attached to cores 8-15,24-31 (NUMA node 1)"));
  EXPECT_THAT(complaint(far, ""), HasSubstr("bound to cores 0-2"));
  EXPECT_THAT(complaint(near, ""), IsEmpty());
  EXPECT_THAT(complaint(both, ""), IsEmpty());
  Put("class/infiniband/mlx5_0/device/numa_node", "0");
  EXPECT_THAT(complaint(near, "mlx5_0:1"), IsEmpty());  // there is no nearer one
  Put("class/infiniband/mlx5_1/device/numa_node", "1");
  EXPECT_THAT(complaint(near, "mlx5_0:1"), HasSubstr("network card mlx5_0 of another node"));
  EXPECT_THAT(complaint(near, "mlx5_0:1,mlx5_1:1"), IsEmpty());
  EXPECT_THAT(FarCard("0000:99:00.0", far, "", Root()), IsEmpty());  // not known
}

TEST(Fabric, OfOpenMpiByItsComponents) {
  const auto none = [](const char*) -> const char* { return nullptr; };
  const std::string library = "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4";
  const auto of = [&](std::vector<std::string> objects, Lookup environment) {
    return FabricOf(library, objects, environment);
  };
  const Fabric tcp =
      of({"libmpi.so.40", "mca_pml_ob1.so", "mca_btl_tcp.so", "mca_btl_self.so"}, none);
  EXPECT_EQ(tcp.library, "Open MPI 4.1.4");
  EXPECT_EQ(tcp.transports, "pml ob1, btl self tcp");
  EXPECT_TRUE(tcp.tcp);
  // A host with several ranks differs from one with a single rank only in what serves within it.
  EXPECT_EQ(of({"mca_pml_ob1.so", "mca_btl_tcp.so", "mca_btl_self.so", "mca_btl_vader.so"}, none)
                .transports,
            tcp.transports);
  EXPECT_FALSE(of({"mca_pml_ob1.so", "mca_btl_tcp.so", "mca_btl_openib.so"}, none).tcp);
  EXPECT_FALSE(of({"mca_pml_ucx.so", "mca_btl_tcp.so"}, none).tcp);
  const auto chosen = [](const char* name) -> const char* {
    return std::strcmp(name, "UCX_TLS") == 0 ? "tcp,self,sm" : nullptr;
  };
  EXPECT_TRUE(of({"mca_pml_ucx.so"}, chosen).tcp);
  for (const auto& [transports, tcp_alone] : {std::pair{"tcp,sm,cuda_copy", true},
                                              {"^tcp", false},
                                              {"tcp,rc_x", false},
                                              {"all", false}}) {
    static const char* value;
    value = transports;
    const auto given = [](const char* name) -> const char* {
      return std::strcmp(name, "UCX_TLS") == 0 ? value : nullptr;
    };
    EXPECT_EQ(of({"mca_pml_ucx.so"}, given).tcp, tcp_alone) << transports;
  }
  EXPECT_EQ(of({}, none).transports, "");
}

TEST(Fabric, OfMpichByItsDevice) {
  const std::string library =
      "MPICH Version:\t4.0.2\nMPICH Release date:\tx\nMPICH Device:\tch4:ofi\n";
  const auto none = [](const char*) -> const char* { return nullptr; };
  EXPECT_EQ(FabricOf(library, {}, none).library, "MPICH 4.0.2");
  EXPECT_EQ(FabricOf(library, {}, none).transports, "ch4:ofi");
  EXPECT_FALSE(FabricOf(library, {}, none).tcp);
  const auto sockets = [](const char* name) -> const char* {
    return std::strcmp(name, "FI_PROVIDER") == 0 ? "sockets" : nullptr;
  };
  EXPECT_TRUE(FabricOf(library, {}, sockets).tcp);
}

// As Linux and Lustre define them.
TEST(FileSystem, TypesHaveNames) {
  EXPECT_EQ(NameOfFileSystem(0x0BD00BD0), "lustre");
  EXPECT_EQ(NameOfFileSystem(0x47504653), "gpfs");
  EXPECT_EQ(NameOfFileSystem(0x19830326), "beegfs");
  EXPECT_EQ(NameOfFileSystem(0x6969), "nfs");
  EXPECT_EQ(NameOfFileSystem(0x1234), "type 0x1234");
  const FileSystem here = FileSystemOf("/dev/shm/not/there/yet");
  EXPECT_EQ(here.type, "tmpfs");
  EXPECT_FALSE(here.shared);
  EXPECT_EQ(here.identity, FileSystemOf("/dev/shm").identity);
}

template <typename T>
void Write(std::string& bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

TEST(FileSystem, StripingOfLustre) {
  std::string plain(32, '\0');
  Write<std::uint32_t>(plain, 0, 0x0BD10BD0);
  Write<std::uint32_t>(plain, 24, 4 << 20);
  Write<std::uint16_t>(plain, 28, 8);
  EXPECT_EQ(StripingOf(plain), "8 stripes of 4 MiB");
  Write<std::uint16_t>(plain, 28, 0xFFFF);
  EXPECT_EQ(StripingOf(plain), "stripes of 4 MiB over all servers");
  EXPECT_EQ(StripingOf(plain.substr(0, 20)), "");

  std::string composite(32 + 2 * 48, '\0');
  Write<std::uint32_t>(composite, 0, 0x0BD60BD0);
  Write<std::uint16_t>(composite, 14, 2);
  Write<std::uint32_t>(composite, 32 + 48 + 24, static_cast<std::uint32_t>(composite.size()));
  Write<std::uint32_t>(composite, 32 + 48 + 28, 32);
  Write<std::uint16_t>(plain, 28, 1);
  EXPECT_EQ(StripingOf(composite + plain), "2 components, the last with 1 stripe of 4 MiB");
  Write<std::uint32_t>(composite, 32 + 48 + 24, 0xFFFFFF00U);
  EXPECT_EQ(StripingOf(composite + plain), "");
  Write<std::uint16_t>(composite, 14, 0xFFFF);
  EXPECT_EQ(StripingOf(composite), "");
}

TEST(Ranges, OfNumbers) {
  EXPECT_EQ(RangesOf(std::vector<int>{0, 1, 2, 8, 10, 11}), "0-2,8,10-11");
  EXPECT_EQ(RangesOf(std::vector<int>{}), "");
}

// Judgements from findings: tallies, bindings, tournaments, slow nodes, a bounded report.

TEST(Tally, IsBoundedWhateverTheNumberOfRanks) {
  Tally all;
  for (int rank = 0; rank < 10'000; ++rank) {
    Tally one;
    one.Add("same", "the text\twith a tab", rank);
    one.Add("own", "text of " + std::to_string(rank), rank);
    all.Merge(Tally::Unpack(one.Pack()));
  }
  EXPECT_LT(all.Pack().size(), 4096U);
  ASSERT_THAT(all.Of("same"), SizeIs(1));
  EXPECT_EQ(all.Of("same")[0].count, 10'000);
  EXPECT_EQ(all.Of("same")[0].text, "the text with a tab");
  EXPECT_THAT(all.Of("same")[0].ranks, testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  ASSERT_THAT(all.Of("own"), SizeIs(Tally::kMostTexts + 1));
  std::int64_t sum = 0;
  for (const Tally::Said& said : all.Of("own")) sum += said.count;
  EXPECT_EQ(sum, 10'000);
}

TEST(Binding, SaysWhoSharesWhat) {
  const std::vector<int> online = {0, 1, 2, 3, 4, 5, 6, 7}, ones = {1, 1};
  const Binding good = BindingOf({{0, 1, 2, 3}, {4, 5, 6, 7}}, std::vector<int>{4, 4}, online);
  EXPECT_EQ(good.text, "2 ranks on 4 cores each, 4 threads each");
  EXPECT_THAT(good.overlap + good.crowded + good.idle, IsEmpty());
  const Binding part = BindingOf({{0, 1, 2, 3, 4}, {4, 5, 6, 7}}, ones, online);
  EXPECT_THAT(part.overlap, HasSubstr("ranks 0 and 1 of a node share cores 4"));
  const Binding one_core = BindingOf({{0}, {0}}, ones, online);
  EXPECT_EQ(one_core.text, "2 ranks on cores 0 together, 1 thread each");
  EXPECT_THAT(one_core.overlap, IsEmpty());
  EXPECT_THAT(one_core.crowded, HasSubstr("2 threads"));
  EXPECT_THAT(one_core.idle, HasSubstr("may use 1 of its 8 cores"));
}

TEST(Tournament, EachMeetsEachOtherOnce) {
  for (const int players : {2, 3, 4, 7, 8, 15, 16}) {
    std::set<std::pair<int, int>> met;
    for (int round = 0; round < Rounds(players); ++round) {
      for (int self = 0; self < players; ++self) {
        const int other = Partner(self, round, players);
        if (other < 0) continue;
        ASSERT_NE(other, self);
        ASSERT_EQ(Partner(other, round, players), self) << players << " players, round " << round;
        if (self < other) {
          EXPECT_TRUE(met.insert({self, other}).second);
        }
      }
    }
    EXPECT_EQ(static_cast<int>(met.size()), players * (players - 1) / 2);
  }
  EXPECT_THAT(ChosenRounds(1), IsEmpty());
  EXPECT_THAT(ChosenRounds(4), SizeIs(3));
  EXPECT_THAT(ChosenRounds(100'000), SizeIs(16));
}

Report ReportOf(int nodes) {
  std::vector<std::string> names;
  Report report;
  for (int node = 0; node < nodes; ++node) {
    names.push_back("node" + std::to_string(node));
    Unit& unit = report.measured.units.emplace_back();
    unit.rank = unit.slowest = node;
    unit.values = {1e12, 2e11, 5e10, 1e11};
  }
  report.ranks = nodes;
  report.hosts = comm::Hosts(names);
  return report;
}

TEST(Slow, MoreThanFivePercentBelowTheMedian) {
  Report report = ReportOf(5);
  report.measured.units[1].values[0] = 0.951e12;
  EXPECT_THAT(FindSlow(report.measured.units), IsEmpty());
  report.measured.units[3].values[0] = 0.94e12;
  report.measured.units[2].values[1] = 1e11;
  const std::vector<std::string> told = SlowSentences(report, 8);
  ASSERT_THAT(told, SizeIs(2));
  EXPECT_EQ(told[0],
            "node3 (rank 3): matrix product, a rank 940 GFLOP/s, 6% below the median of 1000");
  EXPECT_EQ(told[1], "node2: memory 100 GB/s, 50% below the median of 200");
  report.measured.units[0].wrong = 1;
  EXPECT_THAT(SlowSentences(report, 8)[0], HasSubstr("node0: a matrix product is not finite"));
}

TEST(Slow, OfTwoTheSlower) {
  Report report = ReportOf(2);
  report.measured.units[0].values[2] = 4e10;
  ASSERT_THAT(FindSlow(report.measured.units), SizeIs(1));
  EXPECT_EQ(FindSlow(report.measured.units)[0].unit, 0U);
  EXPECT_THAT(SlowSentences(report, 8), SizeIs(1));
  // Of two ranks of one host none: nobody knows which is as it should be.
  report.measured.of_ranks = true;
  EXPECT_THAT(SlowSentences(report, 8), IsEmpty());
  EXPECT_THAT(LinesOf(report), testing::Contains(HasSubstr("messages in pairs")));
  EXPECT_THAT(LinesOf(report), testing::Not(testing::Contains(HasSubstr("network"))));
}

TEST(Report, IsBoundedForManyNodes) {
  Report report = ReportOf(10'000);
  for (std::size_t node = 0; node < 4000; ++node)
    report.measured.units[node].values[1] = 1e11 + node;
  for (int i = 0; i < 500; ++i) report.findings.warnings.push_back({"files", "a warning"});
  const std::vector<std::string> lines = LinesOf(report);
  EXPECT_LT(lines.size(), 50U);
  EXPECT_THAT(lines, testing::Contains(HasSubstr("slowest node0, fastest")));
  EXPECT_THAT(lines, testing::Contains(HasSubstr("and 3992 more: see slow in preflight.json")));
  EXPECT_THAT(JsonOf(report), HasSubstr("\"hosts\": 10000"));
}

}  // namespace
}  // namespace trireme::tools
