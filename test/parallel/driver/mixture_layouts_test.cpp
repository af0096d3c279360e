// A mixture of two token files: any layout computes what one rank computes, also with masks of
// documents and of the loss or streamed, and a run that stops goes on in another layout, also with
// other weights.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <span>
#include <string>
#include <vector>

#include "layout_fixture.hpp"
#include "masked_tokens.hpp"
#include "trireme/train/evaluation.hpp"

namespace trireme::test {
namespace {

constexpr double kMixtureLayoutsFp64 = 1e-11;  // relative: losses; weights in rule 4's norm
constexpr std::int64_t kMixtureLayoutsMoved = 4,
                       kMixtureLayoutsEnd = 8;  // steps: when a run moves, when it ends

struct MixtureLayout {
  int ranks;
  const char* keys;
};
constexpr std::array kMixtureLayouts = {
    MixtureLayout{1, "[data]\nmicro_batch=3\n"},
    MixtureLayout{4, "data=2\ntensor=2\n[data]\nmicro_batch=2\n"},
    MixtureLayout{8,
                  "data=2\ntensor=2\npipeline=2\nsequence_parallel=yes\n[data]\nmicro_batch=1\n"},
    MixtureLayout{3, "data=3\nsharding=parameters\n[data]\nmicro_batch=2\n"},
    MixtureLayout{8, "data=2\ncontext=2\ntensor=2\nsharding=optimizer\n[data]\nmicro_batch=3\n"}};

std::string MixtureLayoutsDeckOf(const char* keys, bool masks) {
  return fmt::format(
      "[run]\nseed=11\n[data]\nsequence_length=7\nbatch=10\ndocument_mask={}\n"
      "[model]\nheads=8\nkv_heads=4\n"
      "head_dim=3\ndim=12\nlayers=2\nffn=17\nmax_positions=7\ndropout=0.1\ninit_deviation=0.2\n"
      "[optimizer]\nlearning_rate=1e-2\n[schedule]\nsteps=20\nwarmup_steps=3\n[grid]\n{}",
      masks ? "yes" : "no", keys);
}

// Tokens of another text of the same language, fewer: 12 windows, the last one short.
data::TokenData OtherTokens() {
  data::TokenData data = SyntheticTokens();
  data.tokens[0].resize(80);
  for (std::int32_t& id : data.tokens[0]) id = (id * 3 + 1) % kVocabulary;
  data.source_sha256 = std::string(64, '1');
  return data;
}

class MixtureLayouts : public testing::Test {
 protected:
  // masks: both files know their documents, the second one alone has a mask of the loss.
  explicit MixtureLayouts(bool masks = false)
      : world_(World()), self_(comm::Communicator::Adopt(MPI_COMM_SELF)), masks_(masks) {
    data::TokenData first = SyntheticTokens(), second = OtherTokens();
    if (masks) {
      AddDocuments(first);
      AddDocuments(second);
      AddLossMask(second);
    }
    for (const data::TokenData& data : {first, second}) {
      files_.emplace_back(world_, data);
      const std::string path = folder_ / fmt::format("{}.h5", files_.size());
      world_.Together([&] {
        if (world_.IsRoot()) data::WriteTokenFile(path, data, false);
      });
      streamed_.emplace_back(world_, world_, path, data::Staging::kStream);
    }
  }

  data::Corpus Corpus() const { return data::Corpus(std::span(files_)); }

  // The deck's run on a mixture of the two files, from an origin.
  RunSettings Settings(const MixtureLayout& layout, const std::array<double, 2>& weights,
                       const data::Origin& origin = {}) const {
    train::TokenFacts facts{
        .vocabulary = kVocabulary, .train = 0, .source = "tokens in memory", .loss_mask = masks_};
    for (std::size_t i = 0; i < files_.size(); ++i) {
      const std::int64_t tokens = files_[i].Size(data::Split::kTrain);
      facts.train += tokens;
      facts.sources.push_back({tokens, {.weight = weights[i]}});
    }
    RunSettings settings = SettingsOf(
        PlanOf(MixtureLayoutsDeckOf(layout.keys, masks_), facts, layout.ranks, Dtype::kFloat64));
    settings.origin = origin;
    return settings;
  }

  // The body on the layout's ranks alone; the others wait.
  template <typename Body>
  void In(const MixtureLayout& layout, const RunSettings& settings, const Body& body) {
    In(layout, settings, files_, body);
  }
  template <typename Body>
  void In(const MixtureLayout& layout, const RunSettings& settings,
          const std::vector<data::TokenFile>& files, const Body& body) {
    SCOPED_TRACE(fmt::format("{} ranks\n{}", layout.ranks, layout.keys));
    const bool member = world_.Rank() < layout.ranks;
    const comm::Communicator group = world_.Split(member ? 0 : 1, world_.Rank());
    if (member) {
      TrainingRun run(group, data::Corpus(std::span(files)), settings);
      body(run);
    }
    world_.Barrier();
  }

  Outcome Serial(std::int64_t steps) const {
    return RunDeck(self_, Corpus(), Settings(kMixtureLayouts.front(), {3, 1}), steps);
  }

  comm::Communicator world_, self_;
  const SharedFolder folder_{world_};
  // Losses and weights of every layout against one rank's; returns that rank's.
  Outcome CompareLayouts() {
    const Outcome wanted = Serial(kMixtureLayoutsEnd);
    for (const MixtureLayout& layout : kMixtureLayouts) {
      In(layout, Settings(layout, {3, 1}), [&](TrainingRun& run) {
        EXPECT_LT(WorstRelative(run.Train(kMixtureLayoutsEnd), wanted.losses), kMixtureLayoutsFp64);
        EXPECT_LT(RuleFourDifference(run.Weights(), wanted.weights).relative, kMixtureLayoutsFp64);
      });
    }
    return wanted;
  }

