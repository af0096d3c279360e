// Random decks: canonical runs end in the same bits, others near the serial run.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "folders.hpp"
#include "small_run.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/train/evaluation.hpp"

namespace trireme::test {
namespace {

// Decks drawn at random: what the tests of layouts share.

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

// Architecture and sizes, as the lines of [model]; each kind of head in at least `slices` of them
// (norms of heads only with one, as run.canonical has it).
std::string ModelKeys(Draw& draw, int length, int slices = 1) {
  const int heads = std::max(slices, draw.Of({1, 2, 3, 4, 4, 5, 6, 8, 8}));
  int kv_heads = draw.Between(slices, heads);
  while (heads % kv_heads != 0) ++kv_heads;
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
  keys += fmt::format("qkv_bias={}\nqk_norm={}\n", draw.Of({"yes", "no"}),
                      slices == 1 ? draw.Of({"yes", "no", "no"}) : "no");
  if (std::string(position) == "rope") {
    keys += draw.Of({"", "", "rope_scaling=linear\nrope_factor=3\n",
                     "rope_scaling=yarn\nrope_factor=4\nrope_original_positions=40\n",
                     "rope_scaling=llama3\nrope_factor=8\nrope_original_positions=20\n"});
  }
  keys += fmt::format("tie_embeddings={}\nscale_embedding={}\ninit={}\ninit_deviation=0.2\n",
                      draw.Of({"yes", "no"}), draw.Of({"yes", "no"}),
                      draw.Of({"normal", "gpt2", "xavier"}));
  for (const char* key : {"dropout", "attention_dropout", "ffn_dropout", "word_dropout",
                          "layer_dropout", "weight_dropout"}) {
    keys += fmt::format("{}={}\n", key, draw.Of({"0", "0.1", "0.3"}));
  }
  // Dropout may leave nothing of a row of a few features: with a small epsilon the norm multiplies
  // its gradient by hundreds, block after block, and rounding shows (on one rank too, from one
  // micro-batch size to another).
  keys += "norm_epsilon=1e-2\n";
  return keys + fmt::format("recompute={}\n", draw.Of({"none", "selective", "full"}));
}

// run.canonical: the same bits in every layout. Decks drawn at random, each in several layouts,
// against one rank with one thread whose micro-batches are single leaves; a run that moves from
// layout to layout; evaluation.

constexpr int kCanonicalDecks = 12, kCanonicalLayouts = 4;
constexpr std::int64_t kCanonicalDeckSteps = 4;  // of 4 an epoch: the last batch is short

struct Drawn {
  std::string deck;  // without a layout
  int groups = 1, slices = 1, leaf = 1;
};

Drawn DrawDeck(Draw& draw) {
  Drawn drawn;
  drawn.groups = draw.Of({1, 2, 4, 8, 8});
  drawn.slices = draw.Of({1, 2, 2, 4});
  drawn.leaf = draw.Between(1, 3);
  const int length = draw.Between(2, 9), batch = drawn.leaf + draw.Between(0, 20);
  drawn.deck = fmt::format(
      "[run]\nseed={}\ncanonical={}x{}\ncanonical_leaf={}\n[data]\nsequence_length={}\nbatch={}\n"
      "[model]\n{}",
      draw.Between(1, 1000), drawn.groups, drawn.slices, drawn.leaf, length, batch,
      ModelKeys(draw, length, drawn.slices));
  drawn.deck += fmt::format(
      "[optimizer]\nkind={}\nlearning_rate=1e-2\nclip_norm={}\nlabel_smoothing={}\n"
      "[schedule]\nsteps=20\nwarmup_steps=3\n",
      draw.Of({"adamw", "adamw", "sgd"}), draw.Of({"0", "0.5"}), draw.Of({"0", "0.05"}));
  // In some decks the first batches have fewer windows, and ranks none.
  if (drawn.leaf == 2) drawn.deck += "batch_ramp=3\nbatch_start=1\n";
  return drawn;
}

// A layout that divides, of up to `most` ranks; how many there are.
std::string DrawLayout(Draw& draw, const Drawn& drawn, int most, int& ranks) {
  int data = 1, tensor = 1, pipeline = 1;
  do {
    data = 1 << draw.Between(0, 3);
    tensor = 1 << draw.Between(0, 2);
    pipeline = draw.Of({1, 1, 2, 2, 3, 4});
    ranks = data * tensor * pipeline;
  } while (ranks > most || drawn.groups % data != 0 || drawn.slices % tensor != 0);
  const char* schedule = draw.Of({"gpipe", "1f1b", "interleaved", "zero_bubble", "zero_bubble"});
  const char* sharding = draw.Of({"none", "optimizer", "gradients", "parameters", "parameters"});
  std::string layout = fmt::format(
      "[grid]\ndata={}\ntensor={}\npipeline={}\nsequence_parallel={}\nsharding={}\nprefetch={}\n"
      "bucket_mib={}\n",
      data, tensor, pipeline, tensor > 1 ? draw.Of({"yes", "no"}) : "no", sharding,
      draw.Between(0, 2), draw.Of({"0.001", "0.01", "4"}));
  if (std::string(sharding) != "none") {
    layout += fmt::format("shard_group={}\n", data > 2 ? draw.Of({0, 0, 2}) : 0);
  }
  return layout + fmt::format("[pipeline]\nschedule={}\nchunks={}\n[data]\nmicro_batch={}\n",
                              schedule, std::string(schedule) == "interleaved" ? 2 : 1,
                              drawn.leaf * draw.Between(1, 4));
}

std::string CanonicalBytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// Losses and norms as they are, and the bytes of the two files of a checkpoint.
struct Bits {
  std::vector<double> losses, norms;
  std::string model, optimizer;
  bool operator==(const Bits&) const = default;
};

// 11 leaves in 8 groups of 2: a short one, and groups without any.
constexpr const char* kCanonicalModel =
    "[model]\nheads=8\nkv_heads=4\nhead_dim=4\ndim=13\nlayers=3\nffn=19\nmax_positions=7\n"
    "norm=rmsnorm\nactivation=swiglu\nposition=rope\ndropout=0.1\nattention_dropout=0.1\n"
    "init_deviation=0.2\n[optimizer]\nlearning_rate=1e-2\nclip_norm=0.5\nlabel_smoothing=0.05\n"
    "[schedule]\nsteps=20\nwarmup_steps=3\n[data]\nsequence_length=7\nbatch=21\n";
constexpr const char* kCanonical = "[run]\nseed=5\ncanonical=8x4\ncanonical_leaf=2\n";

struct CanonicalGrid {
  int ranks, threads;
  const char* keys;
};
constexpr std::array kMoves = {
    CanonicalGrid{8, 1, "[grid]\ndata=8\nsharding=parameters\n[data]\nmicro_batch=2\n"},
    CanonicalGrid{4, 2, "[grid]\ntensor=4\nsequence_parallel=yes\n[data]\nmicro_batch=10\n"},
    CanonicalGrid{1, 3, "[data]\nmicro_batch=6\n"},
    CanonicalGrid{8, 1,
                  "[grid]\ndata=2\ntensor=2\npipeline=2\nsharding=gradients\nbucket_mib=0.001\n"
                  "[pipeline]\nschedule=zero_bubble\n[data]\nmicro_batch=2\n"},
    CanonicalGrid{
        6, 1,
        "[grid]\ndata=2\npipeline=3\nsharding=optimizer\n[pipeline]\nschedule=gpipe\n[data]\n"
        "micro_batch=4\n[model]\nrecompute=full\n"},
    CanonicalGrid{
        8, 1,
        "[grid]\ndata=4\ntensor=2\nsharding=parameters\nshard_group=2\n[data]\nmicro_batch=4\n"}};

class CanonicalTest : public testing::Test {
 protected:
  explicit CanonicalTest(const data::TokenData& tokens = SyntheticTokens())
      : world_(World()),
        self_(comm::Communicator::Adopt(MPI_COMM_SELF)),
        tokens_(world_, tokens),
        folder_(world_) {}

