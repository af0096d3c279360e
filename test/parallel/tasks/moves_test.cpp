// A run moves between layouts: a checkpoint of any is continued by any, evaluation and prediction
// are the same everywhere, and work that does not go round is shared out unevenly.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "small_run.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/train/evaluation.hpp"

namespace trireme::test {
namespace {

constexpr double kMovesFp64 = 1e-11;  // relative: losses, logits; weights in rule 4's norm
constexpr std::int64_t kMovesMoved = 3, kMovesEnd = 5;  // steps: when a run moves, when it ends

struct MovesLayout {
  int ranks;
  const char* keys;
};
constexpr std::array kMovesLayouts = {
    MovesLayout{8,
                "tensor=2\npipeline=2\nsequence_parallel=yes\n[pipeline]\nschedule=zero_bubble\n"
                "[data]\nmicro_batch=1\n"},
    MovesLayout{1, "[data]\nmicro_batch=4\n"}, MovesLayout{2, "[data]\nmicro_batch=3\n"},
    MovesLayout{3, "pipeline=3\n[pipeline]\nschedule=gpipe\n[data]\nmicro_batch=4\n"},
    MovesLayout{
        4, "tensor=4\nsequence_parallel=yes\n[model]\nrecompute=full\n[data]\nmicro_batch=10\n"},
    MovesLayout{6,
                "pipeline=3\ntensor=2\n[pipeline]\nschedule=interleaved\nchunks=2\n[data]\n"
                "micro_batch=4\n"},
    MovesLayout{8, "tensor=8\n[model]\nrecompute=selective\n[data]\nmicro_batch=2\n"},
    MovesLayout{8,
                "tensor=2\npipeline=4\nsequence_parallel=yes\n[pipeline]\nschedule=1f1b\n[data]\n"
                "micro_batch=3\n"},
    MovesLayout{8, "data=8\nsharding=parameters\n[data]\nmicro_batch=1\n"},
    MovesLayout{6, "data=3\ntensor=2\nsharding=optimizer\n[data]\nmicro_batch=2\n"},
    // Copies of key/value heads, on tensor ranks whose units have different sizes.
    MovesLayout{8, "data=2\ntensor=4\nsequence_parallel=yes\nsharding=parameters\nprefetch=0\n"},
    MovesLayout{8,
                "data=4\npipeline=2\nsharding=gradients\nshard_group=2\n[pipeline]\n"
                "schedule=zero_bubble\n[data]\nmicro_batch=1\n"},
    // Fewer positions than blocks of context ranks.
    MovesLayout{8, "context=8\n[data]\nmicro_batch=3\n"},
    MovesLayout{
        8,
        "context=2\ntensor=2\nsequence_parallel=yes\nsharding=parameters\nprefetch=2\n[model]\n"
        "recompute=full\n[data]\nmicro_batch=2\n"},
    MovesLayout{8,
                "context=2\npipeline=2\nsharding=parameters\nshard_group=2\n[pipeline]\n"
                "schedule=interleaved\nchunks=2\n[data]\nmicro_batch=3\n"}};
// Eight query heads on one key/value head: copies of it wherever heads are sliced.
constexpr const char* kLlama =
    "heads=8\nkv_heads=1\nhead_dim=2\ndim=13\nlayers=6\nffn=19\nnorm=rmsnorm\nactivation=swiglu\n"
    "position=rope\nbias=no\n";
constexpr const char* kGpt = "heads=8\nkv_heads=4\nhead_dim=3\ndim=12\nlayers=6\nffn=17\n";

std::string MovesDeckOf(const char* model, int batch, const std::string& layout) {
  return fmt::format(
      "[run]\nseed=11\n[data]\nsequence_length=7\nbatch={}\n[model]\n{}max_positions=7\n"
      "dropout=0.1\nattention_dropout=0.1\nffn_dropout=0.1\ninit_deviation=0.2\n[optimizer]\n"
      "learning_rate=1e-2\nclip_norm=0.5\nlabel_smoothing=0.05\n[schedule]\nsteps=20\n"
      "warmup_steps=3\n[grid]\nbucket_mib=0.001\n{}",
      batch, model, layout);
}

std::string MovesBytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class MovesTest : public LayoutTest {
 protected:
  // 37 windows: within five steps per epoch ends with a short batch.
  MovesTest() : LayoutTest(SyntheticTokens()), folder_(world_) {}

  RunSettings SettingsIn(const MovesLayout& layout, const char* model = kGpt, int batch = 10) {
    return SettingsOf(MovesDeckOf(model, batch, layout.keys), tokens_, layout.ranks,
                      Dtype::kFloat64);
  }

  // The body on the layout's ranks alone; the others wait.
  void In(const MovesLayout& layout, const char* model,
          const std::function<void(TrainingRun&)>& body, int batch = 10) {
    SCOPED_TRACE(fmt::format("{} ranks\n{}", layout.ranks, layout.keys));
    const bool member = world_.Rank() < layout.ranks;
    const comm::Communicator group = world_.Split(member ? 0 : 1, world_.Rank());
    if (member) {
      TrainingRun run(group, tokens_, SettingsIn(layout, model, batch));
      body(run);
    }
    world_.Barrier();
  }

  Outcome Serial(const char* model, std::int64_t steps, int batch = 10) {
    return RunDeck(self_, tokens_,
                   SettingsOf(MovesDeckOf(model, batch, ""), tokens_, 1, Dtype::kFloat64), steps);
  }

  // From a checkpoint to the end, against the run that was never interrupted.
  void ExpectContinued(TrainingRun& run, const std::string& checkpoint, const Outcome& wanted) {
    run.Load(checkpoint);
    const std::vector<double> losses = run.Train(kMovesEnd);
    const std::vector<double> rest(wanted.losses.begin() + kMovesMoved, wanted.losses.end());
    ASSERT_EQ(losses.size(), rest.size());
    EXPECT_LT(WorstRelative(losses, rest), kMovesFp64);
    EXPECT_LT(RuleFourDifference(run.Weights(), wanted.weights).relative, kMovesFp64);
  }

  SharedFolder folder_;
};

// There and back: the first layout's checkpoint in each of the others, theirs in the first. With
// the second model from each layout to the next.
TEST_F(MovesTest, AnyLayoutContinuesWhatAnyOtherBegan) {
  for (const char* model : {kGpt, kLlama}) {
    const bool all = model == kGpt;
    const Outcome wanted = Serial(model, kMovesEnd);
    const auto checkpoint = [&](std::size_t i) {
      return folder_ / fmt::format("{}_{}", all ? "gpt" : "llama", i);
    };
    for (std::size_t i = 0; i < kMovesLayouts.size(); ++i) {
      In(kMovesLayouts[i], model, [&](TrainingRun& run) {
        run.Train(1);
        train::Evaluate(run.Net(), tokens_, data::Split::kValid);  // leaves no trace
        run.Train(kMovesMoved);
        run.Save(checkpoint(i));
      });
    }
    const auto move = [&](std::size_t from, std::size_t to) {
      SCOPED_TRACE(fmt::format("from\n{}", kMovesLayouts[from].keys));
      In(kMovesLayouts[to], model,
         [&](TrainingRun& run) { ExpectContinued(run, checkpoint(from), wanted); });
    };
    for (std::size_t i = 0; i < kMovesLayouts.size(); ++i) {
      if (!all) move(i, (i + 1) % kMovesLayouts.size());
      if (all && i > 0) {
        move(0, i);
        move(i, 0);
      }
    }
  }
}

// Loaded, not computed: the same bytes from hand to hand through every layout, and back.
TEST_F(MovesTest, EveryLayoutWritesTheSameBytes) {
  for (const char* model : {kGpt, kLlama}) {
    std::string last = folder_ / (model == kGpt ? "gpt" : "llama");
    In(kMovesLayouts[0], model, [&](TrainingRun& run) {
      run.Train(kMovesMoved);
      run.Save(last);
    });
    const std::string step = fmt::format("/step_{:08}/", kMovesMoved);
    std::map<std::string, std::string> wanted;
    for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
      wanted[file] = MovesBytesOf(last + step + file);
      EXPECT_GT(wanted[file].size(), 5000U);
    }
    for (std::size_t i = 1; i <= kMovesLayouts.size(); ++i) {
      const std::string next = fmt::format("{}_{}", last, i);
      In(kMovesLayouts[i % kMovesLayouts.size()], model, [&](TrainingRun& run) {
        run.Load(last);
        run.Save(next);
      });
      for (const auto& [file, bytes] : wanted) {
        EXPECT_TRUE(MovesBytesOf(next + step + file) == bytes) << file << " of layout " << i;
      }
      last = next;
    }
  }
}

// Range of a tensor on this rank, and which of how many copies it is.
struct MovesHeld {
  std::int64_t begin, end;
  int replica, replicas;
};

// Collective. [tensors][ranks that hold some].
std::vector<std::vector<MovesHeld>> HeldByAll(const comm::Communicator& group,
                                              const std::vector<kernels::StateBlock>& blocks) {
  std::string mine;
  for (const kernels::StateBlock& block : blocks) {
    mine += fmt::format("{} {} {} {}\n", block.begin, block.end, block.replica, block.replicas);
  }
  std::vector<std::vector<MovesHeld>> all(blocks.size());
  for (const std::string& text : group.Gather(mine)) {
    std::istringstream lines(text);
    MovesHeld held{};
    for (std::size_t i = 0; lines >> held.begin >> held.end >> held.replica >> held.replicas; ++i) {
      if (held.end > held.begin) all.at(i).push_back(held);
    }
  }
  return all;
}

// Whether the ranks with one number hold each tensor once, for every number. Copies of key/value
// heads need not be cut alike.
void ExpectCovered(const std::vector<std::vector<MovesHeld>>& all,
                   const std::vector<kernels::StateBlock>& blocks) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    ASSERT_FALSE(all[i].empty()) << blocks[i].name;
    const int replicas = all[i].front().replicas;
    std::vector<std::map<std::int64_t, std::int64_t>> parts(static_cast<std::size_t>(replicas));
    for (const MovesHeld& held : all[i]) {
      ASSERT_EQ(held.replicas, replicas) << blocks[i].name;
      const bool first =
          parts.at(static_cast<std::size_t>(held.replica)).emplace(held.begin, held.end).second;
      EXPECT_TRUE(first) << blocks[i].name << " is held twice as number " << held.replica;
    }
    for (const auto& part : parts) {
      std::int64_t next = 0;
      for (const auto& [begin, end] : part) {
        EXPECT_EQ(begin, next) << blocks[i].name;
        next = end;
      }
      EXPECT_EQ(next, kernels::ElementCount(blocks[i].shape)) << blocks[i].name;
    }
  }
}