  // Bit by bit: training, validation, and steps that are repeated, from files that are streamed.
  void CompareStreams() {
    struct Numbers {
      std::vector<double> losses, again;
      double valid = 0;
      Tensors weights;
    };
    const auto train = [](TrainingRun& run, const data::TokenFile& tokens) {
      Numbers numbers;
      numbers.losses = run.Train(kMixtureLayoutsEnd);
      numbers.valid = train::Evaluate(run.Net(), tokens, data::Split::kValid).loss;
      numbers.again = run.Train(kMixtureLayoutsEnd + 3);
      numbers.weights = run.Weights();
      return numbers;
    };
    for (const MixtureLayout& layout : kMixtureLayouts) {
      const RunSettings settings = Settings(layout, {3, 1});
      Numbers wanted;
      In(layout, settings, [&](TrainingRun& run) { wanted = train(run, files_.front()); });
      In(layout, settings, streamed_, [&](TrainingRun& run) {
        const Numbers found = train(run, streamed_.front());
        EXPECT_EQ(found.losses, wanted.losses);
        EXPECT_EQ(found.valid, wanted.valid);
        EXPECT_EQ(found.again, wanted.again);
        EXPECT_EQ(found.weights, wanted.weights);
      });
    }
  }

  bool masks_ = false;
  std::vector<data::TokenFile> files_, streamed_;  // in memory; the same, read as needed
};

class MaskedMixtureLayouts : public MixtureLayouts {
 protected:
  MaskedMixtureLayouts() : MixtureLayouts(true) {}
};

TEST_F(MixtureLayouts, ComputeWhatOneRankComputes) {
  const Outcome wanted = CompareLayouts();
  // The second file counts: the first one alone gives other losses.
  TrainingRun alone(self_, files_.front(), [&] {
    RunSettings settings = Settings(kMixtureLayouts.front(), {3, 1});
    settings.sources.clear();
    return settings;
  }());
  EXPECT_GT(WorstRelative(alone.Train(kMixtureLayoutsEnd), wanted.losses), 1e-3);
}

TEST_F(MaskedMixtureLayouts, ComputeWhatOneRankComputes) {
  const Outcome wanted = CompareLayouts();
  // Each mask counts.
  RunSettings settings = Settings(kMixtureLayouts.front(), {3, 1});
  settings.model.document_mask = false;
  TrainingRun crossing(self_, Corpus(), settings);
  EXPECT_GT(WorstRelative(crossing.Train(kMixtureLayoutsEnd), wanted.losses), 1e-3);
  data::TokenData unmasked = OtherTokens();
  AddDocuments(unmasked);
  files_.pop_back();
  files_.emplace_back(world_, unmasked);
  EXPECT_GT(WorstRelative(Serial(kMixtureLayoutsEnd).losses, wanted.losses), 1e-3);
}

TEST_F(MixtureLayouts, StreamsHaveTheSameBits) { CompareStreams(); }
TEST_F(MaskedMixtureLayouts, StreamsHaveTheSameBits) { CompareStreams(); }

data::Origin OriginOf(const data::Sampler& sampler, std::int64_t step) {
  return {step, sampler.NextSample(step), sampler.TargetsBefore(step), sampler.Places(step)};
}

// With the same weights as if it had never stopped; with others alike in all layouts.
TEST_F(MixtureLayouts, GoOnWhereAnyOtherStopped) {
  constexpr std::array<double, 2> kBefore = {3, 1};
  const std::string stopped = folder_ / "stopped";
  In(kMixtureLayouts[1], Settings(kMixtureLayouts[1], kBefore), [&](TrainingRun& run) {
    run.Train(kMixtureLayoutsMoved);
    run.Save(stopped);
  });
  const auto samples = [&](const std::array<double, 2>& weights) {
    return train::PlanTraining(Settings(kMixtureLayouts.front(), weights), 0, {}).samples;
  };
  const data::Origin origin = OriginOf(data::Sampler(samples(kBefore)), kMixtureLayoutsMoved);
  const Outcome whole = Serial(kMixtureLayoutsEnd);
  const std::vector<double> rest(whole.losses.begin() + kMixtureLayoutsMoved, whole.losses.end());
  for (const std::array<double, 2>& weights : {kBefore, std::array{1.0, 2.0}}) {
    const data::Origin moved = data::MoveOrigin(origin, samples(kBefore), samples(weights));
    TrainingRun serial(self_, Corpus(), Settings(kMixtureLayouts.front(), weights, moved));
    serial.Load(stopped);
    const std::vector<double> wanted = serial.Train(kMixtureLayoutsEnd);
    const Tensors wanted_weights = serial.Weights();
    if (weights == kBefore) {
      EXPECT_LT(WorstRelative(wanted, rest), kMixtureLayoutsFp64);
    } else {
      EXPECT_GT(WorstRelative(wanted, rest), 1e-3);
    }
    for (const MixtureLayout& layout : kMixtureLayouts) {
      In(layout, Settings(layout, weights, moved), [&](TrainingRun& run) {
        run.Load(stopped);
        EXPECT_LT(WorstRelative(run.Train(kMixtureLayoutsEnd), wanted), kMixtureLayoutsFp64);
        EXPECT_LT(RuleFourDifference(run.Weights(), wanted_weights).relative, kMixtureLayoutsFp64);
      });
    }
  }
}

}  // namespace
}  // namespace trireme::test
