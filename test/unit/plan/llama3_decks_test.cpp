// The decks input/llama3_*.in: each layout that a deck's comments state is planned for GPUs of 80
// GB in bf16, and the largest rank fits.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "plan_of.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/device/options.hpp"
#include "trireme/train/plan.hpp"

namespace trireme::test {
namespace {

constexpr std::int64_t kGib = std::int64_t{1} << 30;
// Of the 79.2 GiB that an H100 with 80 GB shows: the rest is for CUDA's context, NCCL and cuDNN.
constexpr std::int64_t kUsable = 74 * kGib;

struct StatedLayout {
  int gpus = 0;
  std::vector<std::string> keys;
};

std::string TextOf(const std::string& name) {
  std::ifstream file(std::string(TRIREME_SOURCE) + "/input/" + name);
  EXPECT_TRUE(file) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

// From the comments: "#    64 GPUs: grid.tensor=4 model.recompute=full".
std::vector<StatedLayout> LayoutsIn(const std::string& text) {
  static const std::regex line("# +([0-9]+) GPUs: (.*)");
  std::vector<StatedLayout> layouts;
  std::istringstream lines(text);
  for (std::string one; std::getline(lines, one);) {
    std::smatch found;
    if (!std::regex_match(one, found, line)) continue;
    std::istringstream keys(found[2]);
    layouts.push_back({std::stoi(found[1]), {std::istream_iterator<std::string>(keys), {}}});
  }
  return layouts;
}

train::Plan PlanOnGpus(const std::string& text, const StatedLayout& layout,
                       const device::Gpu& gpu) {
  const deck::Deck deck = ParsedDeck(text, layout.keys);
  const app::DeckOptions options = app::ReadAll(deck);
  const device::Arithmetic arithmetic = device::ArithmeticOf(options.machine.precision, true);
  train::MachineFacts facts;
  facts.dtype = arithmetic.dtype;
  facts.stream.gpu = &gpu.Context();
  const train::TokenFacts tokens{
      .vocabulary = options.plan.vocabulary, .train = options.plan.tokens, .source = "plan.tokens"};
  return train::MakePlan({options, deck, layout.gpus, tokens, facts, options.checkpoint.async});
}

class Llama3Plans : public testing::Test {
 protected:
  const device::Gpu gpu_{device::GpuContext{.name = "NVIDIA H100 80GB HBM3",
                                            .major = 9,
                                            .multiprocessors = 132,
                                            .shared_bytes = 232'448,
                                            .memory_bytes = 85'014'347'776}};
};

class Llama3Decks : public Llama3Plans, public testing::WithParamInterface<const char*> {};

TEST_P(Llama3Decks, StatedLayoutsFitInGpusOf80Gb) {
  const std::string text = TextOf(fmt::format("llama3_{}.in", GetParam()));
  const std::vector<StatedLayout> layouts = LayoutsIn(text);
  ASSERT_GE(layouts.size(), 3U);
  EXPECT_EQ(layouts.back().gpus, 512);
  for (const StatedLayout& layout : layouts) {
    SCOPED_TRACE(fmt::format("{} GPUs", layout.gpus));
    const train::Plan plan = PlanOnGpus(text, layout, gpu_);
    EXPECT_EQ(plan.grid.Ranks(), layout.gpus);
    EXPECT_EQ(plan.training.model.dtype, Dtype::kBfloat16);
    const device::MemoryTerms memory = train::PlanKinds(plan).front().memory;
    EXPECT_LT(memory.Total(), kUsable) << static_cast<double>(memory.Total()) / kGib << " GiB";
    // Nothing is left out: state of 16 bytes a parameter, shared out at best by all.
    const std::int64_t parameters = model::ParameterCount(plan.training.model.options);
    EXPECT_GT(memory.Total(), 16 * parameters / layout.gpus);
    RecordProperty(fmt::format("gib_{}", layout.gpus), static_cast<int>(memory.Total() / kGib));
  }
}

// The complaint about a layout that does not fit: all of 8 billion parameters on each GPU.
TEST_P(Llama3Decks, ALayoutThatDoesNotFitIsSeen) {
  if (std::string(GetParam()) == "1b") GTEST_SKIP() << "fits in one GPU";
  const std::string text = TextOf(fmt::format("llama3_{}.in", GetParam()));
  const train::Plan plan = PlanOnGpus(text, {8, {"grid.sharding=none"}}, gpu_);
  EXPECT_GT(train::PlanKinds(plan).front().memory.Total(), kUsable);
}

// As the deck says: 16 GPUs are too few for 70 billion parameters, however they share them.
TEST_F(Llama3Plans, SeventyBillionNeed32Gpus) {
  const std::string text = TextOf("llama3_70b.in");
  const std::string common = "grid.tensor=8 grid.sequence_parallel=yes model.recompute=full ";
  for (const char* more : {"grid.sharding=parameters", "grid.pipeline=2", "grid.context=2"}) {
    std::istringstream keys(common + more);
    const train::Plan plan =
        PlanOnGpus(text, {16, {std::istream_iterator<std::string>(keys), {}}}, gpu_);
    EXPECT_GT(train::PlanKinds(plan).front().memory.Total(), kUsable) << more;
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, Llama3Decks, testing::Values("1b", "3b", "8b", "70b"),
                         [](const auto& info) { return std::string("Of") + info.param; });

}  // namespace
}  // namespace trireme::test
