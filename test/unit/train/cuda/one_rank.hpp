// Training on one GPU, and batches on their way to it, for tests.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpu_testing.hpp"
#include "small_run.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/libraries.hpp"
#include "trireme/model/plan.hpp"
#include "trireme/model/staged_batches.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/train/evaluation.hpp"
#include "trireme/train/training_step.hpp"

namespace trireme::test {

// A deck's training run by one rank, on a GPU or on the CPU, in one process: to be compared.

// Architectures shrunk to odd sizes, as sections of a deck.
inline constexpr const char* kCourse =
    "preset=jsc\nlayers=2\nheads=2\nhead_dim=6\ndim=12\nffn=17\nmax_positions=7\ndropout=0.1\n"
    "attention_dropout=0.1\nffn_dropout=0.1\ninit_deviation=0.2\n";
inline constexpr const char* kLlama =
    "preset=llama_5m\nlayers=2\nheads=4\nkv_heads=2\nhead_dim=4\ndim=16\nffn=24\n"
    "max_positions=7\ninit_deviation=0.2\n";
// Norms of heads, biases of queries, keys and values alone, rotation scaled by YaRN.
inline constexpr const char* kQwen =
    "preset=llama_5m\nlayers=2\nheads=4\nkv_heads=2\nhead_dim=8\ndim=16\nffn=24\n"
    "max_positions=7\ninit_deviation=0.2\nqk_norm=yes\nqkv_bias=yes\nrope_theta=50\n"
    "rope_scaling=yarn\nrope_factor=4\nrope_original_positions=4\nrope_beta_slow=0.1\n"
    "rope_beta_fast=0.5\n";

// No size divides another: 37 windows of 7 (small_run.hpp) in batches of 10, the last of an epoch
// of 7, in micro-batches of 4.
inline std::string DeckOf(const std::string& model, const std::string& optimizer = "") {
  return "[run]\nseed=11\n[data]\nsequence_length=7\nbatch=10\nmicro_batch=4\n[model]\n" + model +
         "[optimizer]\nlearning_rate=1e-2\nclip_norm=0.5\nlabel_smoothing=0.05\n" + optimizer +
         "[schedule]\nsteps=20\nwarmup_steps=3\n";
}
inline constexpr std::int64_t kStepsAnEpoch = 4;

class OneRank {
 public:
  // `self` (a group of one) and `tokens` must outlive it. products_file: run.products.
  OneRank(const comm::Communicator& self, const data::TokenFile& tokens, const std::string& deck,
          const device::Stream& stream, Dtype dtype, bool graphs, const std::string& products_file)
      : tokens_(tokens),
        settings_(SettingsOf(PlanOf(deck, tokens, 1, dtype))),
        stream_(stream),
        grid_(self, *settings_.grid, settings_.options) {
    if (stream_.OnGpu()) {
      const std::int64_t sites = model::kSitesABlock * settings_.model.options.layers;
      libraries_ = kernels::MakeLibraries(stream_, static_cast<int>(sites));
      stream_.libraries = libraries_.get();
      grid_.UseGpu(stream_, false, 1);
    }
    settings_.keep_gradients = false;  // as in a run
    settings_.graphs = graphs;
    settings_.products_file = products_file;
    training_ = std::make_unique<train::TrainingState>(
        grid_, train::PlanTraining(settings_, tokens.Size(data::Split::kTrain), grid_.Shape()),
        stream_);
    step_ = std::make_unique<train::TrainingStep>(*training_, tokens);
  }

  // Takes the library's first proposal for each product instead of the fastest one: the same bits
  // in every run of a test.
  void TakeFirstAlgorithms() { libraries_->Seal(); }

  // Runs up to step `end`; the losses of the steps.
  std::vector<double> Train(std::int64_t end) {
    std::vector<double> losses;
    for (; done_ < end; ++done_) {
      const train::StepResult result = step_->Run(done_);
      losses.push_back(result.loss);
      norms_.push_back(result.gradient_norm);
    }
    return losses;
  }
  double Evaluate(data::Split split) {  // of the averaged weights, if there are any
    training_->ExchangeAverage();
    const double loss = train::Evaluate(training_->Net(), tokens_, split).loss;
    training_->ExchangeAverage();
    return loss;
  }
  const std::vector<double>& Norms() const { return norms_; }  // of the gradients, so far
  train::TrainingState& All() { return *training_; }
  train::TrainingStep& Step() { return *step_; }
  const kernels::Libraries& Libraries() const { return *libraries_; }

