// Processors that control groups allow, from trees like /proc and /sys/fs/cgroup.
#include "trireme/device/cores.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "temporary_folder.hpp"

namespace trireme::device {
namespace {

class CpuQuotaTest : public testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = folder_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void WriteGroup1(const std::string& path, const char* quota, const char* period) {
    Write("cgroup/cpu" + path + "/cpu.cfs_quota_us", quota);
    Write("cgroup/cpu" + path + "/cpu.cfs_period_us", period);
  }
  double Quota() const { return CpuQuota(folder_ / "proc", folder_ / "cgroup"); }

  test::TemporaryFolder folder_;
};

TEST_F(CpuQuotaTest, NoFilesOrNoLimitIsNone) {
  EXPECT_EQ(Quota(), 0);
  Write("proc/self/cgroup", "0::/job\n4:cpu,cpuacct:/job\n");
  Write("cgroup/job/cpu.max", "max 100000\n");
  WriteGroup1("/job", "-1\n", "100000\n");
  EXPECT_EQ(Quota(), 0);
}

TEST_F(CpuQuotaTest, TheTightestOfNestedGroupsCounts) {
  Write("proc/self/cgroup", "0::/slice/job\n");
  Write("cgroup/slice/job/cpu.max", "150000 100000\n");
  EXPECT_EQ(Quota(), 1.5);
  Write("cgroup/slice/cpu.max", "20000 20000\n");
  EXPECT_EQ(Quota(), 1);
  // A container shows its group at the root, and names one that is not there.
  Write("proc/self/cgroup", "0::/docker/abc\n");
  Write("cgroup/cpu.max", "250000 100000\n");
  EXPECT_EQ(Quota(), 2.5);
}

TEST_F(CpuQuotaTest, GroupsOfVersion1) {
  Write("proc/self/cgroup", "6:cpu,cpuacct:/job\n5:cpuset:/other\n");
  WriteGroup1("/job", "300000\n", "100000\n");
  WriteGroup1("/other", "100000\n", "100000\n");
  EXPECT_EQ(Quota(), 3);
  WriteGroup1("", "200000\n", "100000\n");
  EXPECT_EQ(Quota(), 2);
}

}  // namespace
}  // namespace trireme::device
