// A rank that is lost in the middle of a run: the others end with a message that names the group,
// within seconds.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "rank_gpu.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/process_grid.hpp"

namespace trireme::comm {
namespace {

class LostRankTest : public test::RankGpuTest {
 protected:
  void SetUp() override { Open(false); }
};

TEST_F(LostRankTest, IsNamedWithinSeconds) {
  // Before the process's first operation: making the channel of a group is one.
  setenv("TRIREME_EMULATOR_NCCL_FAIL", "1:4", 1);
  constexpr double kPatience = 20;  // seconds
  ProcessGrid grid(world_, {.pipeline = 1, .data = world_.Size(), .context = 1, .tensor = 1});
  grid.UseGpu(Stream(), false, 1);
  const Collectives transfers = grid.Over(Group::kData);
  const device::Buffer memory = device::AllocateZeroed(400, device::Kind::kCuda);
  device::Event end(Stream());
  std::string message;
  const double start = Seconds();
  int sums = 0;
  try {
    // As a run does: work is queued, and the end of it polled with the channels' health.
    while (Seconds() - start < kPatience) {
      transfers.AllReduce(Dtype::kFloat32, memory.get(), 100);
      end.Record(Stream().gpu->queue);
      while (!end.Happened() && Seconds() - start < kPatience) grid.CheckHealth();
      ++sums;
    }
  } catch (const Error& error) {
    message = error.what();
    EXPECT_EQ(error.Code(), ExitCode::kFailed);
  }
  EXPECT_LT(Seconds() - start, kPatience / 2);
  // The lost rank's operations: one to connect, and these. Others may hear of the loss before they
  // see the end of the second.
  EXPECT_LE(sums, 2);
  EXPECT_GE(sums, world_.Rank() == 1 ? 2 : 1);
  EXPECT_EQ(message.rfind("NCCL, data group: ", 0), 0U) << message;
  if (world_.Rank() != 1) {
    EXPECT_NE(message.find("remote process exited or there was a network error"), std::string::npos)
        << message;
    EXPECT_NE(message.find("A rank of this group stopped"), std::string::npos) << message;
  }
  // No wait for a transfer that cannot end any more, and no new one started.
  device::Synchronise(Stream());
  EXPECT_THROW(transfers.AllReduce(Dtype::kFloat32, memory.get(), 100), Error);
  EXPECT_THROW(grid.CheckHealth(), Error);
}

}  // namespace
}  // namespace trireme::comm
