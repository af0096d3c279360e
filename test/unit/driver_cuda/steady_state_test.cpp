// The steady state of training, as the emulator can see it: no memory is taken between two steps,
// and no order of the queues changes a bit.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "emulator/stream.hpp"
#include "one_rank.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::test {
namespace {

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

}  // namespace
}  // namespace trireme::test