std::int64_t ElementsOf(const std::vector<kernels::StateBlock>& blocks) {
  std::int64_t sum = 0;
  for (const kernels::StateBlock& block : blocks) sum += block.end - block.begin;
  return sum;
}

// A rank reads and writes what it holds, and holds what it owns where that is sharded.
TEST_F(MovesTest, BlocksCoverEachTensorAndNothingElse) {
  for (const char* model : {kGpt, kLlama}) {
    for (const MovesLayout& layout : kMovesLayouts) {
      In(layout, model, [&](TrainingRun& run) {
        const std::vector<kernels::StateBlock> values = run.All().ModelBlocks(),
                                               moments = run.All().OptimizerBlocks(),
                                               gradients = run.All().GradientBlocks();
        for (const auto* blocks : {&values, &moments, &gradients}) {
          ExpectCovered(HeldByAll(run.Grid().World(), *blocks), *blocks);
        }
        // Two moments of an element, and nothing of what others own.
        EXPECT_EQ(ElementsOf(moments), 2 * ElementsOf(gradients));
        const comm::Sharding sharding = run.Grid().Shards();
        const std::int64_t ranks = run.Grid().Shard().Size();
        const std::int64_t held = run.Net().Parameters().Size();  // with padding
        const std::int64_t pieces = std::ssize(run.Net().Parameters().Owns().pieces);
        constexpr std::int64_t kLine = 32;
        EXPECT_LE(ElementsOf(gradients), held / ranks + pieces * kLine);
        if (sharding == comm::Sharding::kParameters) {
          EXPECT_EQ(ElementsOf(values), ElementsOf(gradients));
        } else {
          EXPECT_GE(ElementsOf(values), ElementsOf(gradients));
        }
      });
    }
  }
}

