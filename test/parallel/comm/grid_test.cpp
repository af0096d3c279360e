// The grid of ranks, planned and real.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "every_transfer.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/comm/runtime.hpp"

namespace trireme::comm {
namespace {

// ProcessGrid: groups and coordinates of every layout of the job's ranks, what fits, what does not,
// and what the user is told.

class GridTest : public testing::Test {
 protected:
  GridTest() { Declare(schema_); }
  deck::Deck Deck(const std::string& text, const std::vector<std::string>& overrides = {}) const {
    return deck::Deck::Parse(schema_, text, "a.in", overrides);
  }
  static GridShape Shape(const deck::Deck& deck, int ranks, const Allowed& allowed = {}) {
    return ReadGrid(Read(deck), deck, ranks, allowed);
  }
  ProcessGrid Make(const std::string& text) const {
    const deck::Deck deck = Deck(text);
    return {world_, Read(deck), deck};
  }
  // Message of the readers for a deck on that many ranks; empty if it fits.
  std::string Complaint(const std::string& text, int ranks) const {
    try {
      const deck::Deck deck = Deck(text);
      ReadGridOptions(Read(deck), deck, Shape(deck, ranks));
      return {};
    } catch (const Error& error) {
      EXPECT_EQ(error.Code(), ExitCode::kBadInput);
      return error.what();
    }
  }

