// Text from a key-value cache against whole windows computed anew for every token: the same tokens
// and, in fp64, logits, in every layout that holds the model, for prompts of any length at once.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "generator.hpp"
#include "layout_fixture.hpp"
#include "sampling.hpp"
#include "trireme/driver/tasks.hpp"

namespace trireme::test {
namespace {

constexpr double kFp64 = 1e-11;  // relative: log-probabilities and logits
constexpr std::int64_t kWindow = 12;

using driver::Continuation;
using driver::End;
using driver::Generator;
using driver::Prompt;

// All kinds of positions, norms and heads.
constexpr std::array kModels = {
    "heads=4\nkv_heads=2\nhead_dim=3\ndim=12\nlayers=5\nffn=17\n",
    "heads=6\nkv_heads=6\nhead_dim=2\ndim=12\nlayers=4\nffn=17\nnorm_position=post\n"
    "activation=relu\nposition=sinusoidal\ntie_embeddings=no\nscale_embedding=yes\n",
    "heads=8\nkv_heads=1\nhead_dim=4\ndim=13\nlayers=7\nffn=19\nnorm=rmsnorm\n"
    "activation=swiglu\nposition=rope\nrope_theta=500000\nbias=no\n"};

struct Layout {
  int ranks;
  const char* keys;
};
constexpr std::array kLayouts = {
    Layout{1, ""},
    Layout{2, "tensor=2\n"},
    Layout{2, "tensor=2\nsequence_parallel=yes\n"},
    Layout{2, "pipeline=2\n"},
    Layout{4, "tensor=2\npipeline=2\n"},
    Layout{2, "data=2\n"},
    Layout{3, "data=3\n"},
    Layout{2, "sharding=parameters\n"},
    Layout{4, "sharding=parameters\nshard_group=2\nprefetch=0\n"},
    Layout{8, "tensor=2\npipeline=2\nsequence_parallel=yes\nsharding=parameters\n"},
    Layout{4, "pipeline=2\n[pipeline]\nschedule=interleaved\nchunks=2\n"},
    Layout{4, "context=2\n"}};

std::string DeckOf(const char* model, const std::string& layout) {
  return fmt::format(
      "[run]\nseed=11\n[data]\nsequence_length={}\nbatch=8\nmicro_batch=1\n[model]\n{}"
      "max_positions={}\ndropout=0.1\nattention_dropout=0.1\ninit_deviation=0.3\n[schedule]\n"
      "steps=5\nwarmup_steps=1\n[grid]\n{}",
      kWindow, model, kWindow, layout);
}

class GenerateTest : public LayoutTest {
 protected:
  GenerateTest() : LayoutTest(SyntheticTokens()) {}

  // Prompts that are empty, short, longer than the window and grow beyond it, each with its own way
  // of choosing.
  std::vector<Prompt> Prompts() const {
    std::vector<Prompt> prompts;
    for (std::int64_t i = 0; i < 9; ++i) {
      Prompt prompt{.number = i + (i > 5 ? std::int64_t{1} << 33 : 0),
                    .where = fmt::format("prompt {}", i),
                    .text = {},
                    .id = {},
                    .options = {}};
      for (std::int64_t k = 0; k < (i * i) % 17; ++k) {
        prompt.ids.push_back(static_cast<std::int32_t>((7 * k + 5 * i + 3) % kVocabulary));
      }
      prompt.options.tokens = 3 + 5 * i % 13;
      prompt.options.seed = static_cast<std::uint32_t>(i % 2);
      if (i % 3 == 0) prompt.options.temperature = 0;
      if (i == 4) prompt.options.top_k = 5;
      if (i == 5) prompt.options.repetition_penalty = 1.3;
      if (i == 7) prompt.options.top_p = 0.8;
      prompts.push_back(prompt);
    }
    return prompts;
  }

