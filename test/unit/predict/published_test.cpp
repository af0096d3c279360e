// Predictions: tapes of steps, and published speeds.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine.hpp"
#include "trireme/app/sources.hpp"
#include "trireme/device/activities.hpp"
#include "trireme/parallel/pipeline.hpp"
#include "trireme/predict/machine.hpp"
#include "trireme/predict/search.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/train/plan.hpp"

namespace trireme::predict::test {

// Plans of decks on described machines, for tests.

// A deck of lines "section.key=value" on `ranks` ranks of a machine.
struct Case {
  Case(const std::string& name, int ranks, const std::vector<std::string>& keys)
      : machine(ReadMachine(name, TRIREME_SOURCE)) {
    static const deck::Schema schema = tasks::DeclareAll();  // decks refer to it
    app::CommandLine line;
    line.deck = "a.in";
    line.overrides = keys;
    const deck::Deck deck = app::ParseDeck(schema, line, "");
    const train::DeckOptions options = train::ReadAll(deck);
    if (machine.gpu) gpu = std::make_unique<device::Gpu>(machine.Card());
    plan = train::MakePlan({.options = options,
                            .deck = deck,
                            .ranks = ranks,
                            .tokens = {.vocabulary = options.plan.vocabulary,
                                       .train = options.plan.tokens,
                                       .bytes = 0,
                                       .source = "a test"},
                            .machine = train::FactsOf(options.machine.precision, gpu.get(), 1)});
  }
  Machine machine;
  std::unique_ptr<device::Gpu> gpu;
  train::Plan plan;
};

}  // namespace trireme::predict::test

