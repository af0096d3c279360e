// Rule 4 on decks drawn at random: architecture, sizes, batch, optimizer and layout together. A
// failure prints the deck. TRIREME_RANDOM_DECKS=n draws n of them, TRIREME_RANDOM_SEED=s others;
// TRIREME_RANDOM_SHOW prints each before it runs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "deck_run.hpp"
#include "random_deck.hpp"
#include "small_run.hpp"

namespace trireme::test {
namespace {

constexpr double kRandomDecksFp64 =
    1e-11;  // relative: losses, norm; gradients and weights in rule 4's norm
constexpr int kRandomDecks = 40;
constexpr std::int64_t kRandomDeckSteps = 4;

std::string RandomDeck(Draw& draw) {
  const int length = draw.Between(2, 9), batch = draw.Between(1, 17);
  const char* schedule = draw.Of({"gpipe", "1f1b", "interleaved", "zero_bubble", "zero_bubble"});
  const bool interleaved = std::string(schedule) == "interleaved";
  std::string deck = fmt::format(
      "[run]\nseed={}\n[data]\nsequence_length={}\nstride={}\nbatch={}\nmicro_batch={}\n",
      draw.Between(1, 1000), length, draw.Of({length, length, std::max(1, length - 1)}), batch,
      draw.Between(0, std::max(1, batch / 3)));
  deck += "[model]\n" + ModelKeys(draw, length);
  // If a gradient is zero but for rounding (a batch of two tokens has such), AdamW divides noise by
  // epsilon: with 1e-8 it would show, and with 1e-6 one deck in 600 had 4e-11 (and 7e-12 between
  // two micro-batch sizes of one serial process).
  deck += fmt::format(
      "[optimizer]\nkind={}\nepsilon=1e-5\nlearning_rate=1e-2\nclip_norm={}\nlabel_smoothing={}\n",
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
  const int decks = FromEnvironment("TRIREME_RANDOM_DECKS", kRandomDecks);
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
    const Outcome got = RunDeck(group, tokens, settings, kRandomDeckSteps);
    const Outcome wanted =
        RunDeck(self, tokens, SettingsOf(deck, tokens, 1, Dtype::kFloat64), kRandomDeckSteps);
    EXPECT_LT(WorstRelative(got.losses, wanted.losses), kRandomDecksFp64) << what;
    EXPECT_LT(WorstRelative({got.norm}, {wanted.norm}), kRandomDecksFp64) << what;
    EXPECT_LT(RuleFourDifference(got.gradients, wanted.gradients).relative, kRandomDecksFp64)
        << what;
    EXPECT_LT(RuleFourDifference(got.weights, wanted.weights).relative, kRandomDecksFp64) << what;
  }
}

}  // namespace
}  // namespace trireme::test