// Output of a trained model, besides its training loss.
struct Words {
  double loss = 0;
  std::int64_t targets = 0;
  std::vector<double> logits;  // behind an early, a middle and a last position
  std::vector<std::int32_t> continued, once;
};

Words WordsOf(TrainingRun& run, const data::TokenFile& tokens) {
  Words words;
  const train::Evaluation evaluation = train::Evaluate(run.Net(), tokens, data::Split::kValid);
  words.loss = evaluation.loss;
  words.targets = evaluation.targets;
  data::Entry batch;
  batch.sequences = 1;
  batch.length = 5;  // shorter than the model's sequences
  batch.inputs = {3, 99, 17, 0, 42};
  batch.targets.assign(5, data::kMasked);
  batch.ordinals = {0};
  for (const std::int64_t position : {0, 3, 4}) {
    const std::vector<double> logits = run.Net().Inference().Logits(batch, position);
    words.logits.insert(words.logits.end(), logits.begin(), logits.end());
  }
  tasks::GenerateOptions options;
  options.tokens = 12;
  options.seed = 5;
  words.continued = tasks::Continue(run.Net(), {3, 99, 17}, options);
  words.once = tasks::ContinueOnce(run.Net(), {3, 99, 17}, options);
  return words;
}

// A rank's part of fewer rows can be larger: of 7 rows on 5 ranks one holds 2, of 8 only 1. The
// memory of a model that only predicts must hold every length up to the longest.
TEST_F(MovesTest, WindowsOfEveryLengthFitWhereRowsAreSharded) {
  for (const int tensor : {5, 8}) {
    const std::string model =
        fmt::format("heads={}\nhead_dim=2\ndim=10\nlayers=2\nffn=16\n", tensor);
    const std::string text = fmt::format(
        "[data]\nsequence_length=12\nbatch=8\nmicro_batch=1\n[model]\n{}"
        "max_positions=12\ninit_deviation=0.2\n[schedule]\nsteps=20\n[grid]\n"
        "tensor={}\nsequence_parallel=yes\n",
        model, tensor);
    const comm::Communicator group = world_.Split(world_.Rank() < tensor ? 0 : 1, world_.Rank());
    if (world_.Rank() >= tensor) continue;
    const auto predict = [&](const comm::Communicator& ranks) {
      RunSettings settings = SettingsOf(text, tokens_, ranks.Size(), Dtype::kFloat64);
      settings.model.training = false;
      const comm::ProcessGrid grid(ranks, *settings.grid, settings.options);
      model::ParallelModel net(grid, settings.model, settings.stream);
      tasks::GenerateOptions options;
      options.tokens = 14;
      options.seed = 3;
      return tasks::ContinueOnce(net, {7}, options);
    };
    EXPECT_EQ(predict(group), predict(self_)) << tensor;
  }
}

