// Each wait between the queue of input and the computation is needed: left out, some order of the
// queues shows it.
#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "emulator/mutation.hpp"
#include "emulator/stream.hpp"
#include "gpu_testing.hpp"
#include "staged_testing.hpp"

namespace trireme::test {
namespace {

using emulator::Mutation;
constexpr unsigned long long kSeeds = 8;
constexpr std::int32_t kStagedOrdersSteps = 4;

class StagedOrders : public GpuTest {
 protected:
  // A few steps as training has them; whether the computation saw what it should have, though it
  // looked late: what it sees is copied within the queue, and read at the end. The computation is
  // behind the host, or, `ahead`, done before the host stages the next batch.
  bool Right(unsigned long long seed, bool ahead) {
    emulator::SetSeed(seed);
    model::StagedBatches staged(Stream(), kStagedLimits);
    std::vector<Batches> all;
    for (std::int32_t step = 0; step <= kStagedOrdersSteps; ++step) {
      all.push_back(NumberedBatches(step + 1, {4, 2}));
    }
    const auto bytes = static_cast<std::int64_t>(all[0][1].inputs.size() * sizeof(std::int32_t));
    std::vector<device::PinnedBuffer> seen;
    const auto look = [&] {
      seen.push_back(device::AllocatePinned(bytes, device::Kind::kCuda));
      device::StartCopyOut(Stream(), staged.At(1).inputs, seen.back().get(), bytes);
    };
    std::optional<model::StagedBatches::Staged> ticket = staged.Stage(all[0]);
    for (std::size_t step = 0; step < kStagedOrdersSteps; ++step) {
      staged.Open(staged.Take(std::move(*ticket)));
      look();
      if (ahead) Synchronise();
      ticket = staged.Stage(all[step + 1]);
    }
    device::Event last(Stream());
    last.Record(Stream().gpu->input_queue);
    last.Await();
    Synchronise();
    bool right = true;
    for (std::size_t step = 0; step < kStagedOrdersSteps; ++step) {
      const auto* const got = static_cast<const std::int32_t*>(seen[step].get());
      right = right && std::equal(all[step][1].inputs.begin(), all[step][1].inputs.end(), got);
    }
    return right;
  }
};

TEST_F(StagedOrders, RightInAnyOrder) {
  for (unsigned long long seed = 1; seed <= kSeeds; ++seed) {
    EXPECT_TRUE(Right(seed, false)) << seed;
    EXPECT_TRUE(Right(seed, true)) << seed;
  }
}

TEST_F(StagedOrders, EveryWaitIsNeeded) {
  emulator::Omit(Mutation::kWait, -1);
  EXPECT_TRUE(Right(1, false));
  const std::int64_t waits = emulator::CountSince(Mutation::kWait);
  EXPECT_GE(waits, 2 * kStagedOrdersSteps - 1);
  for (std::int64_t omitted = 0; omitted < waits; ++omitted) {
    int caught = 0;
    for (unsigned long long seed = 1; seed <= kSeeds; ++seed) {
      for (const bool ahead : {false, true}) {
        emulator::Omit(Mutation::kWait, omitted);
        caught += Right(seed, ahead) ? 0 : 1;
      }
    }
    EXPECT_GT(caught, 0) << "wait " << omitted << " of " << waits;
  }
  emulator::Omit(Mutation::kWait, -1);
}

}  // namespace
}  // namespace trireme::test
