// run.canonical and the [grid] beside its axes as decks ask for them: what is read, and every
// complaint with its hint, to the letter.
#include <gtest/gtest.h>

#include <string>

#include "canonical.hpp"
#include "trireme/app/sources.hpp"
#include "trireme/base/error.hpp"
#include "trireme/tasks/tasks.hpp"

namespace trireme::train {
namespace {

constexpr std::int64_t kBatch = 32, kLength = 512, kVocabulary = 100;

// data, context, tensor ranks.
comm::GridShape Grid(int data, int tensor = 1, int context = 1) {
  comm::GridShape grid;
  grid.data = data;
  grid.tensor = tensor;
  grid.context = context;
  return grid;
}

deck::Deck DeckOf(const std::string& text) {
  static const deck::Schema schema = tasks::DeclareAll();  // decks refer to it
  app::CommandLine line;
  line.deck = "a.in";
  return app::ParseDeck(schema, line, text);
}

parallel::Canonical Read(const std::string& text, const comm::GridShape& grid,
                         std::int64_t batch = kBatch, std::int64_t length = kLength) {
  const deck::Deck deck = DeckOf(text);
  DeckOptions asked = ReadAll(deck);
  asked.data.sequence_length = length;
  const Request request{.options = asked, .deck = deck, .ranks = 1, .tokens = {}, .machine = {}};
  return MakeCanonical(request, model::WithVocabulary(asked.model, kVocabulary, deck), grid, batch);
}

// The message of the InputError; "" where there is none.
template <typename Action>
std::string Complaint(Action action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    return error.what();
  }
  return "";
}

std::string Complaint(const std::string& text, const comm::GridShape& grid) {
  return Complaint([&] { Read(text, grid); });
}

TEST(CanonicalDeck, NoneIsTheDefault) {
  EXPECT_FALSE(Read("", Grid(3, 2, 2)).On());
  EXPECT_FALSE(Read("[run]\ncanonical = none\n", Grid(3)).On());
  // As a resolved deck says it.
  EXPECT_FALSE(Read("[run]\ncanonical = none\ncanonical_leaf = 0\n", Grid(3)).On());
}

TEST(CanonicalDeck, GroupsSlicesAndLeaf) {
  EXPECT_EQ(Read("[run]\ncanonical = 8x2\ncanonical_leaf = 3\n", Grid(4, 2)),
            (parallel::Canonical{8, 2, 3}));
  EXPECT_EQ(Read("[run]\ncanonical = 1x1\ncanonical_leaf = 5\n", Grid(1)),
            (parallel::Canonical{1, 1, 5}));
  // A leaf is no more than a batch.
  EXPECT_EQ(Read("[run]\ncanonical = 2x1\ncanonical_leaf = 99\n", Grid(2)).leaf, kBatch);
}

TEST(CanonicalDeck, AnAutomaticLeafHasAbout4096TokensAndAtMostADthOfTheBatch) {
  const auto leaf = [](const char* canonical, std::int64_t batch, std::int64_t length) {
    return Read(std::string("[run]\ncanonical = ") + canonical, Grid(1), batch, length).leaf;
  };
  EXPECT_EQ(leaf("1x1", 32, 512), 8);
  EXPECT_EQ(leaf("4x1", 32, 512), 8);
  EXPECT_EQ(leaf("8x1", 32, 512), 4);
  EXPECT_EQ(leaf("8x1", 33, 512), 5);   // rounded up: no more than 8 groups
  EXPECT_EQ(leaf("64x1", 33, 512), 1);  // most groups are empty
  EXPECT_EQ(leaf("1x1", 32, 5000), 1);
}

TEST(CanonicalDeck, TheLayoutDependsOnNothingElse) {
  for (const int data : {1, 2, 4}) {
    for (const int tensor : {1, 2}) {
      EXPECT_EQ(Read("[run]\ncanonical = 4x2\n", Grid(data, tensor)),
                (parallel::Canonical{4, 2, 8}));
    }
  }
}

TEST(CanonicalDeck, WhatIsNoPairOfPowers) {
  for (const std::string value : {"3x2", "4x3", "4", "4x", "x2", "4X2", "4 x 2", "4x2x1", "0x2",
                                  "4x0", "-4x2", "4x-2", "yes", "None", "4294967296x1", "+4x2"}) {
    EXPECT_EQ(Complaint("[run]\ncanonical = " + value + "\n", Grid(1)),
              "a.in:2: run.canonical = " + value + ": \"" + value +
                  "\" is not DxT with powers of two D and T\n"
                  "  What fits: none, or for example 4x2: up to 4 data and 2 tensor ranks.");
  }
}

TEST(CanonicalDeck, ALeafWithoutIt) {
  const char* wanted =
      "a.in:2: run.canonical_leaf = 4: run.canonical is none\n"
      "  What fits: run.canonical = 1x1 or more, or leave the leaf out.";
  EXPECT_EQ(Complaint("[run]\ncanonical_leaf = 4\n", Grid(1)), wanted);
  EXPECT_EQ(Complaint("[run]\ncanonical_leaf = 4\ncanonical = none\n", Grid(1)), wanted);
}

TEST(CanonicalDeck, ContextRanks) {
  EXPECT_EQ(Complaint("[grid]\ncontext = 2\n[run]\ncanonical = 4x2\n", Grid(2, 1, 2)),
            "a.in:2: grid.context = 2: a ring adds up attention in an order of its own, but "
            "run.canonical = 4x2 asks for the same bits in every layout\n"
            "  What fits: grid.context = 1, or run.canonical = none.");
}

TEST(CanonicalDeck, DataRanksThatDoNotDivide) {
  EXPECT_EQ(Complaint("[grid]\ndata = 8\n[run]\ncanonical = 4x2\n", Grid(8)),
            "a.in:2: grid.data = 8: 8 data ranks do not divide the 4 of run.canonical = 4x2\n"
            "  What fits: 1, 2 or 4 data ranks, or run.canonical = 8x2.");
  // Rest of the job's ranks; three never divide.
  EXPECT_EQ(
      Complaint("[run]\ncanonical = 4x2\n", Grid(3)),
      "a.in: grid.data = 0 (default): 3 data ranks do not divide the 4 of run.canonical = 4x2\n"
      "  What fits: 1, 2 or 4 data ranks.");
  EXPECT_EQ(Complaint("[grid]\ndata = 3\n[run]\ncanonical = 1x2\n", Grid(3)),
            "a.in:2: grid.data = 3: 3 data ranks do not divide the 1 of run.canonical = 1x2\n"
            "  What fits: 1 data rank.");
}

TEST(CanonicalDeck, TensorRanksThatDoNotDivide) {
  EXPECT_EQ(Complaint("[grid]\ntensor = 4\n[run]\ncanonical = 4x2\n", Grid(1, 4)),
            "a.in:2: grid.tensor = 4: 4 tensor ranks do not divide the 2 of run.canonical = 4x2\n"
            "  What fits: grid.tensor = 1 or 2, or run.canonical = 4x4.");
  EXPECT_EQ(Complaint("[grid]\ntensor = 3\n[run]\ncanonical = 4x2\n", Grid(1, 3)),
            "a.in:2: grid.tensor = 3: 3 tensor ranks do not divide the 2 of run.canonical = 4x2\n"
            "  What fits: grid.tensor = 1 or 2.");
}

TEST(CanonicalDeck, MoreSlicesThanKeyValueHeads) {
  EXPECT_EQ(
      Complaint("[model]\nheads = 12\nkv_heads = 6\ndim = 48\nffn = 64\n[run]\ncanonical = 2x8\n",
                Grid(2)),
      "a.in:7: run.canonical = 2x8: 8 slices, but model.kv_heads = 6, model.heads = 12, "
      "model.ffn = 64, vocabulary 100: each slice needs one of each\n"
      "  What fits: run.canonical = 2x4.");
}

TEST(CanonicalDeck, MicroBatchesAreWholeLeaves) {
  const parallel::Canonical leaf_of_four{4, 1, 4};
  const auto check = [&](int asked, const parallel::Canonical& canonical) {
    const deck::Deck deck = DeckOf("[data]\nmicro_batch = " + std::to_string(asked) + "\n");
    const DeckOptions options = ReadAll(deck);
    CheckLeaves({.options = options, .deck = deck, .ranks = 1, .tokens = {}, .machine = {}},
                canonical);
  };
  for (const int fits : {0, 4, 8, 100}) check(fits, leaf_of_four);
  check(7, {});
  for (const auto& [asked, fits] :
       {std::pair(6, "4 or 8"), std::pair(1, "4 or 8"), std::pair(11, "8 or 12")}) {
    EXPECT_EQ(Complaint([&, asked = asked] { check(asked, leaf_of_four); }),
              "a.in:2: data.micro_batch = " + std::to_string(asked) +
                  ": it is no multiple of the leaf, 4 sequences\n  What fits: data.micro_batch = " +
                  fits + ".");
  }
}

std::string GridComplaint(const std::string& keys, const comm::GridShape& grid) {
  const deck::Deck deck = DeckOf("[grid]\n" + keys);
  return Complaint([&] { comm::ReadGridOptions(comm::Read(deck), deck, grid); });
}

TEST(GridDeck, WhatIsShared) {
  const deck::Deck deck = DeckOf("[grid]\nsharding = gradients\nshard_group = 6\n");
  const auto options = comm::ReadGridOptions(comm::Read(deck), deck, Grid(6, 1, 2));
  EXPECT_EQ(options.sharding, comm::Sharding::kGradients);
  EXPECT_EQ(options.shard_group, 6);
}

TEST(GridDeck, AShardGroupThatDoesNotDivide) {
  EXPECT_EQ(GridComplaint("sharding = parameters\nshard_group = 5\n", Grid(6, 2, 2)),
            "a.in:3: grid.shard_group = 5: it does not divide data 6 x context 2 = 12 ranks\n"
            "  What fits: grid.shard_group = 4 or 6, or 0 (all of them).");
  EXPECT_EQ(GridComplaint("sharding = optimizer\nshard_group = 2\n", Grid(1, 2)),
            "a.in:3: grid.shard_group = 2: it does not divide data 1 x context 1 = 1 rank\n"
            "  What fits: grid.shard_group = 1, or 0 (all of them).");
}

TEST(GridDeck, AShardGroupOfNothing) {
  EXPECT_EQ(GridComplaint("shard_group = 2\n", Grid(4)),
            "a.in:2: grid.shard_group = 2: nothing is sharded with grid.sharding = none\n"
            "  What fits: grid.sharding = optimizer, gradients or parameters; or leave "
            "grid.shard_group out.");
  EXPECT_EQ(GridComplaint("shard_group = 0\n", Grid(4)), "");
}

TEST(GridDeck, SequenceParallelOnOneTensorRank) {
  EXPECT_EQ(GridComplaint("sequence_parallel = yes\n", Grid(4)),
            "a.in:2: grid.sequence_parallel = yes: it cuts the rows over the tensor group, which "
            "has one rank\n"
            "  What fits: grid.tensor >= 2, or grid.sequence_parallel = no.");
}

TEST(GridDeck, AKindOfShardingThatIsNone) {
  EXPECT_EQ(Complaint([] { DeckOf("[grid]\nsharding = zero3\n"); }),
            "a.in:2: grid.sharding = zero3: not one of none, optimizer, gradients, parameters "
            "(default: none)");
}

}  // namespace
}  // namespace trireme::train