  deck::Schema schema_;
  Communicator world_ = Communicator::Adopt(MPI_COMM_WORLD);
};

// Every shape with that many ranks.
std::vector<GridShape> AllShapes(int ranks) {
  std::vector<GridShape> shapes;
  for (int pipeline = 1; pipeline <= ranks; ++pipeline) {
    for (int data = 1; data <= ranks; ++data) {
      for (int context = 1; context <= ranks; ++context) {
        for (int tensor = 1; tensor <= ranks; ++tensor) {
          const GridShape shape{pipeline, data, context, tensor};
          if (shape.Ranks() == ranks) shapes.push_back(shape);
        }
      }
    }
  }
  return shapes;
}

// World ranks of a group, in its order.
std::vector<int> Members(const Communicator& group, int world_rank) {
  std::vector<int> ranks;
  for (const std::string& rank : group.Gather(fmt::to_string(world_rank))) {
    ranks.push_back(std::stoi(rank));
  }
  return ranks;
}

TEST_F(GridTest, ZeroTakesWhatIsLeft) {
  const ProcessGrid grid = Make("");
  EXPECT_EQ(grid.Shape().data, world_.Size());
  EXPECT_EQ(grid.Shape().Ranks(), world_.Size());
  EXPECT_EQ(grid.Shape().tensor, 1);
  EXPECT_EQ(grid.Shape().pipeline, 1);
  EXPECT_EQ(grid.Shape().context, 1);
  EXPECT_FALSE(grid.SequenceParallel());
  EXPECT_EQ(grid.Coordinates().data, world_.Rank());
  EXPECT_EQ(grid.Coordinates().tensor, 0);
  EXPECT_EQ(grid.Data().Size(), world_.Size());
  EXPECT_EQ(grid.Data().Rank(), world_.Rank());
  EXPECT_EQ(&grid.World(), &world_);
}

TEST_F(GridTest, RankIsAFixedFunctionOfCoordinates) {
  const GridShape shape{2, 3, 4, 5};
  for (int rank = 0; rank < shape.Ranks(); ++rank) {
    const GridShape at = Locate(rank, shape);
    EXPECT_EQ(((at.pipeline * 3 + at.data) * 4 + at.context) * 5 + at.tensor, rank);
    EXPECT_EQ(RankAt(at, shape), rank);
    EXPECT_LT(at.pipeline, 2);
    EXPECT_LT(at.data, 3);
    EXPECT_LT(at.context, 4);
    EXPECT_LT(at.tensor, 5);
  }
  EXPECT_EQ(Describe(shape), "pipeline 2 x data 3 x context 4 x tensor 5");
}

TEST_F(GridTest, GroupsOfEveryShape) {
  const auto shapes = AllShapes(world_.Size());
  EXPECT_EQ(shapes.size(), world_.Size() == 8 ? 20u : 1u);  // 3 factors of 2 on 4 axes
  for (const GridShape& shape : shapes) {
    SCOPED_TRACE(Describe(shape));
    const ProcessGrid grid(world_, shape, {.sequence_parallel = true});
    const GridShape at = grid.Coordinates();
    EXPECT_EQ(at, Locate(world_.Rank(), shape));
    EXPECT_TRUE(grid.SequenceParallel());
    EXPECT_EQ(grid.FirstStage(), at.pipeline == 0);
    EXPECT_EQ(grid.LastStage(), at.pipeline == shape.pipeline - 1);

    // Members as the definition says, not as the code splits.
    std::vector<int> data, context, tensor, pipeline, replica, embedding;
    for (int rank = 0; rank < shape.Ranks(); ++rank) {
      const GridShape other = Locate(rank, shape);
      const bool p = other.pipeline == at.pipeline, d = other.data == at.data;
      const bool c = other.context == at.context, t = other.tensor == at.tensor;
      if (p && t) data.push_back(rank);
      if (p && d && t) context.push_back(rank);
      if (p && d && c) tensor.push_back(rank);
      if (d && c && t) pipeline.push_back(rank);
      if (d && c) replica.push_back(rank);
    }
    embedding = {world_.Rank()};
    if (shape.pipeline > 1 && (grid.FirstStage() || grid.LastStage())) {
      embedding = {pipeline.front(), pipeline.back()};
    }
    EXPECT_EQ(Members(grid.Data(), world_.Rank()), data);
    EXPECT_EQ(Members(grid.SameShard(), world_.Rank()), data);  // no sharding
    EXPECT_EQ(Members(grid.Shard(), world_.Rank()), std::vector<int>{world_.Rank()});
    EXPECT_EQ(Members(grid.Context(), world_.Rank()), context);
    EXPECT_EQ(Members(grid.Tensor(), world_.Rank()), tensor);
    EXPECT_EQ(Members(grid.Pipeline(), world_.Rank()), pipeline);
    EXPECT_EQ(Members(grid.Replica(), world_.Rank()), replica);
    EXPECT_EQ(Members(grid.Embedding(), world_.Rank()), embedding);
    EXPECT_EQ(grid.Data().Rank(), at.data * shape.context + at.context);
    EXPECT_EQ(grid.Context().Rank(), at.context);
    EXPECT_EQ(grid.Pipeline().Rank(), at.pipeline);
    EXPECT_EQ(grid.Tensor().Rank(), at.tensor);
  }
}

// Every size of shard groups on every shape: copies of consecutive ranks of Data(), and across them
// the ranks with the same place.
TEST_F(GridTest, ShardGroupsOfEverySize) {
  for (const GridShape& shape : AllShapes(world_.Size())) {
    const int whole = shape.data * shape.context;
    for (int size = 0; size <= whole; ++size) {
      if (size > 0 && whole % size != 0) continue;
      SCOPED_TRACE(fmt::format("{}, shard groups of {}", Describe(shape), size));
      const GridOptions options{.sharding = Sharding::kGradients, .shard_group = size};
      const ProcessGrid grid(world_, shape, options);
      EXPECT_EQ(grid.Shards(), Sharding::kGradients);
      EXPECT_EQ(grid.Options().shard_group, size);
      const auto data = Members(grid.Data(), world_.Rank());
      const int group = size == 0 ? whole : size;
      const int own = grid.Coordinates().data * shape.context + grid.Coordinates().context;
      std::vector<int> shard, same;
      for (int place = 0; place < whole; ++place) {
        if (place / group == own / group) shard.push_back(data[static_cast<std::size_t>(place)]);
        if (place % group == own % group) same.push_back(data[static_cast<std::size_t>(place)]);
      }
      EXPECT_EQ(Members(grid.Shard(), world_.Rank()), shard);
      EXPECT_EQ(Members(grid.SameShard(), world_.Rank()), same);
      EXPECT_EQ(grid.Over(Group::kData).Size(), whole / group);
      EXPECT_EQ(grid.Over(Group::kShard).Size(), group);
    }
  }
}

TEST_F(GridTest, TransfersKnowTheirGroup) {
  const bool alone = world_.Size() == 1;
  const ProcessGrid grid(world_, alone ? GridShape{} : GridShape{1, 4, 2, 1},
                         {.sharding = Sharding::kParameters, .shard_group = alone ? 1 : 4});
  const Group groups[] = {Group::kWorld,  Group::kData,     Group::kShard,  Group::kContext,
                          Group::kTensor, Group::kPipeline, Group::kReplica};
  for (const Group group : groups) {
    const Collectives transfers = grid.Over(group);
    float value = 1;
    transfers.AllReduce(Dtype::kFloat32, &value, 1);
    EXPECT_EQ(value, static_cast<float>(transfers.Size()));
    EXPECT_EQ(grid.Traffic().At(group, Transfer::kAllReduce).calls, transfers.Size() > 1 ? 1 : 0);
  }
  EXPECT_EQ(grid.Over(Group::kWorld).Size(), world_.Size());
  EXPECT_EQ(grid.Over(Group::kData).Size(), grid.SameShard().Size());
  EXPECT_EQ(grid.Over(Group::kShard).Size(), grid.Shard().Size());
  EXPECT_EQ(grid.Over(Group::kContext).Size(), grid.Context().Size());
  EXPECT_EQ(grid.Over(Group::kEmbedding).Size(), grid.Embedding().Size());
  EXPECT_THROW(grid.Over(Group::kKeyValue), Error);
}

TEST_F(GridTest, KeyValueGroupsShareAHead) {
  GridShape shape;
  shape.tensor = world_.Size();
  const ProcessGrid grid(world_, shape);
  const int size = world_.Size(), rank = world_.Rank();
  for (const int heads : {1, 2, 4, 8, 16}) {
    const Communicator group = grid.KeyValueGroup(heads);
    const int share = std::max(size / heads, 1);
    std::vector<int> members;
    for (int other = rank / share * share; members.size() < static_cast<std::size_t>(share);) {
      members.push_back(other++);
    }
    EXPECT_EQ(Members(group, rank), members) << heads << " heads";
  }
}

TEST_F(GridTest, PartOfTheWorldIsEnough) {
  const Communicator half = world_.Split(world_.Rank() % 2, world_.Rank());
  GridShape shape;
  shape.tensor = half.Size();
  const ProcessGrid grid(half, shape);
  EXPECT_EQ(grid.Tensor().Rank(), half.Rank());
  shape.data = 2;
  try {
    const ProcessGrid refused(half, shape);
    FAIL() << "a grid of another size was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              fmt::format("a grid of {} on {} ranks", Describe(shape), half.Size()));
  }
  shape.data = 1;
  try {
    const ProcessGrid refused(half, shape, {.sharding = Sharding::kOptimizer, .shard_group = 3});
    FAIL() << "shards over 3 of 1 ranks were accepted";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              fmt::format("shards over 3 ranks in a grid of {}", Describe(shape)));
  }
}

TEST_F(GridTest, DecksThatFit) {
  const auto read = [&](const std::string& text) { return Shape(Deck(text), 8); };
  EXPECT_EQ(read("[grid]\ntensor = 2\npipeline = 2\n"), (GridShape{2, 2, 1, 2}));
  EXPECT_EQ(read("[grid]\ndata = 4\ntensor = 2\n"), (GridShape{1, 4, 1, 2}));
  EXPECT_EQ(read("[grid]\npipeline = 8\n"), (GridShape{8, 1, 1, 1}));
  EXPECT_EQ(read("[grid]\ntensor = 2\nsequence_parallel = yes\n"), (GridShape{1, 4, 1, 2}));
  EXPECT_EQ(read("[grid]\nsequence_parallel = no\n"), (GridShape{1, 8, 1, 1}));
  EXPECT_EQ(read("[grid]\ncontext = 4\n"), (GridShape{1, 2, 4, 1}));
  EXPECT_EQ(read("[grid]\ncontext = 2\ntensor = 2\npipeline = 2\ndata = 1\n"),
            (GridShape{2, 1, 2, 2}));
  const ProcessGrid grid = Make(fmt::format("[grid]\ntensor = {}\n", world_.Size()));
  EXPECT_EQ(grid.Tensor().Size(), world_.Size());
}

TEST_F(GridTest, AnotherSizeIsRefusedByAllRanks) {
  try {
    const ProcessGrid grid = Make("[grid]\ndata = 3\n");
    FAIL() << "3 ranks were accepted";
  } catch (const AgreedError& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    EXPECT_EQ(std::string(error.what()),
              fmt::format("a.in:2: grid.data = 3: the grid has 3 ranks, the job has {0}\n"
                          "  What fits: grid.data = {0}, or 0 (what is left); or start the job "
                          "with 3 ranks.",
                          world_.Size()));
  }
}

TEST_F(GridTest, MessagesNameTheNearestLayouts) {
  EXPECT_EQ(Complaint("[grid]\ntensor = 3\npipeline = 2\n", 8),
            "a.in:2: grid.tensor = 3 x grid.pipeline = 2 does not divide 8 ranks\n"
            "  What fits: grid.tensor = 2 or 4 with grid.pipeline = 2; or start the job with 6 or "
            "12 ranks.");
  EXPECT_EQ(Complaint("[grid]\ntensor = 2\npipeline = 3\n", 8),
            "a.in:3: grid.tensor = 2 x grid.pipeline = 3 does not divide 8 ranks\n"
            "  What fits: grid.pipeline = 2 or 4 with grid.tensor = 2; or start the job with 6 or "
            "12 ranks.");
  EXPECT_EQ(Complaint("[grid]\ntensor = 4\npipeline = 4\n", 8),
            "a.in:2: grid.tensor = 4 x grid.pipeline = 4 does not divide 8 ranks\n"
            "  What fits: grid.tensor = 2 with grid.pipeline = 4, or grid.pipeline = 2 with "
            "grid.tensor = 4; or start the job with 16 ranks.");
  EXPECT_EQ(Complaint("[grid]\npipeline = 5\ntensor = 3\n", 8),
            "a.in:3: grid.tensor = 3 x grid.pipeline = 5 does not divide 8 ranks\n"
            "  What fits: grid.tensor = 2 with grid.pipeline = 4, or grid.tensor = 4 with "
            "grid.pipeline = 2; or start the job with 15 ranks.");
  EXPECT_EQ(Complaint("[grid]\ntensor = 3\n", 8),
            "a.in:2: grid.tensor = 3 does not divide 8 ranks\n"
            "  What fits: grid.tensor = 2 or 4; or start the job with 6 or 9 ranks.");
  EXPECT_EQ(Complaint("[grid]\npipeline = 16\n", 1),
            "a.in:2: grid.pipeline = 16 does not divide 1 rank\n"
            "  What fits: grid.pipeline = 1; or start the job with 16 ranks.");
}

TEST_F(GridTest, MessagesWithADataAxisGiven) {
  EXPECT_EQ(Complaint("[grid]\ntensor = 2\ndata = 3\n", 8),
            "a.in:3: grid.data = 3: the grid has 6 ranks, the job has 8\n"
            "  What fits: grid.data = 4, or 0 (what is left); or start the job with 6 ranks.");
  EXPECT_EQ(Complaint("[grid]\ntensor = 3\ndata = 2\n", 8),
            "a.in:2: grid.tensor = 3 does not divide 8 ranks\n"
            "  What fits: grid.data = 0 and grid.tensor = 2 or 4; or start the job with 6 ranks.");
}

TEST_F(GridTest, MessagesWithAContextAxis) {
  EXPECT_EQ(Complaint("[grid]\ncontext = 3\n", 8),
            "a.in:2: grid.context = 3 does not divide 8 ranks\n"
            "  What fits: grid.context = 2 or 4; or start the job with 6 or 9 ranks.");
  EXPECT_EQ(Complaint("[grid]\ntensor = 2\ncontext = 3\n", 8),
            "a.in:3: grid.tensor = 2 x grid.context = 3 does not divide 8 ranks\n"
            "  What fits: grid.context = 2 or 4 with grid.tensor = 2; or start the job with 6 or "
            "12 ranks.");
  EXPECT_EQ(Complaint("[grid]\ntensor = 2\npipeline = 4\ncontext = 2\n", 8),
            "a.in:2: grid.tensor = 2 x grid.pipeline = 4 x grid.context = 2 does not divide 8 "
            "ranks\n"
            "  What fits: grid.tensor = 1 with grid.pipeline = 4 and grid.context = 2, or "
            "grid.pipeline = 2 with grid.tensor = 2 and grid.context = 2, or grid.context = 1 with "
            "grid.tensor = 2 and grid.pipeline = 4; or start the job with 16 ranks.");
  EXPECT_EQ(Complaint("[grid]\ntensor = 3\npipeline = 3\ncontext = 2\n", 8),
            "a.in:2: grid.tensor = 3 x grid.pipeline = 3 x grid.context = 2 does not divide 8 "
            "ranks\n"
            "  What fits: grid.tensor = 2 with grid.pipeline = 2 and grid.context = 2, or "
            "grid.tensor = 4 with grid.pipeline = 2 and grid.context = 1; or start the job with "
            "18 ranks.");
  EXPECT_EQ(Complaint("[grid]\ncontext = 2\ndata = 3\n", 8),
            "a.in:3: grid.data = 3: the grid has 6 ranks, the job has 8\n"
            "  What fits: grid.data = 4, or 0 (what is left); or start the job with 6 ranks.");
}

TEST_F(GridTest, ReadsSharding) {
  const auto read = [&](const std::string& text) {
    const deck::Deck deck = Deck(text);
    return ReadGridOptions(Read(deck), deck, Shape(deck, 8));
  };
  EXPECT_EQ(read("").sharding, Sharding::kNone);
  EXPECT_EQ(read("").shard_group, 0);
  for (const Sharding sharding :
       {Sharding::kNone, Sharding::kOptimizer, Sharding::kGradients, Sharding::kParameters}) {
    const std::string text = fmt::format("[grid]\nsharding = {}\n", NameOf(sharding));
    EXPECT_EQ(read(text).sharding, sharding);
    EXPECT_EQ(read(text).shard_group, 0);
    EXPECT_EQ(read(text + "shard_group = 0\n").shard_group, 0);
  }
  // 2 x 2 ranks hold the same part of the model; the group may cut either axis.
  const std::string hybrid = "[grid]\ntensor = 2\ncontext = 2\nsharding = parameters\n";
  for (const int group : {1, 2, 4}) {
    EXPECT_EQ(read(hybrid + fmt::format("shard_group = {}\n", group)).shard_group, group);
  }
  const std::string deck =
      fmt::format("[grid]\nsharding = gradients\nshard_group = {}\n", world_.Size());
  const ProcessGrid grid = Make(deck);
  EXPECT_EQ(grid.Shards(), Sharding::kGradients);
  EXPECT_EQ(grid.Shard().Size(), world_.Size());
  EXPECT_EQ(grid.SameShard().Size(), 1);
}

TEST_F(GridTest, ShardGroupsThatDoNotFit) {
  EXPECT_EQ(Complaint("[grid]\nsharding = optimizer\nshard_group = 3\n", 8),
            "a.in:3: grid.shard_group = 3: it does not divide data 8 x context 1 = 8 ranks\n"
            "  What fits: grid.shard_group = 2 or 4, or 0 (all of them).");
  EXPECT_EQ(Complaint("[grid]\ncontext = 2\ntensor = 2\nsharding = parameters\n"
                      "shard_group = 8\n",
                      8),
            "a.in:5: grid.shard_group = 8: it does not divide data 2 x context 2 = 4 ranks\n"
            "  What fits: grid.shard_group = 4, or 0 (all of them).");
  EXPECT_EQ(Complaint("[grid]\nsharding = parameters\nshard_group = 2\n", 1),
            "a.in:3: grid.shard_group = 2: it does not divide data 1 x context 1 = 1 rank\n"
            "  What fits: grid.shard_group = 1, or 0 (all of them).");
  EXPECT_EQ(Complaint("[grid]\nshard_group = 2\n", 8),
            "a.in:2: grid.shard_group = 2: nothing is sharded with grid.sharding = none\n"
            "  What fits: grid.sharding = optimizer, gradients or parameters; or leave "
            "grid.shard_group out.");
  EXPECT_THROW(Deck("[grid]\nsharding = zero2\n"), Error);
  EXPECT_THROW(Deck("[grid]\nshard_group = -1\n"), Error);
  // Not asked for by the user: without effect, and no reason to stop.
  deck::Deck deck = Deck("");
  deck.Supply("grid.shard_group", "3", "preset x");
  EXPECT_EQ(ReadGridOptions(Read(deck), deck, Shape(deck, 8)).shard_group, 0);
  // All ranks leave together.
  try {
    const ProcessGrid grid = Make("[grid]\nsharding = optimizer\nshard_group = 3\n");
    FAIL() << "3 ranks were accepted";
  } catch (const AgreedError& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
  }
}

TEST_F(GridTest, SequenceParallelNeedsATensorGroup) {
  EXPECT_EQ(Complaint("[grid]\nsequence_parallel = yes\n", 8),
            "a.in:2: grid.sequence_parallel = yes: it cuts the rows over the tensor group, which "
            "has one rank\n  What fits: grid.tensor >= 2, or grid.sequence_parallel = no.");
  // Not asked for by the user: without effect, and no reason to stop.
  deck::Deck deck = Deck("");
  deck.Supply("grid.sequence_parallel", "yes", "preset x");
  const GridShape shape = Shape(deck, 8);
  EXPECT_EQ(shape.data, 8);
  EXPECT_TRUE(ReadGridOptions(Read(deck), deck, shape).sequence_parallel);
}

TEST_F(GridTest, HugeSizesAreRefused) {
  EXPECT_THROW(Deck("", {"grid.data=4294967297"}), Error);
  EXPECT_THROW(Deck("", {"grid.tensor=4294967297"}), Error);
  // A product beyond an int: no impossible size of a job is named.
  EXPECT_EQ(Complaint("[grid]\ndata = 1048576\ntensor = 1048576\npipeline = 1048576\n", 8),
            "a.in:3: grid.tensor = 1048576 x grid.pipeline = 1048576 does not divide 8 ranks\n"
            "  What fits: grid.data = 0 and grid.tensor = 8 with grid.pipeline = 1, or "
            "grid.tensor = 4 with grid.pipeline = 2.");
}

// A model of 4 heads and 2 stages at most.
TEST_F(GridTest, NamesWhatTheModelAllows) {
  const auto allowed = [](std::int64_t tensor, std::int64_t pipeline) {
    return 4 % tensor == 0 && pipeline <= 2;
  };
  const auto complaint = [&](const std::string& text, int ranks) {
    try {
      Shape(Deck(text), ranks, allowed);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(complaint("[grid]\ntensor = 4\n", 6),
            "a.in:2: grid.tensor = 4 does not divide 6 ranks\n"
            "  What fits: grid.tensor = 2; or start the job with 4 or 8 ranks.");
  EXPECT_EQ(complaint("[grid]\ntensor = 3\n", 8),
            "a.in:2: grid.tensor = 3 does not divide 8 ranks\n"
            "  What fits: grid.tensor = 2 or 4.");
  EXPECT_EQ(complaint("[grid]\npipeline = 4\n", 6),
            "a.in:2: grid.pipeline = 4 does not divide 6 ranks\n"
            "  What fits: grid.pipeline = 2.");
}

TEST(RankMap, OneLineARank) {
  EXPECT_EQ(RankMap({}, {"node"}), std::vector<std::string>{});
  const std::vector<std::string> lines =
      RankMap({2, 1, 1, 2}, {"node1", "node1", "node10", "node10"});
  EXPECT_EQ(lines, (std::vector<std::string>{"rank 0   node1    pipeline 0  data 0  tensor 0",
                                             "rank 1   node1    pipeline 0  data 0  tensor 1",
                                             "rank 2   node10   pipeline 1  data 0  tensor 0",
                                             "rank 3   node10   pipeline 1  data 0  tensor 1"}));
  EXPECT_EQ(RankMap({1, 1, 2, 1}, {"a", "a"})[1],
            "rank 1   a   pipeline 0  data 0  context 1  tensor 0");
}

TEST(RankMap, LongListsAreShortenedInTheMiddle) {
  const std::vector<std::string> all =
      RankMap({1, 16, 1, 1}, Hosts(std::vector<std::string>(16, "a")));
  EXPECT_EQ(all.size(), 16u);
  const std::vector<std::string> lines =
      RankMap({2, 64, 1, 2}, Hosts(std::vector<std::string>(256, "a")));
  ASSERT_EQ(lines.size(), 13u);
  EXPECT_EQ(lines[7], "rank   7   a   pipeline 0  data  3  tensor 1");
  EXPECT_EQ(lines[8], "...  244 more");
  EXPECT_EQ(lines[9], "rank 252   a   pipeline 1  data 62  tensor 0");
  EXPECT_EQ(lines[12], "rank 255   a   pipeline 1  data 63  tensor 1");
}

// A planned grid against the real one of the same layout: the same groups, and the same records of
// the same transfers.

constexpr Group kGroupsOfGrid[] = {Group::kWorld,   Group::kData,     Group::kShard,
                                   Group::kContext, Group::kTensor,   Group::kPipeline,
                                   Group::kReplica, Group::kEmbedding};

void ExpectSame(const Communicator& planned, const Communicator& real) {
  EXPECT_EQ(planned.Rank(), real.Rank());
  EXPECT_EQ(planned.Size(), real.Size());
}

void ExpectSameRecords(const Ledger& planned, const Ledger& real) {
  for (int group = 0; group < kGroups; ++group) {
    for (int kind = 0; kind < kTransfers; ++kind) {
      const auto name = static_cast<Group>(group);
      const auto transfer = static_cast<Transfer>(kind);
      SCOPED_TRACE(fmt::format("{} {}", NameOf(name), NameOf(transfer)));
      EXPECT_EQ(planned.At(name, transfer).calls, real.At(name, transfer).calls);
      EXPECT_EQ(planned.At(name, transfer).payload, real.At(name, transfer).payload);
      EXPECT_EQ(planned.At(name, transfer).moved, real.At(name, transfer).moved);
    }
  }
}

class PlannedTest : public testing::Test {
 protected:
  void Compare(const GridShape& shape, const GridOptions& options) {
    SCOPED_TRACE(fmt::format("{}, {} in groups of {}", Describe(shape), NameOf(options.sharding),
                             options.shard_group));
    const ProcessGrid real(world_, shape, options);
    const ProcessGrid planned = ProcessGrid::Planned(shape, options, world_.Rank());
    EXPECT_EQ(planned.Coordinates(), real.Coordinates());
    ExpectSame(planned.World(), real.World());
    ExpectSame(planned.Data(), real.Data());
    for (const Group group : kGroupsOfGrid) {
      EXPECT_EQ(planned.Over(group).Rank(), real.Over(group).Rank()) << NameOf(group);
      EXPECT_EQ(planned.Over(group).Size(), real.Over(group).Size()) << NameOf(group);
      test::EveryTransfer(planned.Over(group), nullptr, nullptr);
      test::EveryTransfer(real.Over(group), from_.data(), to_.data());
    }
    for (const int heads : {1, 2, 3, 4, 16}) {
      const Communicator ours = planned.KeyValueGroup(heads), theirs = real.KeyValueGroup(heads);
      ExpectSame(ours, theirs);
      test::EveryTransfer({ours, Group::kKeyValue, planned.Traffic()}, nullptr, nullptr);
      test::EveryTransfer({theirs, Group::kKeyValue, real.Traffic()}, from_.data(), to_.data());
    }
    ExpectSameRecords(planned.Traffic(), real.Traffic());
  }

  Communicator world_ = Communicator::Adopt(MPI_COMM_WORLD);
  std::vector<float> from_ = std::vector<float>(test::kEveryTransferElements);
  std::vector<float> to_ = std::vector<float>(test::kEveryTransferElements);
};

TEST_F(PlannedTest, IsTheRealGrid) {
  const int ranks = world_.Size();
  for (int pipeline = 1; pipeline <= ranks; pipeline *= 2) {
    for (int context = 1; pipeline * context <= ranks; context *= 2) {
      for (int tensor = 1; pipeline * context * tensor <= ranks; tensor *= 2) {
        const GridShape shape{pipeline, ranks / (pipeline * context * tensor), context, tensor};
        Compare(shape, {});
        const int whole = shape.data * shape.context;
        for (const int sharers : {0, 1, 2}) {
          if (sharers > 0 && whole % sharers != 0) continue;
          Compare(shape, {.sharding = Sharding::kGradients, .shard_group = sharers});
        }
      }
    }
  }
}

}  // namespace
}  // namespace trireme::comm