namespace trireme::predict {
namespace {

using test::Case;

// Speeds that others have published, from one description per machine (doc/reference/predictions.md
// has the sources and the assumptions).

using Keys = std::vector<std::string>;

constexpr double kAllowed = 0.15;

double TokensPerRank(const std::string& machine, int ranks, Keys keys, const Keys& more) {
  keys.insert(keys.end(), more.begin(), more.end());
  const Case one(machine, ranks, keys);
  return Predict(one.plan, one.machine).tokens_per_second / ranks;
}

Keys Foundry(const char* dim, const char* ffn, const char* layers, const char* heads) {
  return {std::string("model.dim=") + dim,
          std::string("model.ffn=") + ffn,
          std::string("model.layers=") + layers,
          std::string("model.heads=") + heads,
          "model.position=rope",
          "model.bias=no",
          "plan.vocabulary=50432",
          "data.sequence_length=2048",
          "grid.sharding=parameters",
          "run.precision=bf16"};
}

TEST(Published, LlmFoundryOnH100) {
  const Keys large = Foundry("8192", "32768", "80", "64"),
             small = Foundry("4096", "16384", "32", "32");
  struct Point {
    int ranks;
    double large, small;
  };
  for (const Point& point :
       {Point{128, 1058, 10475}, Point{256, 1035, 10119}, Point{512, 1007, 9670}}) {
    const double of_large = TokensPerRank("h100", point.ranks, large,
                                          {"data.batch=" + std::to_string(8 * point.ranks),
                                           "data.micro_batch=8", "model.recompute=full"});
    const double of_small =
        TokensPerRank("h100", point.ranks, small,
                      {"data.batch=" + std::to_string(6 * point.ranks), "data.micro_batch=6"});
    EXPECT_NEAR(of_large / point.large, 1, kAllowed) << "70B on " << point.ranks;
    EXPECT_NEAR(of_small / point.small, 1, kAllowed) << "7B on " << point.ranks;
  }
}

TEST(Published, TorchtitanOnH100At500W) {
  const Keys model = {"model.preset=llama3_8b",    "plan.vocabulary=128256",
                      "data.sequence_length=8192", "grid.sharding=parameters",
                      "data.micro_batch=2",        "model.recompute=selective"};
  struct Point {
    int ranks;
    double bf16, fp8;
  };
  for (const Point& point : {Point{8, 6667, 8532}, Point{128, 6514, 8380}}) {
    const std::string batch = "data.batch=" + std::to_string(2 * point.ranks);
    EXPECT_NEAR(
        TokensPerRank("h100_500w", point.ranks, model, {batch, "run.precision=bf16"}) / point.bf16,
        1, kAllowed);
    EXPECT_NEAR(
        TokensPerRank("h100_500w", point.ranks, model, {batch, "run.precision=fp8"}) / point.fp8, 1,
        kAllowed);
  }
}

TEST(Published, TorchtitanWith405Billion) {
  const Keys model = {
      "model.preset=llama3_70b", "model.dim=16384",        "model.layers=126",
      "model.heads=128",         "model.kv_heads=8",       "model.head_dim=128",
      "model.ffn=53248",         "plan.vocabulary=128256", "data.sequence_length=8192",
      "grid.tensor=8",           "grid.pipeline=8",        "grid.sequence_parallel=yes",
      "grid.sharding=gradients", "data.batch=256",         "data.micro_batch=1",
      "model.recompute=full",    "run.precision=fp8"};
  EXPECT_NEAR(TokensPerRank("h100_500w", 512, model, {}) / 100, 1, kAllowed);
  EXPECT_NEAR(TokensPerRank("h100_500w", 512, model,
                            {"pipeline.schedule=interleaved", "pipeline.chunks=2"}) /
                  128,
              1, kAllowed);
}

// Megatron's selective recomputation repeats attention's scores, which the backward pass of
// attention does here in any case (doc/reference/predictions.md).
TEST(Published, MegatronWithGpt3) {
  const Keys model = {
      "model.dim=12288",    "model.layers=96",         "model.heads=96",
      "model.ffn=49152",    "model.position=rope",     "plan.vocabulary=51200",
      "data.batch=1152",    "data.micro_batch=1",      "data.sequence_length=2048",
      "grid.tensor=8",      "grid.sharding=optimizer", "grid.sequence_parallel=yes",
      "run.precision=bf16", "model.recompute=none",    "pipeline.schedule=interleaved"};
  Keys few = model, many = model;
  few.insert(few.end(), {"grid.pipeline=6", "pipeline.chunks=16"});
  many.insert(many.end(), {"grid.pipeline=16", "pipeline.chunks=6"});
  const Case small("h100", 96, few), large("h100", 4608, many);
  EXPECT_NEAR(Predict(small.plan, small.machine).utilisation / 0.47, 1, kAllowed);
  EXPECT_NEAR(Predict(large.plan, large.machine).utilisation / 0.42, 1, kAllowed);
}

// A plan for 100,000 ranks takes no more than one for a few.
TEST(Prediction, HundredThousandRanks) {
  const Case one(
      "h100", 100000,
      {"model.preset=llama3_70b", "plan.vocabulary=128256", "data.sequence_length=8192",
       "grid.tensor=8", "grid.pipeline=4", "grid.sequence_parallel=yes", "grid.sharding=optimizer",
       "data.batch=12500", "data.micro_batch=1", "run.precision=bf16"});
  const Prediction prediction = Predict(one.plan, one.machine);
  EXPECT_GT(prediction.utilisation, 0.05);
  EXPECT_LT(prediction.utilisation, 0.6);
}

// Tapes against the ledger: calls and bytes of each group and kind, and the schedule's tasks. The
// ledger of a planned rank is that of a real one (test/parallel/plan).

const std::vector<std::string> kModel = {
    "model.dim=64",  "model.heads=4",      "model.layers=8",     "model.ffn=256",
    "data.batch=16", "data.micro_batch=1", "run.precision=bf16", "plan.vocabulary=512"};

std::vector<std::string> With(std::vector<std::string> more) {
  more.insert(more.begin(), kModel.begin(), kModel.end());
  return more;
}

void ExpectLedger(const train::Plan& plan, const Machine& machine) {
  const PlayedStep step = PlayStep(plan, machine, {plan.training.Batch()}, false);
  for (std::size_t stage = 0; stage < step.tapes.size(); ++stage) {
    comm::Ledger counted;
    for (const TapeTransfer& transfer : step.tapes[stage].transfers) {
      counted.Record(static_cast<comm::Group>(transfer.what.group),
                     static_cast<comm::Transfer>(transfer.what.transfer), transfer.what.ranks,
                     transfer.what.bytes, 0, 0);
    }
    const train::RankPlan whole = train::PlanRank(
        plan,
        comm::RankAt({.pipeline = static_cast<int>(stage), .data = 0, .context = 0, .tensor = 0},
                     plan.grid));
    for (int group = 0; group < comm::kGroups; ++group) {
      for (int transfer = 0; transfer < comm::kTransfers; ++transfer) {
        const auto name = static_cast<comm::Group>(group);
        const auto kind = static_cast<comm::Transfer>(transfer);
        // A shift's receive is told with its send.
        if (name == comm::Group::kContext && kind == comm::Transfer::kReceive) continue;
        EXPECT_EQ(counted.At(name, kind).calls, whole.traffic.At(name, kind).calls)
            << "stage " << stage << " " << comm::NameOf(name) << " " << comm::NameOf(kind);
        EXPECT_EQ(counted.At(name, kind).payload, whole.traffic.At(name, kind).payload)
            << "stage " << stage << " " << comm::NameOf(name) << " " << comm::NameOf(kind);
      }
    }
  }
}

TEST(Tape, HasTheLedgersCallsAndBytes) {
  const std::vector<std::pair<int, std::vector<std::string>>> layouts = {
      {1, {}},
      {2, {"grid.data=2"}},
      {2, {"grid.tensor=2", "grid.sequence_parallel=yes"}},
      {4, {"grid.context=2", "grid.tensor=2"}},
      {4, {"grid.sharding=parameters"}},
      {8, {"grid.sharding=gradients", "grid.shard_group=2"}},
      {4, {"grid.pipeline=4", "pipeline.schedule=zero_bubble"}},
      {8,
       {"grid.pipeline=2", "grid.tensor=2", "pipeline.schedule=interleaved", "pipeline.chunks=2",
        "grid.sharding=optimizer"}},
      {8, {"grid.pipeline=4", "model.tie_embeddings=yes", "model.recompute=full"}}};
  for (const auto& [ranks, keys] : layouts) {
    SCOPED_TRACE(keys.empty() ? "one rank" : keys.front());
    const Case one("h100", ranks, With(keys));
    ExpectLedger(one.plan, one.machine);
  }
}

// Adds up the bytes of kernels without products.
class PassLog : public device::WorkLog {
 public:
  void Product(std::int64_t, std::int64_t, std::int64_t, Dtype, bool) override {}
  void Attention(double, double, Dtype) override {}
  void Pass(double pass) override { bytes += pass; }
  int Start(const device::LoggedTransfer&) override { return 0; }
  void Wait(int) override {}
  void BeginTask(int, int, int) override {}
  void EndTask() override {}