TEST_F(MovesTest, EvaluationAndPredictionAreTheSameEverywhere) {
  for (const char* model : {kGpt, kLlama}) {
    const std::string checkpoint = folder_ / (model == kGpt ? "gpt" : "llama");
    In(kMovesLayouts[0], model, [&](TrainingRun& run) {
      run.Train(kMovesMoved);
      run.Save(checkpoint);
    });
    TrainingRun serial(self_, tokens_, SettingsIn(kMovesLayouts[1], model));
    serial.Load(checkpoint);
    const Words wanted = WordsOf(serial, tokens_);
    EXPECT_EQ(wanted.targets, tokens_.Size(data::Split::kValid) - 1);
    EXPECT_EQ(wanted.logits.size(), static_cast<std::size_t>(3 * kVocabulary));
    std::vector<MovesLayout> layouts(kMovesLayouts.begin(), kMovesLayouts.end());
    // Seven windows: fewer than data ranks, and not a multiple of stages.
    layouts.push_back({8, "data=8\n"});
    layouts.push_back({8,
                       "data=4\npipeline=2\n[pipeline]\nschedule=interleaved\nchunks=3\n[data]\n"
                       "micro_batch=2\n"});
    for (const MovesLayout& layout : layouts) {
      In(layout, model, [&](TrainingRun& run) {
        run.Load(checkpoint);
        const Words words = WordsOf(run, tokens_);
        EXPECT_LT(WorstRelative({words.loss}, {wanted.loss}), kMovesFp64);
        EXPECT_EQ(words.targets, wanted.targets);
        EXPECT_LT(RuleFourDifference({words.logits}, {wanted.logits}).relative, kMovesFp64);
        EXPECT_EQ(words.continued, wanted.continued);
        // On the first replica, at least.
        if (run.Grid().Coordinates().data == 0 || !words.once.empty()) {
          EXPECT_EQ(words.once, wanted.continued);
        }
        // The same bits on every rank: they go on to draw the same token.
        std::vector<double> first = words.logits;
        run.Grid().World().Broadcast(first.data(),
                                     static_cast<std::int64_t>(first.size() * sizeof(double)));
        EXPECT_EQ(first, words.logits);
      });
    }
  }
}