  RunSettings Settings(const std::string& deck, int ranks, Dtype dtype, int threads) {
    RunSettings settings = SettingsOf(deck, tokens_, ranks, dtype);
    settings.stream.threads = threads;
    return settings;
  }

  Bits Train(const comm::Communicator& group, const RunSettings& settings, const std::string& name,
             std::int64_t end, const std::string& from = "") {
    TrainingRun run(group, tokens_, settings);
    if (!from.empty()) run.Load(folder_.Path() + "/" + from);
    Bits bits;
    while (run.Steps() < end) {
      bits.losses.push_back(run.Train(run.Steps() + 1).front());
      bits.norms.push_back(run.Last().gradient_norm);
    }
    const std::string path = folder_.Path() + "/" + name;
    run.Save(path);
    const std::string step = fmt::format("{}/step_{:08}", path, end);
    bits.model = CanonicalBytesOf(step + "/model.safetensors");
    bits.optimizer = CanonicalBytesOf(step + "/optimizer.safetensors");
    return bits;
  }

  // In a layout of `arithmetic`'s deck, on its ranks; the others wait.
  template <typename Body>
  void In(const CanonicalGrid& layout, const std::string& arithmetic, const Body& body) {
    SCOPED_TRACE(fmt::format("{} ranks\n{}", layout.ranks, layout.keys));
    const bool member = world_.Rank() < layout.ranks;
    const comm::Communicator group = world_.Split(member ? 0 : 1, world_.Rank());
    if (member) {
      body(group, Settings(arithmetic + kCanonicalModel + layout.keys, layout.ranks,
                           Dtype::kFloat32, layout.threads));
    }
    world_.Barrier();
  }

