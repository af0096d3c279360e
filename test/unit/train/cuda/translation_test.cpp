// A model that translates on a GPU against the CPU: losses, weights and moments of a few steps, and
// an evaluation.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "folders.hpp"
#include "gpu_testing.hpp"
#include "rule_four.hpp"
#include "training_run.hpp"
#include "trireme/data/options.hpp"
#include "trireme/data/pairs.hpp"
#include "trireme/data/tokenize.hpp"
#include "trireme/kernels/libraries.hpp"
#include "trireme/model/plan.hpp"
#include "trireme/train/evaluation.hpp"

namespace trireme::test {
namespace {

constexpr std::int64_t kSteps = 3;

// Odd sizes; batches of up to 6 pairs.
RunSettings Settings(Dtype dtype, bool pre) {
  RunSettings settings = PairSettings(dtype, 4, 6, 80);
  model::Options& o = settings.model.options;
  o.encoder_layers = o.layers = 2;
  o.norm_position = pre ? model::NormPosition::kPre : model::NormPosition::kPost;
  o.position = pre ? model::Position::kLearned : model::Position::kSinusoidal;
  settings.keep_gradients = false;
  return settings;
}

class TranslationOnGpu : public GpuTest {
 protected:
  struct Results {
    std::vector<double> losses;
    double evaluation = 0;
    Tensors state;
  };

  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    const std::string path = folder_ / "pairs.h5";
    deck::Schema schema;
    data::Declare(schema);
    const deck::Deck deck = deck::Deck::Parse(
        schema, "", "test", {"tokenize.kind=numerals", "tokenize.numerals_pairs=100"});
    data::TokenizeInParallel(self_, data::ReadTokenize(deck), deck, path, {}, false);
    pairs_ = std::make_unique<data::PairFile>(self_, self_, path, data::Keeping());
  }

  Results Run(RunSettings settings, device::Stream stream) const {
    const auto types = std::ssize(pairs_->Of(data::Side::kTarget).Words().words);
    settings.model.options.vocabulary = settings.model.options.source_types = types;
    comm::ProcessGrid grid(self_, {1, 1, 1, 1});
    std::unique_ptr<kernels::Libraries> libraries;
    if (stream.OnGpu()) {
      const std::int64_t sites = model::kSitesABlock * settings.model.options.Blocks();
      libraries = kernels::MakeLibraries(stream, static_cast<int>(sites));
      stream.libraries = libraries.get();
      grid.UseGpu(stream, false, 1);
    }
    train::TrainingState state(
        grid, train::PlanTraining(settings, pairs_->Pairs(data::Split::kTrain), grid.Shape()),
        stream);
    train::TrainingStep step(state, *pairs_);
    Results results;
    for (std::int64_t i = 0; i < kSteps; ++i) results.losses.push_back(step.Run(i).loss);
    results.evaluation =
        train::EvaluatePairs(state.Net(), *pairs_, data::Split::kValid, {.windows = 9}).loss;
    for (const train::StateOnHost& blocks : {state.ModelBlocks(), state.OptimizerBlocks()}) {
      for (const kernels::StateBlock& block : blocks.Blocks()) {
        DispatchDtype(block.dtype, [&](auto zero) {
          const auto* const values = static_cast<const decltype(zero)*>(block.data);
          results.state.emplace_back(values, values + (block.end - block.begin));
        });
      }
    }
    return results;
  }

  const comm::Communicator self_ = comm::Communicator::Adopt(MPI_COMM_SELF);
  SharedFolder folder_{self_};
  std::unique_ptr<data::PairFile> pairs_;
};

TEST_F(TranslationOnGpu, ARunIsTheCpus) {
  for (const bool pre : {true, false}) {
    const RunSettings settings = Settings(Dtype::kFloat64, pre);
    const Results cpu = Run(settings, {}), gpu = Run(settings, Stream());
    for (std::size_t i = 0; i < cpu.losses.size(); ++i) {
      EXPECT_NEAR(gpu.losses[i] / cpu.losses[i], 1, 1e-12) << "step " << i;
    }
    EXPECT_NEAR(gpu.evaluation / cpu.evaluation, 1, 1e-12);
    EXPECT_LT(RuleFourDifference(gpu.state, cpu.state).relative, 1e-11);
  }
}

TEST_F(TranslationOnGpu, NarrowTypesAreNear) {
  for (const bool pre : {true, false}) {
    const Results wide = Run(Settings(Dtype::kFloat64, pre), {});
    const Results fp32 = Run(Settings(Dtype::kFloat32, pre), Stream());
    const Results bf16 = Run(Settings(Dtype::kBfloat16, pre), Stream());
    for (std::size_t i = 0; i < wide.losses.size(); ++i) {
      EXPECT_NEAR(fp32.losses[i] / wide.losses[i], 1, 1e-5) << "step " << i;
      EXPECT_NEAR(bf16.losses[i] / wide.losses[i], 1, 2e-2) << "step " << i;
    }
  }
}

}  // namespace
}  // namespace trireme::test