  double bytes = 0;
};

// Matrices of a token's `dim` numbers in bf16 that dropout adds to a step of the last of the ranks.
double MoreWithDropout(int ranks, std::vector<std::string> keys) {
  keys.emplace_back("data.sequence_length=32");
  PassLog logs[2];
  for (const bool dropout : {false, true}) {
    keys.emplace_back(dropout ? "model.dropout=0.1" : "model.dropout=0");
    const Case one("h100", ranks, With(keys));
    train::PlanRank(one.plan, ranks - 1, {one.plan.training.Batch()}, &logs[dropout ? 1 : 0]);
    keys.pop_back();
  }
  return (logs[1].bytes - logs[0].bytes) / (2.0 * 64 * 16 * 32);
}

// Without dropout the gradient of a branch is that of the sum before it: no copy is made of it, as
// long as it is there when the weights' gradients are computed.
TEST(Tape, HasNoCopiesOfGradientsWithoutDropout) {
  constexpr int kLayers = 8, kEmbedding = 2;  // read and written
  EXPECT_EQ(MoreWithDropout(1, {"model.norm_position=pre"}), kLayers * 3 + kEmbedding);
  EXPECT_EQ(MoreWithDropout(1, {"model.norm_position=post"}), kLayers * 2 + kEmbedding);
  // The last stage, without the embedding, computes weights' gradients later.
  EXPECT_EQ(MoreWithDropout(
                2, {"model.norm_position=pre", "grid.pipeline=2", "pipeline.schedule=zero_bubble"}),
            0);
}

// All-gathers of a group that start in tasks of a kind, and how many of them there is computation
// behind: between the start and the wait.
struct Gathers {
  int all = 0, behind = 0;
};

Gathers CountGathers(const Tape& tape, comm::Group group, bool (*in)(parallel::TaskKind)) {
  Gathers gathers;
  std::map<int, bool> open;  // by transfer: whether anything was computed since
  bool counts = false;
  for (const TapeEvent& event : tape.events) {
    const auto at = static_cast<std::size_t>(event.index);
    switch (event.kind) {
      case TapeEvent::Kind::kBeginTask:
        counts = in(static_cast<parallel::TaskKind>(tape.tasks[at].kind));
        break;
      case TapeEvent::Kind::kCompute:
        for (auto& [transfer, computed] : open) computed = true;
        break;
      case TapeEvent::Kind::kStart: {
        const device::LoggedTransfer& what = tape.transfers[at].what;
        if (!counts || static_cast<comm::Group>(what.group) != group ||
            static_cast<comm::Transfer>(what.transfer) != comm::Transfer::kAllGather) {
          break;
        }
        open[event.index] = false;
        ++gathers.all;
        break;
      }
      case TapeEvent::Kind::kWait:
        if (const auto found = open.find(event.index); found != open.end()) {
          gathers.behind += found->second ? 1 : 0;
          open.erase(found);
        }
        break;
      case TapeEvent::Kind::kEndTask:
        EXPECT_TRUE(open.empty());
        counts = false;
        break;
    }
  }
  return gathers;
}

// Only a weight gradient needs the input of its sub-layer: it is gathered while the gradient of the
// input is computed. The gradient of the branch, which both need, is not.
TEST(Tape, InputsOfSubLayersAreGatheredBehindTheirGradients) {
  const auto backward = [](parallel::TaskKind kind) {
    return kind == parallel::TaskKind::kBackward || kind == parallel::TaskKind::kBackwardInput;
  };
  const auto forward = [](parallel::TaskKind kind) { return kind == parallel::TaskKind::kForward; };
  constexpr int kMicroBatches = 16, kLayers = 8, kSubLayers = 2;
  for (const char* schedule : {"1f1b", "zero_bubble"}) {
    for (const char* recompute : {"none", "full"}) {
      SCOPED_TRACE(fmt::format("{}, recompute {}", schedule, recompute));
      const Case one("h100", 4,
                     With({"grid.pipeline=2", "grid.tensor=2", "grid.sequence_parallel=yes",
                           std::string("pipeline.schedule=") + schedule,
                           std::string("model.recompute=") + recompute}));
      const PlayedStep step = PlayStep(one.plan, one.machine, {one.plan.training.Batch()}, false);
      int behind = 0;
      for (const Tape& tape : step.tapes) {
        const Gathers gathers = CountGathers(tape, comm::Group::kTensor, backward);
        EXPECT_GE(gathers.all, 2 * gathers.behind);
        behind += gathers.behind;
        EXPECT_EQ(CountGathers(tape, comm::Group::kTensor, forward).behind, 0);
      }
      EXPECT_EQ(behind, kMicroBatches * kLayers * kSubLayers);
    }
  }
}

// What the update has changed on other ranks is gathered while the next step begins: the embedding
// waits for its own values alone, and each block for its own.
TEST(Tape, UpdatedValuesArriveUnitByUnit) {
  for (const char* sharding : {"optimizer", "gradients"}) {
    for (const char* stages : {"1", "2"}) {
      SCOPED_TRACE(fmt::format("{}, {} stages", sharding, stages));
      const Case one("h100", 8,
                     With({std::string("grid.sharding=") + sharding, "grid.bucket_mib=0.01",
                           std::string("grid.pipeline=") + stages}));
      const PlayedStep step = PlayStep(one.plan, one.machine, {one.plan.training.Batch()}, false);
      for (const Tape& tape : step.tapes) {
        std::vector<std::int32_t> started, awaited;
        std::vector<std::size_t> in_flight;  // whenever something is computed in the first task
        bool first = false, done = false;
        for (const TapeEvent& event : tape.events) {
          if (event.kind == TapeEvent::Kind::kBeginTask) first = !done;
          if (event.kind == TapeEvent::Kind::kEndTask) done = true, first = false;
          if (event.kind == TapeEvent::Kind::kCompute && first) {
            in_flight.push_back(started.size() - awaited.size());
          }
          if (event.kind != TapeEvent::Kind::kStart && event.kind != TapeEvent::Kind::kWait) {
            continue;
          }
          const device::LoggedTransfer& what =
              tape.transfers[static_cast<std::size_t>(event.index)].what;
          if (static_cast<comm::Group>(what.group) != comm::Group::kShard ||
              static_cast<comm::Transfer>(what.transfer) != comm::Transfer::kAllGather) {
            continue;
          }
          (event.kind == TapeEvent::Kind::kStart ? started : awaited).push_back(event.index);
        }
        const std::size_t blocks = 8 / one.plan.grid.pipeline;
        ASSERT_GE(started.size(), blocks);
        EXPECT_EQ(awaited, started);  // in this order
        // The first computation of the step has the last gathers still to come, the last one none
        // but those of the head: its unit and the table.
        ASSERT_GE(in_flight.size(), blocks);
        EXPECT_GE(in_flight.front(), blocks - 1);
        EXPECT_LE(in_flight.back(), 2U);
        EXPECT_TRUE(std::ranges::is_sorted(in_flight, std::greater<>()));
      }
    }
  }
}

TEST(Tape, HasEachTaskOfTheSchedule) {
  const Case one("h100", 4, With({"grid.pipeline=4"}));
  const PlayedStep step = PlayStep(one.plan, one.machine, {one.plan.training.Batch()}, true);
  for (const Tape& tape : step.tapes) EXPECT_EQ(tape.tasks.size(), 2U * 16);
  const Prediction prediction = Predict(one.plan, one.machine);
  EXPECT_EQ(prediction.tasks, 4 * 2 * 16);
  EXPECT_EQ(prediction.micro_batches, 16);
}

// Terms add up, and a step played in short is the whole one.
TEST(Prediction, ShortStepsExtendToTheWhole) {
  for (const char* schedule : {"1f1b", "gpipe", "zero_bubble", "interleaved"}) {
    std::vector<std::string> keys = With({"grid.pipeline=2"});
    std::ranges::replace(keys, std::string("data.batch=16"), std::string("data.batch=64"));
    keys.push_back(std::string("pipeline.schedule=") + schedule);
    if (keys.back().ends_with("interleaved")) keys.emplace_back("pipeline.chunks=2");
    const Case one("h100", 4, keys);
    const Prediction prediction = Predict(one.plan, one.machine);
    const PlayedStep whole = PlayStep(one.plan, one.machine, {one.plan.training.Batch()}, false);
    EXPECT_NEAR(prediction.step / whole.simulated.Makespan(), 1, 1e-6) << schedule;
    EXPECT_NEAR(prediction.compute + prediction.Exposed() + prediction.bubble + prediction.other,
                prediction.step, 1e-12);
    std::int64_t tasks = 0;
    for (const Tape& tape : whole.tapes) tasks += std::ssize(tape.tasks);
    EXPECT_EQ(prediction.tasks, tasks) << schedule;
  }
}

}  // namespace
}  // namespace trireme::predict