  // Settings of one rank with one thread.
  RunSettings Serial() {
    return Settings(std::string(kCanonical) + kCanonicalModel, 1, Dtype::kFloat32, 1);
  }

  comm::Communicator world_, self_;
  data::TokenFile tokens_;
  SharedFolder folder_;
};

TEST_F(CanonicalTest, RandomLayoutsEndInTheSameBits) {
  Draw draw(FromEnvironment("TRIREME_RANDOM_SEED", 2026));
  const int decks = FromEnvironment("TRIREME_RANDOM_DECKS", kCanonicalDecks);
  int compared = 0;
  for (int deck = 0; deck < decks; ++deck) {
    const Drawn drawn = DrawDeck(draw);
    const Dtype dtype = draw.Of({Dtype::kFloat32, Dtype::kFloat32, Dtype::kFloat64});
    const std::string mine = fmt::format("serial_{}_{}", deck, world_.Rank());
    const Bits wanted = Train(
        self_,
        Settings(fmt::format("{}[data]\nmicro_batch={}\n", drawn.deck, drawn.leaf), 1, dtype, 1),
        mine, kCanonicalDeckSteps);
    for (int layout = 0; layout < kCanonicalLayouts;) {
      int ranks = 0;
      const std::string text = drawn.deck + DrawLayout(draw, drawn, world_.Size(), ranks);
      const int threads = draw.Between(1, 3);
      RunSettings settings;
      try {
        settings = Settings(text, ranks, dtype, threads);
      } catch (const Error& error) {
        ASSERT_EQ(error.Code(), ExitCode::kBadInput) << error.what() << "\n" << text;
        ++layout;
        continue;  // does not fit
      }
      ++layout;
      ++compared;
      const std::string what = fmt::format("deck {}, layout {}, on {} ranks of {} threads:\n{}",
                                           deck, layout, ranks, threads, text);
      if (world_.IsRoot() && std::getenv("TRIREME_RANDOM_SHOW") != nullptr) {
        fmt::print("{}\n", what);
        std::fflush(stdout);
      }
      const comm::Communicator group = world_.Split(world_.Rank() < ranks ? 0 : 1, world_.Rank());
      if (world_.Rank() >= ranks) continue;
      const std::string name = fmt::format("layout_{}_{}", deck, layout);
      const Bits got = Train(group, settings, name, kCanonicalDeckSteps);
      EXPECT_EQ(got.losses, wanted.losses) << what;
      EXPECT_EQ(got.norms, wanted.norms) << what;
      EXPECT_TRUE(got.model == wanted.model) << what;
      EXPECT_TRUE(got.optimizer == wanted.optimizer) << what;
    }
    world_.Barrier();
  }
  EXPECT_GT(compared, 2 * decks);
}

// One step in each layout, from the checkpoint of the one before.
TEST_F(CanonicalTest, ARunThatMovesEndsInTheSameFiles) {
  const Bits wanted = Train(self_, Serial(), fmt::format("still_{}", world_.Rank()), kMoves.size());
  std::string from;
  for (std::size_t i = 0; i < kMoves.size(); ++i) {
    const std::string name = fmt::format("moved_{}", i);
    In(kMoves[i], kCanonical, [&](const comm::Communicator& group, const RunSettings& settings) {
      const Bits got = Train(group, settings, name, static_cast<std::int64_t>(i) + 1, from);
      EXPECT_EQ(got.losses, std::vector<double>{wanted.losses.at(i)});
      EXPECT_EQ(got.norms, std::vector<double>{wanted.norms.at(i)});
      if (i + 1 < kMoves.size()) return;
      EXPECT_TRUE(got.model == wanted.model);
      EXPECT_TRUE(got.optimizer == wanted.optimizer);
    });
    from = name;
  }
}

// Behind a training step, and of a model that only evaluates, whose micro-batches are no leaves.
TEST_F(CanonicalTest, EvaluationGivesTheSameBits) {
  TrainingRun serial(self_, tokens_, Serial());
  serial.Train(1);
  const double wanted = train::Evaluate(serial.Net(), tokens_, data::Split::kValid).loss;
  for (const CanonicalGrid& layout : kMoves) {
    In(layout, kCanonical, [&](const comm::Communicator& group, RunSettings settings) {
      TrainingRun run(group, tokens_, settings);
      run.Train(1);
      EXPECT_EQ(train::Evaluate(run.Net(), tokens_, data::Split::kValid).loss, wanted);
      const std::string path = fmt::format("{}/evaluated_{}", folder_.Path(), &layout - &kMoves[0]);
      run.Save(path);
      settings.model.training = false;
      settings.model.micro_batch = 3;
      model::ParallelModel net(run.Grid(), settings.model, settings.stream);
      checkpoint::ReadTensors(group, checkpoint::Find(group, path), "model", net.Blocks());
      EXPECT_EQ(train::Evaluate(net, tokens_, data::Split::kValid).loss, wanted);
    });
  }
}

// Sizes beyond a tile of the head, a block of the inner dimension and a tile of the attention, and
// enough work for several threads: three leaves of 640 rows, the last one short, in four groups.
class LargeLeaves : public CanonicalTest {
 protected:
  LargeLeaves() : CanonicalTest(ManyTokens()) {}
};

TEST_F(LargeLeaves, EndInTheSameBits) {
  const std::string deck =
      "[run]\nseed=5\ncanonical=4x4\ncanonical_leaf=4\n[model]\nheads=8\nkv_heads=4\nhead_dim=12\n"
      "dim=96\nlayers=2\nffn=331\nmax_positions=160\nnorm=rmsnorm\nactivation=swiglu\n"
      "position=rope\ndropout=0.1\nattention_dropout=0.1\n[optimizer]\nlearning_rate=1e-2\n"
      "[schedule]\nsteps=20\n[data]\nsequence_length=160\nbatch=9\n";
  constexpr std::int64_t kFew = 2;
  Bits wanted;
  for (const CanonicalGrid& layout :
       {CanonicalGrid{1, 1, "micro_batch=4\n"},
        CanonicalGrid{1, 3, "micro_batch=12\n[model]\nrecompute=full\n"},
        CanonicalGrid{4, 2, "[grid]\ntensor=4\nsequence_parallel=yes\n"},
        CanonicalGrid{8, 1,
                      "[grid]\ndata=2\ntensor=2\npipeline=2\nsharding=parameters\n[pipeline]\n"
                      "schedule=zero_bubble\n"}}) {
    const comm::Communicator group =
        world_.Split(world_.Rank() < layout.ranks ? 0 : 1, world_.Rank());
    const bool first = wanted.losses.empty();
    // All ranks need what one rank gives, and compute it themselves.
    const bool member = world_.Rank() < layout.ranks || first;
    if (!member) continue;
    const RunSettings settings =
        Settings(deck + layout.keys, layout.ranks, Dtype::kFloat32, layout.threads);
    const std::string name =
        fmt::format("large_{}_{}_{}", layout.ranks, layout.threads, first ? world_.Rank() : 0);
    const Bits got = Train(first ? self_ : group, settings, name, kFew);
    if (first) wanted = got;
    EXPECT_TRUE(got == wanted) << layout.keys;
  }
}

// The tests above can fail: without run.canonical bits differ, and so they do where a sum's tree
// depends on the number of ranks.
TEST_F(CanonicalTest, OtherArithmeticDiffersInSomeBits) {
  constexpr std::int64_t kFew = 3;
  const Bits wanted = Train(self_, Serial(), fmt::format("few_{}", world_.Rank()), kFew);
  int same = 0;
  for (std::size_t i = 0; i < kMoves.size(); ++i) {
    In(kMoves[i], "[run]\nseed=5\n",
       [&](const comm::Communicator& group, const RunSettings& settings) {
         const Bits got = Train(group, settings, fmt::format("fast_{}", i), kFew);
         EXPECT_LT(WorstRelative(got.losses, wanted.losses), 1e-5);
         same += got.model == wanted.model ? 1 : 0;
       });
  }
  EXPECT_EQ(same, 0);
  for (const CanonicalGrid& layout :
       {CanonicalGrid{8, 1, "[grid]\ndata=8\n"},
        CanonicalGrid{8, 1, "[grid]\ndata=8\nsharding=parameters\n"},
        CanonicalGrid{4, 1, "[grid]\ntensor=4\n"},
        CanonicalGrid{8, 1, "[grid]\ndata=2\ntensor=4\nsequence_parallel=yes\n"}}) {
    In(layout, kCanonical, [&](const comm::Communicator& group, RunSettings settings) {
      settings.defect = Defect::kTreeOfRanks;
      const Bits got = Train(group, settings, fmt::format("tree_{}", layout.ranks), kFew);
      EXPECT_LT(WorstRelative(got.losses, wanted.losses), 1e-5);
      EXPECT_FALSE(got.model == wanted.model);
    });
  }
}

// Rule 4 on decks drawn at random: architecture, sizes, batch, optimizer and layout together. A
// failure prints the deck. TRIREME_RANDOM_DECKS=n draws n of them, TRIREME_RANDOM_SEED=s others;
// TRIREME_RANDOM_SHOW prints each before it runs.

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
