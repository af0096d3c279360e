// What only the emulator can show of a training: orders, and allocations of a step.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "emulator/settings.hpp"
#include "emulator/stream.hpp"
#include "gpu_testing.hpp"
#include "one_rank.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::test {
namespace {

using emulator::Mutation;

// The steady state of training, as the emulator can see it: no memory is taken between two steps,
// and no order of the queues changes a bit.

// Places of the next allocations: addresses are never used again, so that they move on by the same
// distance unless something was allocated in between.
struct Places {
  std::uintptr_t device = 0, pinned = 0;
  bool operator==(const Places&) const = default;
};
Places Probe() {
  void* device = nullptr;
  void* pinned = nullptr;
  EXPECT_EQ(cudaMalloc(&device, 16), cudaSuccess);
  EXPECT_EQ(cudaMallocHost(&pinned, 16), cudaSuccess);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
  return {reinterpret_cast<std::uintptr_t>(device), reinterpret_cast<std::uintptr_t>(pinned)};
}
Places Between(const Places& earlier, const Places& later) {
  return {later.device - earlier.device, later.pinned - earlier.pinned};
}

struct SteadyStateCase {
  const char* name;
  const char* model;
  Dtype dtype;
  bool graphs;
};
constexpr SteadyStateCase kSteadyStateCases[] = {
    {"Course", kCourse, Dtype::kFloat32, false},
    {"CourseBf16Graphs", kCourse, Dtype::kBfloat16, true},
    {"LlamaBf16", kLlama, Dtype::kBfloat16, false},
    {"LlamaGraphs", kLlama, Dtype::kFloat32, true}};

class SteadyState : public TrainingOnGpu, public testing::WithParamInterface<SteadyStateCase> {};

TEST_P(SteadyState, TakesNoMemory) {
  OneRank run = OnCard(DeckOf(GetParam().model), GetParam().dtype, GetParam().graphs);
  // An epoch, with its short batch, an evaluation, and what is recorded behind that.
  run.Train(kStepsAnEpoch);
  run.Evaluate(data::Split::kValid);
  run.Train(kStepsAnEpoch + 2);
  const std::int64_t allocated = device::AllocatedBytes();
  const Places first = Probe(), second = Probe();
  const Places nothing = Between(first, second);
  Places last = second;
  for (std::int64_t step = kStepsAnEpoch + 3; step <= 3 * kStepsAnEpoch; ++step) {
    run.Train(step);
    EXPECT_EQ(device::AllocatedBytes(), allocated) << step;
    const Places now = Probe();
    EXPECT_EQ(Between(last, now), nothing) << step;
    last = now;
  }
  run.Evaluate(data::Split::kValid);
  EXPECT_EQ(device::AllocatedBytes(), allocated);
  EXPECT_EQ(Between(last, Probe()), nothing);
}

// The probe itself.
TEST_F(TrainingOnGpu, AnAllocationIsSeen) {
  const Places first = Probe(), second = Probe();
  device::AllocateZeroed(1, device::Kind::kCuda);
  const Places third = Probe();
  device::AllocatePinned(1, device::Kind::kCuda);
  const Places fourth = Probe();
  const Places nothing = Between(first, second);
  EXPECT_NE(Between(second, third).device, nothing.device);
  EXPECT_EQ(Between(second, third).pinned, nothing.pinned);
  EXPECT_NE(Between(third, fourth).pinned, nothing.pinned);
}

TEST_P(SteadyState, NoOrderChangesABit) {
  std::vector<double> losses;
  Tensors state;
  for (unsigned long long seed = 1; seed <= 4; ++seed) {
    emulator::SetSeed(seed);
    OneRank run = OnCard(DeckOf(GetParam().model), GetParam().dtype, GetParam().graphs);
    const std::vector<double> got = run.Train(kStepsAnEpoch + 2);
    const double evaluated = run.Evaluate(data::Split::kValid);
    if (seed == 1) {
      losses = got;
      losses.push_back(evaluated);
      state = run.State();
      continue;
    }
    EXPECT_EQ(got, std::vector<double>(losses.begin(), losses.end() - 1)) << seed;
    EXPECT_EQ(evaluated, losses.back()) << seed;
    EXPECT_EQ(run.State(), state) << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SteadyState, testing::ValuesIn(kSteadyStateCases),
                         [](const auto& info) { return std::string(info.param.name); });

// Each wait between the queue of input and the computation is needed: left out, some order of the
// queues shows it.

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
