// Processors of this process: threads on them, and what control groups allow.
#include <gtest/gtest.h>
#include <omp.h>
#include <sched.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "folders.hpp"
#include "trireme/device/cores.hpp"

namespace trireme::device {
namespace {

namespace fs = std::filesystem;

// Cores of a process, their order, and threads bound to them.

// The numbers that the calling thread may run on.
std::vector<int> Allowed() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  std::vector<int> numbers;
  for (int number = 0; number < CPU_SETSIZE; ++number) {
    if (CPU_ISSET(number, &set)) numbers.push_back(number);
  }
  return numbers;
}

// Two packages of two cores; numbers go round the packages, second hardware threads come last.
TEST(Cores, ListsByPackageAndCore) {
  const fs::path root = fs::temp_directory_path() / ("cores" + std::to_string(getpid()));
  for (int number = 0; number < 8; ++number) {
    const fs::path folder = root / ("cpu" + std::to_string(number)) / "topology";
    fs::create_directories(folder);
    std::ofstream(folder / "physical_package_id") << number % 2 << '\n';
    std::ofstream(folder / "thread_siblings_list") << number % 4 << ',' << number % 4 + 4 << '\n';
  }
  const std::vector<int> all = {0, 1, 2, 3, 4, 5, 6, 7};
  const std::vector<HardwareThread> wanted = {{0, 0}, {4, 0}, {2, 2}, {6, 2},
                                              {1, 1}, {5, 1}, {3, 3}, {7, 3}};
  EXPECT_EQ(DescribeThreads(all, root.string()), wanted);
  fs::remove_all(root);
  const std::vector<int> unknown = {3, 7};
  EXPECT_EQ(DescribeThreads(unknown, root.string()), (std::vector<HardwareThread>{{3, 3}, {7, 7}}));
}

TEST(Cores, PinsEachThreadAndAgainWhenItIsNew) {
  const std::vector<int> usable = UsableNumbers();
  const int threads = 3;
  std::vector<int> numbers;
  for (std::size_t i = 0; i < threads; ++i) numbers.push_back(usable[i % usable.size()]);
  std::thread([&] {  // pinning ends with this thread
    for (int round = 0; round < 2; ++round) {
      ASSERT_TRUE(PinThreads(numbers));
      std::vector<std::vector<int>> allowed(threads);
#pragma omp parallel num_threads(threads)
      allowed[static_cast<std::size_t>(omp_get_thread_num())] = Allowed();
      for (std::size_t i = 0; i < threads; ++i) {
        EXPECT_EQ(allowed[i], std::vector<int>{numbers[i]}) << "thread " << i;
      }
      // A smaller team, in which OpenMP lets the third thread go.
#pragma omp parallel num_threads(2)
      EXPECT_LT(omp_get_thread_num(), 2);
    }
    BindThisThread(usable);
    EXPECT_EQ(Allowed(), usable);
  })
      .join();
  EXPECT_EQ(Allowed(), usable);
}

TEST(Cores, RefusalIsTold) {
  const std::vector<int> nowhere = {CPU_SETSIZE - 1};
  std::thread([&] { EXPECT_FALSE(PinThreads(nowhere)); }).join();
}

// Processors that control groups allow, from trees like /proc and /sys/fs/cgroup.

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
