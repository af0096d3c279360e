// Memory that a process may still take, from trees like /proc and /sys/fs/cgroup, and the refusal
// of more.
#include "trireme/comm/node_memory.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "temporary_folder.hpp"
#include "training_run.hpp"
#include "trireme/base/error.hpp"

namespace trireme::test {
namespace {

using testing::HasSubstr;
using testing::Not;

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
