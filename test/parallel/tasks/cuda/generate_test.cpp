// Text from a key-value cache on GPUs, one a rank, against whole windows: on the CPU, and on the
// same GPUs without a cache. The same tokens and, in fp64, logits, in layouts of every kind.
#include <memory>

#include "../../comm/cuda/rank_gpu.hpp"
#include "generate_fixture.hpp"
#include "trireme/kernels/libraries.hpp"

namespace trireme::test {
namespace {

using tasks::Continuation;
using tasks::Generator;
using tasks::Prompt;

struct Layout {
  int ranks;
  const char* keys;
};
constexpr std::array kLayouts = {Layout{1, ""}, Layout{2, "tensor=2\n"}, Layout{2, "pipeline=2\n"},
                                 Layout{2, "sharding=parameters\n"},
                                 Layout{4, "tensor=2\npipeline=2\nsequence_parallel=yes\n"}};

class GenerateOnGpus : public RankGpuTest {
 protected:
  GenerateOnGpus() : tokens_(world_, SyntheticTokens()) {}
  void SetUp() override { Open(false); }

  train::EvaluationPlan PlanFor(const comm::Communicator& group, const std::string& text,
                                const device::Stream& stream, Dtype dtype,
                                std::int64_t slots) const {
    const deck::Deck deck = ParsedDeck(text);
    const app::DeckOptions options = app::ReadAll(deck);
    train::MachineFacts machine;
    machine.dtype = dtype;
    machine.stream = stream;
    machine.stream.threads = 1;
    const train::TokenFacts facts{.vocabulary = tokens_.VocabularySize(),
                                  .train = tokens_.Size(data::Split::kTrain),
                                  .source = "tokens in memory"};
    return train::MakeEvaluationPlan({options, deck, group.Size(), facts, machine}, 2, slots);
  }

  // body(model, planned memory) for a model that only writes; slots: 0 without a cache.
  template <typename Body>
  void With(const comm::Communicator& group, const std::string& text, device::Stream stream,
            Dtype dtype, std::int64_t slots, const Body& body) const {
    const train::EvaluationPlan plan = PlanFor(group, text, stream, dtype, slots);
    EXPECT_EQ(plan.model.cache_slots, slots);
    comm::ProcessGrid grid(group, plan.grid, plan.sharing);
    std::unique_ptr<kernels::Libraries> libraries;
    if (stream.OnGpu()) {
      libraries = kernels::MakeLibraries(stream, 0);
      libraries->Seal();
      stream.libraries = libraries.get();
      grid.UseGpu(stream, false, 1);
    }
    model::ParallelModel net(grid, plan.model, stream);
    body(net, train::PlanMemory(plan, group.Rank()));
  }
  template <typename Body>
  void OnGpus(const char* model, const Layout& layout, Dtype dtype, std::int64_t slots,
              const Body& body) const {
    const bool member = world_.Rank() < layout.ranks;
    const comm::Communicator group = world_.Split(member ? 0 : 1, world_.Rank());
    SCOPED_TRACE(fmt::format("{}{} ranks, {}{} slots", model, layout.ranks, layout.keys, slots));
    if (member) With(group, DeckOf(model, layout.keys), Stream(), dtype, slots, body);
  }
  std::vector<std::optional<Continuation>> TextsOf(model::ParallelModel& net,
                                                   std::int64_t slots) const {
    Generator generator({.model = net, .tokens = tokens_, .slots = slots, .stopped = {}});
    return generator.Run(Prompts());
  }

  comm::Communicator self_ = comm::Communicator::Adopt(MPI_COMM_SELF);
  data::TokenFile tokens_;
};

TEST_F(GenerateOnGpus, ACacheGivesTheTextAndLogitsOfWholeWindows) {
  for (std::size_t i = 0; i < kModels.size(); ++i) {
    const char* const model = kModels[i];
    std::vector<Continuation> wanted;
    std::vector<std::vector<double>> logits;
    With(self_, DeckOf(model, ""), {}, Dtype::kFloat64, 0, [&](auto& net, const auto&) {
      for (const Prompt& prompt : Prompts()) wanted.push_back(Anew(net, prompt));
      logits = LogitsOfWindows(net);
    });
    // All layouts for one model; two for each other.
    for (const Layout& layout : kLayouts) {
      if (i > 0 && &layout != &kLayouts[0] && &layout != &kLayouts[i]) continue;
      OnGpus(model, layout, Dtype::kFloat64, 4, [&](auto& net, const auto&) {
        ExpectTexts(TextsOf(net, 4), wanted, net.Grid());
        // The slots hold an earlier text now.
        ExpectLogits(LogitsFromCache(net), logits, net.Grid());
      });
    }
  }
}

// On the same GPUs.
TEST_F(GenerateOnGpus, WithoutACacheTheTextIsTheSame) {
  const Layout& layout = kLayouts[1];
  std::vector<Continuation> wanted;
  OnGpus(kModels[2], layout, Dtype::kFloat64, 0, [&](auto& net, const auto&) {
    for (const auto& text : TextsOf(net, 2)) wanted.push_back(text.value());
  });
  OnGpus(kModels[2], layout, Dtype::kFloat64, 2,
         [&](auto& net, const auto&) { ExpectTexts(TextsOf(net, 2), wanted, net.Grid()); });
}

// Logits of other types within their rounding of those of whole windows.
TEST_F(GenerateOnGpus, OtherTypesRoundAlike) {
  for (const auto& [dtype, tolerance] :
       {std::pair(Dtype::kFloat32, 1e-5), {Dtype::kBfloat16, 0.1}}) {
    for (const char* model : kModels) {
      OnGpus(model, kLayouts[1], dtype, 3, [&, limit = tolerance](auto& net, const auto&) {
        const std::vector<std::vector<double>> wanted = LogitsOfWindows(net);
        const std::vector<double> got = LogitsFromCache(net);
        double largest = 0, difference = 0;
        for (std::size_t i = 0; i < got.size(); ++i) {
          const double want = wanted[i / kVocabulary][i % kVocabulary];
          largest = std::max(largest, std::abs(want));
          const double d = std::abs(got[i] - want);
          if (!(d <= difference)) difference = d;  // NaN stays
        }
        EXPECT_LE(difference, limit * largest);
      });
    }
  }
}

// The cache is planned memory of the device, and text takes no more.
TEST_F(GenerateOnGpus, MemoryIsAsPlanned) {
  for (const Layout& layout : {kLayouts.front(), kLayouts.back()}) {
    OnGpus(kModels[0], layout, Dtype::kFloat32, 3, [&](auto& net, const auto& planned) {
      const device::MemoryTerms memory = net.Memory();
      // Keys and values of this rank's heads and layers: rows of 8 for heads of 3.
      const std::int64_t heads = 2 / net.Grid().Shape().tensor;
      const std::int64_t bytes = 2 * heads * 8 * kWindow * 3 * 4;
      EXPECT_GE(memory.key_value_cache, 2 * bytes);
      EXPECT_EQ(memory.key_value_cache, planned.key_value_cache);
      const std::int64_t before = device::AllocatedBytes();
      device::ResetPeakAllocatedBytes();
      TextsOf(net, 3);
      EXPECT_EQ(device::PeakAllocatedBytes(), before);
    });
  }
}

}  // namespace
}  // namespace trireme::test