  // A model that only writes, on the group's ranks; slots: 0 without a cache.
  template <typename Body>
  void With(const comm::Communicator& group, const char* model, const Layout& layout,
            std::int64_t slots, const Body& body, bool packs = false) {
    RunSettings settings =
        SettingsOf(DeckOf(model, layout.keys), tokens_, group.Size(), Dtype::kFloat64);
    settings.model.training = false;
    settings.model.leaves = 1;
    settings.model.micro_batch = 2;
    settings.model.cache_slots = settings.grid->context > 1 ? 0 : slots;
    settings.model.thin_panels = packs && settings.model.cache_slots > 1 &&
                                 settings.options.sharding != comm::Sharding::kParameters;
    const comm::ProcessGrid grid(group, *settings.grid, settings.options);
    model::ParallelModel net(grid, settings.model, settings.stream);
    if (settings.model.thin_panels) net.PackWeights();
    body(net);
  }

  // The text of a prompt from whole windows.
  Continuation Anew(model::ParallelModel& net, const Prompt& prompt) const {
    Continuation text;
    std::vector<std::int32_t> ids = {0};
    ids.insert(ids.end(), prompt.ids.begin(), prompt.ids.end());
    while (std::ssize(text.tokens) < prompt.options.tokens) {
      std::vector<double> logits = net.Logits(Window(ids), SeenOf(ids) - 1);
      const std::vector<double> plain = logits;
      driver::Penalise(ids, prompt.options.repetition_penalty, logits);
      const std::int32_t next = driver::Choose(
          logits, prompt.options,
          driver::DrawOf(prompt.options.seed, prompt.number, std::ssize(text.tokens)));
      text.log_probability += driver::LogProbability(plain, next);
      ids.push_back(next);
      text.tokens.push_back(next);
    }
    return text;
  }
  static std::int64_t SeenOf(const std::vector<std::int32_t>& ids) {
    return std::min(kWindow, std::ssize(ids));
  }
  static data::Entry Window(const std::vector<std::int32_t>& ids) {
    data::Entry entry;
    entry.sequences = 1;
    entry.length = SeenOf(ids);
    entry.inputs.assign(ids.end() - entry.length, ids.end());
    entry.targets.assign(entry.inputs.size(), data::kMasked);
    entry.ordinals = {0};
    return entry;
  }