// Batches smaller than the number of data ranks, last micro-batches that are short, and schedules
// that have to be filled up with empty ones.
TEST_F(MovesTest, UnevenWorkIsTheSameWork) {
  constexpr std::int64_t kUneven = 6;  // of 7 windows: the last one has 2
  struct Case {
    int batch;
    MovesLayout layout;
  };
  for (const Case& uneven :
       {Case{3, {8, "data=4\ntensor=2\nsequence_parallel=yes\n"}},
        Case{1, {8, "data=2\ntensor=4\n[data]\nmicro_batch=1\n"}}, Case{1, {8, "data=8\n"}},
        Case{3, {8, "data=4\npipeline=2\n[pipeline]\nschedule=zero_bubble\n"}},
        Case{1, {8, "data=2\ntensor=2\npipeline=2\n[pipeline]\nschedule=gpipe\n"}},
        Case{5, {8, "data=2\npipeline=4\n[pipeline]\nschedule=1f1b\n[data]\nmicro_batch=2\n"}},
        // Three data ranks, six ranks; one has 4 windows, in 3 micro-batches at most.
        Case{10,
             {6,
              "data=3\npipeline=2\n[pipeline]\nschedule=interleaved\nchunks=2\n[data]\n"
              "micro_batch=1\n"}},
        Case{7,
             {8,
              "data=2\ntensor=2\npipeline=2\nsequence_parallel=yes\n[pipeline]\n"
              "schedule=interleaved\nchunks=3\n[data]\nmicro_batch=2\n"}},
        Case{4,
             {8,
              "data=2\ntensor=2\npipeline=2\n[pipeline]\nschedule=interleaved\nchunks=3\n[data]"
              "\nmicro_batch=1\n"}},
        // Ranks without windows gather and scatter for the others.
        Case{3, {8, "data=4\ncontext=2\nsharding=parameters\n[data]\nmicro_batch=1\n"}},
        Case{1, {8, "data=8\nsharding=gradients\nshard_group=4\n"}},
        Case{3,
             {8, "data=4\ntensor=2\nsharding=parameters\nshard_group=2\nsequence_parallel=yes\n"}},
        Case{5,
             {8,
              "data=2\ncontext=2\npipeline=2\nsharding=gradients\n[pipeline]\n"
              "schedule=zero_bubble\n[data]\nmicro_batch=1\n"}},
        // More shards than rows in a sequence: some ranks hold none of a short micro-batch.
        Case{1, {8, "tensor=8\nsequence_parallel=yes\n[model]\nrecompute=full\n"}}}) {
    const char* model = uneven.batch % 2 == 0 ? kLlama : kGpt;
    const Outcome wanted = Serial(model, kUneven, uneven.batch);
    In(
        uneven.layout, model,
        [&](TrainingRun& run) {
          EXPECT_LT(WorstRelative(run.Train(kUneven), wanted.losses), kMovesFp64);
          EXPECT_LT(WorstRelative({run.Last().gradient_norm}, {wanted.norm}), kMovesFp64);
          EXPECT_LT(RuleFourDifference(run.Gradients(), wanted.gradients).relative, kMovesFp64);
          EXPECT_LT(RuleFourDifference(run.Weights(), wanted.weights).relative, kMovesFp64);
        },
        uneven.batch);
  }
}

}  // namespace
}  // namespace trireme::test
