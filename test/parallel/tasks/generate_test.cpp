// Text from a key-value cache against whole windows computed anew for every token: the same tokens
// and, in fp64, logits, in every layout that holds the model, for prompts of any length at once.
#include "generate_fixture.hpp"
#include "trireme/tasks/tasks.hpp"

namespace trireme::test {
namespace {

using tasks::Continuation;
using tasks::End;
using tasks::Generator;
using tasks::Prompt;

struct GenerateLayout {
  int ranks;
  const char* keys;
};
constexpr std::array kGenerateLayouts = {
    GenerateLayout{1, ""},
    GenerateLayout{2, "tensor=2\n"},
    GenerateLayout{2, "tensor=2\nsequence_parallel=yes\n"},
    GenerateLayout{2, "pipeline=2\n"},
    GenerateLayout{4, "tensor=2\npipeline=2\n"},
    GenerateLayout{2, "data=2\n"},
    GenerateLayout{3, "data=3\n"},
    GenerateLayout{2, "sharding=parameters\n"},
    GenerateLayout{4, "sharding=parameters\nshard_group=2\nprefetch=0\n"},
    GenerateLayout{8, "tensor=2\npipeline=2\nsequence_parallel=yes\nsharding=parameters\n"},
    GenerateLayout{4, "pipeline=2\n[pipeline]\nschedule=interleaved\nchunks=2\n"},
    GenerateLayout{4, "context=2\n"}};

class GenerateTest : public LayoutTest {
 protected:
  GenerateTest() : LayoutTest(SyntheticTokens()) {}

