// Rule 4 on decks drawn at random: architecture, sizes, batch, optimizer and layout together. A
// failure prints the deck. TRIREME_RANDOM_DECKS=n draws n of them, TRIREME_RANDOM_SEED=s others;
// TRIREME_RANDOM_SHOW prints each before it runs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <random>

#include "deck_run.hpp"
#include "small_run.hpp"

namespace trireme::test {
namespace {

constexpr double kFp64 = 1e-11;  // relative: losses, norm; gradients and weights in rule 4's norm
constexpr int kDecks = 40;
constexpr std::int64_t kDeckSteps = 4;

int FromEnvironment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

// The same draws on every rank.
class Draw {
 public:
  explicit Draw(int seed) : engine_(static_cast<std::uint64_t>(seed)) {}
  // Uniform in [least, most]; no distribution of the library, whose draws are its own affair.
  int Between(int least, int most) {
    return least + static_cast<int>(engine_() % static_cast<std::uint64_t>(most - least + 1));
  }
  template <typename T>
  T Of(std::initializer_list<T> values) {
    return values.begin()[Between(0, static_cast<int>(values.size()) - 1)];
  }

 private:
  std::mt19937_64 engine_;
};

std::string ModelKeys(Draw& draw, int length) {
  const int heads = draw.Of({1, 2, 3, 4, 4, 5, 6, 8, 8});
  int kv_heads = draw.Between(1, heads);
  while (heads % kv_heads != 0) --kv_heads;
  const char* position = draw.Of({"sinusoidal", "learned", "rope"});
  const int head_dim = std::string(position) == "rope" ? draw.Of({2, 4}) : draw.Between(1, 5);
  // A LayerNorm of one or two features gives 0 or +-1 whatever comes in: gradients of noise.
  constexpr int kLeastDim = 5;
  const bool plain = draw.Between(0, 1) == 0 && heads * head_dim >= kLeastDim;
  std::string keys = fmt::format(
      "heads={}\nkv_heads={}\nhead_dim={}\ndim={}\nlayers={}\nffn={}\nmax_positions={}\n", heads,
      kv_heads, head_dim, plain ? heads * head_dim : draw.Between(kLeastDim, 19),
      draw.Between(1, 7), draw.Between(8, 23), length + draw.Between(0, 2));
  keys += fmt::format("position={}\nnorm={}\nnorm_position={}\nactivation={}\nbias={}\n", position,
                      draw.Of({"layernorm", "rmsnorm"}), draw.Of({"pre", "post"}),
                      draw.Of({"relu", "gelu", "swiglu"}), draw.Of({"yes", "no"}));
  keys += fmt::format("tie_embeddings={}\nscale_embedding={}\ninit={}\ninit_deviation=0.2\n",
                      draw.Of({"yes", "no"}), draw.Of({"yes", "no"}),
                      draw.Of({"normal", "gpt2", "xavier"}));
  for (const char* key : {"dropout", "attention_dropout", "ffn_dropout"}) {
    keys += fmt::format("{}={}\n", key, draw.Of({"0", "0.1", "0.3"}));
  }
  // Dropout may leave nothing of a row of a few features: with a small epsilon the norm multiplies
  // its gradient by hundreds, block after block, and rounding shows (on one rank too, from one
  // micro-batch size to another).
  keys += "norm_epsilon=1e-2\n";
  return keys + fmt::format("recompute={}\n", draw.Of({"none", "selective", "full"}));
}

std::string RandomDeck(Draw& draw) {
  const int length = draw.Between(2, 9), batch = draw.Between(1, 17);
  const char* schedule = draw.Of({"gpipe", "1f1b", "interleaved", "zero_bubble", "zero_bubble"});
  const bool interleaved = std::string(schedule) == "interleaved";
  std::string deck = fmt::format(
      "[run]\nseed={}\n[data]\nsequence_length={}\nstride={}\nbatch={}\nmicro_batch={}\n",
      draw.Between(1, 1000), length, draw.Of({length, length, std::max(1, length - 1)}), batch,
      draw.Between(0, std::max(1, batch / 3)));
  deck += "[model]\n" + ModelKeys(draw, length);
  // Where a gradient is zero but for rounding (a batch of two tokens has such), AdamW divides noise
  // by epsilon: with 1e-8 it would show.
  deck += fmt::format(
      "[optimizer]\nkind={}\nepsilon=1e-6\nlearning_rate=1e-2\nclip_norm={}\nlabel_smoothing={}\n",
      draw.Of({"adamw", "adamw", "sgd"}), draw.Of({"0", "0.5"}), draw.Of({"0", "0.05"}));
  deck += fmt::format("[schedule]\nsteps=20\nwarmup_steps={}\n", draw.Between(0, 3));
  deck += fmt::format("[grid]\nbucket_mib={}\ntensor={}\npipeline={}\nsequence_parallel={}\n",
                      draw.Of({"0.001", "0.01", "4"}), draw.Of({1, 1, 1, 1, 2, 2, 3, 4, 5, 6, 8}),
                      draw.Of({1, 1, 1, 2, 2, 3, 4, 5, 6, 7, 8}), draw.Of({"yes", "no"}));
  const char* sharding = draw.Of({"none", "optimizer", "gradients", "parameters", "parameters"});
  deck += fmt::format("context={}\nsharding={}\nprefetch={}\noverlap={}\n",
                      draw.Of({1, 1, 1, 2, 2, 3, 4}), sharding, draw.Between(0, 3),
                      draw.Of({"yes", "yes", "no"}));
  if (std::string(sharding) != "none") {
    deck += fmt::format("shard_group={}\n", draw.Of({0, 0, 1, 2, 2, 3, 4}));
  }
  return deck + fmt::format("[pipeline]\nschedule={}\nchunks={}\n", schedule,
                            interleaved ? draw.Between(2, 3) : 1);
}

TEST(RandomDecks, EqualTheSerialRun) {
  const comm::Communicator world = World();
  const comm::Communicator self = comm::Communicator::Adopt(MPI_COMM_SELF);
  const data::TokenFile tokens(world, SyntheticTokens());

  Draw draw(FromEnvironment("TRIREME_RANDOM_SEED", 2026));
  const int decks = FromEnvironment("TRIREME_RANDOM_DECKS", kDecks);
  for (int done = 0; done < decks;) {
    const std::string deck = RandomDeck(draw);
    const int ranks = draw.Between(2, world.Size());
    RunSettings settings;
    try {
      settings = SettingsOf(deck, tokens, ranks, Dtype::kFloat64);
    } catch (const Error& error) {
      ASSERT_EQ(error.Code(), ExitCode::kBadInput) << error.what() << "\n" << deck;
      continue;  // does not fit: drawn again
    }
    ++done;
    const comm::Communicator group = world.Split(world.Rank() < ranks ? 0 : 1, world.Rank());
    if (world.Rank() >= ranks) continue;
    const std::string what = fmt::format("deck {} on {} ranks:\n{}", done, ranks, deck);
    if (world.IsRoot() && std::getenv("TRIREME_RANDOM_SHOW") != nullptr) {
      fmt::print("{}\n", what);
      std::fflush(stdout);
    }
    const Outcome got = RunDeck(group, tokens, settings, kDeckSteps);
    const Outcome wanted =
        RunDeck(self, tokens, SettingsOf(deck, tokens, 1, Dtype::kFloat64), kDeckSteps);
    EXPECT_LT(WorstRelative(got.losses, wanted.losses), kFp64) << what;
    EXPECT_LT(WorstRelative({got.norm}, {wanted.norm}), kFp64) << what;
    EXPECT_LT(RuleFourDifference(got.gradients, wanted.gradients).relative, kFp64) << what;
    EXPECT_LT(RuleFourDifference(got.weights, wanted.weights).relative, kFp64) << what;
  }
}

}  // namespace
}  // namespace trireme::test
