// Cores of a process, their order, and threads bound to them.
#include "trireme/device/cores.hpp"

#include <gtest/gtest.h>
#include <omp.h>
#include <sched.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

namespace trireme::device {
namespace {

namespace fs = std::filesystem;

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

}  // namespace
}  // namespace trireme::device