  // A model that only writes, on the group's ranks; slots: 0 without a cache.
  template <typename Body>
  void With(const comm::Communicator& group, const char* model, const GenerateLayout& layout,
            std::int64_t slots, const Body& body, bool packs = false) {
    RunSettings settings =
        SettingsOf(DeckOf(model, layout.keys), tokens_, group.Size(), Dtype::kFloat64);
    settings.model.training = false;
    settings.model.leaves = 1;
    settings.model.micro_batch = 2;
    settings.model.cache_slots = settings.grid->context > 1 ? 0 : slots;
    settings.model.pack_weights = packs && settings.model.cache_slots > 1 &&
                                  settings.options.sharding != comm::Sharding::kParameters;
    const comm::ProcessGrid grid(group, *settings.grid, settings.options);
    model::ParallelModel net(grid, settings.model, settings.stream);
    net.Inference().PackWeights();
    body(net);
  }
};

TEST_F(GenerateTest, ACacheGivesTheTextOfWholeWindows) {
  const std::vector<Prompt> prompts = Prompts();
  int turn = 0;
  for (const char* model : kModels) {
    std::vector<Continuation> wanted;
    With(self_, model, kGenerateLayouts[0], 0, [&](model::ParallelModel& net) {
      for (const Prompt& prompt : prompts) wanted.push_back(Anew(net, prompt));
    });
    for (const GenerateLayout& layout : kGenerateLayouts) {
      const bool packs = ++turn % 2 == 0;
      const bool member = world_.Rank() < layout.ranks;
      const comm::Communicator group = world_.Split(member ? 0 : 1, world_.Rank());
      if (!member) continue;
      for (const std::int64_t slots : {1, 4}) {
        SCOPED_TRACE(
            fmt::format("{}{} ranks, {}{} slots", model, layout.ranks, layout.keys, slots));
        With(
            group, model, layout, slots,
            [&](model::ParallelModel& net) {
              Generator generator({.model = net, .tokens = tokens_, .slots = slots, .stopped = {}});
              ExpectTexts(generator.Run(prompts), wanted, net.Grid());
              // The slots hold an earlier text now.
              ExpectTexts(generator.Run(prompts), wanted, net.Grid());
            },
            packs);
      }
    }
  }
}

// Logits themselves, of prompts of different lengths in one pass and of one token more each.
TEST_F(GenerateTest, ACacheGivesTheLogitsOfWholeWindows) {
  const comm::Communicator group = world_.Split(world_.Rank() / 4, world_.Rank());
  for (const char* model : kModels) {
    std::vector<std::vector<double>> wanted;
    With(self_, model, kGenerateLayouts[0], 0,
         [&](model::ParallelModel& net) { wanted = LogitsOfWindows(net); });
    std::vector<double> plain;  // without packed weights
    for (const bool packs : {false, true}) {
      With(
          group, model, {4, "tensor=2\npipeline=2\n"}, 3,
          [&](model::ParallelModel& net) {
            const std::vector<double> got = LogitsFromCache(net);
            ExpectLogits(got, wanted, net.Grid());
            if (plain.empty()) plain = got;
            EXPECT_EQ(got, plain) << "packed weights change bits";
          },
          packs);
    }
  }
}

// Canonical: the bits of logits depend neither on the layout nor on the cache.
TEST_F(GenerateTest, CanonicalLogitsHaveTheSameBitsWithACache) {
  constexpr const char* kCanonical = "[run]\ncanonical=2x2\ncanonical_leaf=1\n";
  const std::vector<std::int32_t> ids = {0, 5, 17, 3, 42, 8, 9};
  std::vector<std::vector<double>> wanted;  // from the third token on
  With(self_, kModels[0], {1, kCanonical}, 0, [&](model::ParallelModel& net) {
    for (std::size_t size = 3; size <= ids.size(); ++size) {
      wanted.push_back(net.Inference().Logits(Window({ids.begin(), ids.begin() + size}), size - 1));
    }
  });
  const std::string layout = std::string("data=2\ntensor=2\npipeline=2\n") + kCanonical;
  With(world_, kModels[0], {8, layout.c_str()}, 2, [&](model::ParallelModel& net) {
    for (std::size_t size = 3; size <= ids.size(); ++size) {
      const auto last = static_cast<std::int32_t>(size - 1);
      const bool whole = size == 3;
      const data::Entry entry =
          whole ? Window({ids.begin(), ids.begin() + 3})
                : net.Inference().ContinuedEntry({&ids[size - 1], 1}, {&last, 1});
      const model::CachedPlaces places{{1}, {whole ? 0 : last}, {whole ? 2 : 0}};
      const std::vector<double> got = net.Inference().CachedLogits({&entry, 1}, {&places, 1});
      if (!net.Grid().LastStage()) continue;
      EXPECT_EQ(got, wanted[size - 3]) << size;
    }
  });
}

// A text ends at an <eos> or a stop string, and the others go on.
TEST_F(GenerateTest, TextsEndWhereTheyAreTold) {
  std::vector<Prompt> prompts = Prompts();
  With(world_, kModels[0], {8, "data=2\ntensor=2\npipeline=2\n"}, 2,
       [&](model::ParallelModel& net) {
         Generator generator({.model = net, .tokens = tokens_, .slots = 2, .stopped = {}});
         for (Prompt& prompt : prompts) prompt.options.tokens = 9;
         const auto whole = generator.Run(prompts);
         for (std::size_t i = 0; i < prompts.size(); ++i) {
           if (!whole[i]) continue;
           EXPECT_EQ(tokens_.Decode(whole[i]->tokens),
                     whole[i]->text.substr(prompts[i].ids.empty() ? 0 : 1));
           // The fourth word, with the blank before it.
           prompts[i].options.stop = {fmt::format(" w{}", whole[i]->tokens[3])};
         }
         const auto cut = generator.Run(prompts);
         for (std::size_t i = 0; i < prompts.size(); ++i) {
           if (!whole[i]) continue;
           EXPECT_EQ(cut[i]->end, End::kStop) << i;
           const std::size_t at = whole[i]->text.find(prompts[i].options.stop[0]);
           EXPECT_EQ(cut[i]->text, whole[i]->text.substr(0, at)) << i;
           EXPECT_LE(cut[i]->tokens.size(), 4u) << i;
         }
       });
}

// All ranks end when one is asked to.
TEST_F(GenerateTest, OneRankThatIsAskedStopsAll) {
  const std::vector<Prompt> prompts = Prompts();
  With(world_, kModels[2], {8, "data=4\nsharding=parameters\npipeline=2\n"}, 2,
       [&](model::ParallelModel& net) {
         int turns = 0;
         Generator generator({.model = net, .tokens = tokens_, .slots = 2, .stopped = [&] {
                                return world_.Rank() == 5 && ++turns > 3;
                              }});
         generator.Run(prompts);
         EXPECT_TRUE(generator.Stopped());
       });
}

// The cache is planned: text takes no more memory than its plan says.
TEST_F(GenerateTest, MemoryIsAsPlanned) {
  const std::vector<Prompt> prompts = Prompts();
  const std::int64_t before = device::AllocatedBytes();
  device::ResetPeakAllocatedBytes();
  With(
      world_, kModels[0], {8, "data=2\ntensor=2\npipeline=2\n"}, 3,
      [&](model::ParallelModel& net) {
        const device::MemoryTerms memory = net.Memory();
        EXPECT_GT(memory.key_value_cache, 0);
        EXPECT_GT(memory.packed_weights, 0);
        EXPECT_EQ(device::AllocatedBytes() - before, memory.Total());
        Generator generator({.model = net, .tokens = tokens_, .slots = 3, .stopped = {}});
        generator.Run(prompts);
        EXPECT_EQ(device::PeakAllocatedBytes() - before, memory.Total());
      },
      true);
}

}  // namespace
}  // namespace trireme::test