  void ExpectTexts(const std::vector<std::optional<Continuation>>& got,
                   const std::vector<Continuation>& wanted, const comm::ProcessGrid& grid) {
    ASSERT_EQ(got.size(), wanted.size());
    const auto step = static_cast<std::size_t>(grid.Shape().data);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const bool mine = i % step == static_cast<std::size_t>(grid.Coordinates().data);
      ASSERT_EQ(got[i].has_value(), mine) << i;
      if (!mine) continue;
      EXPECT_EQ(got[i]->tokens, wanted[i].tokens) << i;
      EXPECT_EQ(got[i]->end, End::kLength) << i;
      EXPECT_NEAR(got[i]->log_probability, wanted[i].log_probability,
                  kFp64 * std::abs(wanted[i].log_probability))
          << i;
    }
  }
};

TEST_F(GenerateTest, ACacheGivesTheTextOfWholeWindows) {
  const std::vector<Prompt> prompts = Prompts();
  int turn = 0;
  for (const char* model : kModels) {
    std::vector<Continuation> wanted;
    With(self_, model, kLayouts[0], 0, [&](model::ParallelModel& net) {
      for (const Prompt& prompt : prompts) wanted.push_back(Anew(net, prompt));
    });
    for (const Layout& layout : kLayouts) {
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
  std::vector<std::vector<std::int32_t>> ids = {{0, 5, 17, 3}, {0, 99}, {0, 1, 2, 3, 4, 5, 6}};
  for (const char* model : kModels) {
    std::vector<std::vector<double>> wanted;  // of the last position, then of each next token
    With(self_, model, kLayouts[0], 0, [&](model::ParallelModel& net) {
      for (const bool next : {false, true}) {
        for (std::vector<std::int32_t> sequence : ids) {
          if (next) sequence.push_back(42);
          wanted.push_back(net.Logits(Window(sequence), SeenOf(sequence) - 1));
        }
      }
    });
    std::vector<double> plain;  // without packed weights
    const auto compare = [&](model::ParallelModel& net) {
      std::array<data::Entry, 2> whole;
      std::array<model::CachedPlaces, 2> places;
      for (std::size_t entry = 0; entry < 2; ++entry) {  // two sequences, then one
        const std::size_t first = 2 * entry, end = entry == 0 ? 2 : 3;
        whole[entry].sequences = static_cast<std::int64_t>(end - first);
        whole[entry].length = 7;
        for (std::size_t i = first; i < end; ++i) {
          std::vector<std::int32_t> padded = ids[i];
          padded.resize(7, 77);
          whole[entry].inputs.insert(whole[entry].inputs.end(), padded.begin(), padded.end());
          whole[entry].ordinals.push_back(0);
          places[entry].slots.push_back(static_cast<std::int32_t>(2 - i));
          places[entry].firsts.push_back(0);
          places[entry].asked.push_back(static_cast<std::int64_t>(i - first) * 7 +
                                        std::ssize(ids[i]) - 1);
        }
        whole[entry].targets.assign(whole[entry].inputs.size(), data::kMasked);
      }
      std::vector<double> got = net.CachedLogits(whole, places);
      const std::vector<std::int32_t> tokens(3, 42), positions = {4, 2, 7};
      const data::Entry next = net.ContinuedEntry(tokens, positions);
      const model::CachedPlaces all{{2, 1, 0}, positions, {0, 1, 2}};
      const std::vector<double> more = net.CachedLogits({&next, 1}, {&all, 1});
      got.insert(got.end(), more.begin(), more.end());
      if (!net.Grid().LastStage()) {
        EXPECT_TRUE(got.empty());
        return;
      }
      ASSERT_EQ(got.size(), 6 * static_cast<std::size_t>(kVocabulary));
      if (plain.empty()) plain = got;
      EXPECT_EQ(got, plain) << "packed weights change bits";
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        const double largest = std::abs(
            *std::ranges::max_element(wanted[i], {}, [](double x) { return std::abs(x); }));
        for (std::size_t k = 0; k < wanted[i].size(); ++k) {
          EXPECT_NEAR(got[i * wanted[i].size() + k], wanted[i][k], kFp64 * largest) << i;
        }
      }
    };
    for (const bool packs : {false, true}) {
      With(group, model, {4, "tensor=2\npipeline=2\n"}, 3, compare, packs);
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
      wanted.push_back(net.Logits(Window({ids.begin(), ids.begin() + size}), size - 1));
    }
  });
  const std::string layout = std::string("data=2\ntensor=2\npipeline=2\n") + kCanonical;
  With(world_, kModels[0], {8, layout.c_str()}, 2, [&](model::ParallelModel& net) {
    for (std::size_t size = 3; size <= ids.size(); ++size) {
      const auto last = static_cast<std::int32_t>(size - 1);
      const bool whole = size == 3;
      const data::Entry entry = whole ? Window({ids.begin(), ids.begin() + 3})
                                      : net.ContinuedEntry({&ids[size - 1], 1}, {&last, 1});
      const model::CachedPlaces places{{1}, {whole ? 0 : last}, {whole ? 2 : 0}};
      const std::vector<double> got = net.CachedLogits({&entry, 1}, {&places, 1});
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
        const model::ModelMemory memory = net.Memory();
        EXPECT_GT(memory.key_value_cache, 0);
        EXPECT_GT(memory.packed_weights, 0);
        EXPECT_EQ(device::AllocatedBytes() - before, memory.Sum());
        Generator generator({.model = net, .tokens = tokens_, .slots = 3, .stopped = {}});
        generator.Run(prompts);
        EXPECT_EQ(device::PeakAllocatedBytes() - before, memory.Sum());
      },
      true);
}

}  // namespace
}  // namespace trireme::test