  // Contents of a checkpoint, widened: parameters, then moments.
  Tensors State() {
    Tensors tensors;
    for (const train::StateOnHost& blocks :
         {training_->ModelBlocks(), training_->OptimizerBlocks()}) {
      for (const kernels::StateBlock& block : blocks.Blocks()) {
        DispatchDtype(block.dtype, [&](auto zero) {
          const auto* const data = static_cast<const decltype(zero)*>(block.data);
          tensors.emplace_back(data, data + (block.end - block.begin));
        });
      }
    }
    return tensors;
  }

 private:
  const data::TokenFile& tokens_;
  RunSettings settings_;
  device::Stream stream_;
  comm::ProcessGrid grid_;
  std::unique_ptr<kernels::Libraries> libraries_;
  std::unique_ptr<train::TrainingState> training_;
  std::unique_ptr<train::TrainingStep> step_;
  std::vector<double> norms_;
  std::int64_t done_ = 0;
};

class TrainingOnGpu : public GpuTest {
 protected:
  explicit TrainingOnGpu(const data::TokenData& tokens = SyntheticTokens())
      : self_(comm::Communicator::Adopt(MPI_COMM_SELF)), tokens_(self_, tokens) {}
  // Runs of one test compute their products alike: what the first has chosen is kept for the
  // others.
  OneRank OnCard(const std::string& deck, Dtype dtype, bool graphs = true) const {
    return OnCard(deck, dtype, graphs, folder_ / "products.json");
  }
  OneRank OnCard(const std::string& deck, Dtype dtype, bool graphs,
                 const std::string& products_file) const {
    return {self_, tokens_, deck, Stream(), dtype, graphs, products_file};
  }
  OneRank OnHost(const std::string& deck, Dtype dtype = Dtype::kFloat32) const {
    return {self_, tokens_, deck, device::Stream{}, dtype, false, ""};
  }

 protected:
  const data::TokenFile& Tokens() const { return tokens_; }

 private:
  comm::Communicator self_;
  data::TokenFile tokens_;
  TemporaryFolder folder_;
};

// Micro-batches of numbers that say where they belong, and what of them has arrived on a GPU.

using Batches = std::vector<data::Entry>;

// sequences: of each entry; 0: an empty one, whose arrays are an older batch's.
inline Batches NumberedBatches(std::int32_t number, const std::vector<std::int64_t>& sequences,
                               std::int64_t length = 13) {
  Batches batches;
  for (const std::int64_t count : sequences) {
    data::Entry& batch = batches.emplace_back();
    batch.sequences = count;
    batch.length = length;
    const auto rows = static_cast<std::size_t>(count == 0 ? 3 : count);
    const auto tokens = rows * static_cast<std::size_t>(length);
    for (std::size_t i = 0; i < tokens; ++i) {
      batch.inputs.push_back(number * 100'000 + static_cast<std::int32_t>(i));
      batch.targets.push_back(-batch.inputs.back());
    }
    for (std::size_t i = 0; i < rows; ++i) {
      batch.ordinals.push_back((std::uint64_t{1} << 40) +
                               static_cast<std::uint64_t>(number) * 1000 + i);
    }
    number += 7;
  }
  return batches;
}

// Room for all that the tests stage.
inline constexpr model::StagedBatches::Limits kStagedLimits{
    .entries = 8, .sequences = 8, .length = 13};

// The batches are in place for what is queued next.
inline void Use(model::StagedBatches& staged, const Batches& batches) {
  staged.Open(staged.Take(staged.Stage(batches)));
}

// Whether the computation sees these batches, those with something in them.
inline bool Sees(const device::Stream& stream, const model::StagedBatches& staged,
                 const Batches& batches) {
  const auto same = [&](const auto& wanted, const auto* there) {
    auto got = wanted;
    const auto bytes = static_cast<std::int64_t>(got.size() * sizeof got[0]);
    device::CopyOut(stream, there, got.data(), bytes);
    return got == wanted;
  };
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const data::Entry& batch = batches[i];
    if (batch.sequences == 0) continue;
    const model::StagedBatches::Entry entry = staged.At(i);
    if (!same(batch.inputs, entry.inputs) || !same(batch.targets, entry.targets) ||
        !same(batch.ordinals, entry.ordinals)) {
      return false;
    }
  }
  return true;
}

}  // namespace trireme::test
