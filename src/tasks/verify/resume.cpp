// Bitwise verification: a stop and resume in the same layout (on one rank up to rounding), and
// run.canonical on the grid and on one rank.
#include <fmt/format.h>

#include <memory>

#include "trireme/checkpoint/checkpoint.hpp"
#include "verifier.hpp"

namespace trireme::tasks {

void Verifier::WriteCheckpoint() {
  checkpoint::Contents contents;
  const train::StateOnHost model = on_grid_->state.ModelBlocks(),
                              moments = on_grid_->state.OptimizerBlocks();
  contents.model = model.Blocks();
  contents.optimizer = moments.Blocks();
  contents.run = {{"step", kStop}};
  checkpoint::Write(world_, folder_, kStop, contents, false, 0);
}

void Verifier::CompareResume() {
  const std::string checkpoint = checkpoint::Find(world_, folder_);
  ResumeOnGrid(checkpoint);
  ResumeAlone(checkpoint);
}

void Verifier::ResumeOnGrid(const std::string& checkpoint) {
  const std::string name = fmt::format("stop after step {}, resume", kStop);
  const std::string hint = "What a checkpoint holds, or how it is read, is not all of the state.";
  Run resumed(grid_, data_, options_, stream_);
  resumed.state.Load(checkpoint);
  for (std::int64_t step = kStop; step < kSteps; ++step) {
    const double loss = StepOnGrid(resumed, step).loss;
    Quantity(name, RelativeDifference(loss, losses_[static_cast<std::size_t>(step)]), kSameBits,
             fmt::format("after a stop and a resume the loss of step {}", step + 1), hint);
  }
  const auto compare = [&](const std::vector<kernels::StateBlock>& got,
                           const std::vector<kernels::StateBlock>& wanted) {
    const Differences differences = CompareBits(grid_, got, wanted);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const std::string failure =
          fmt::format("after a stop and a resume {} of step {}", got[i].name, kSteps);
      Quantity(name, differences.all[i], kSameBits, failure, hint);
    }
  };
  compare(resumed.state.ModelBlocks(), on_grid_->state.ModelBlocks());
  compare(resumed.state.OptimizerBlocks(), on_grid_->state.OptimizerBlocks());
}

// The layout's checkpoint, continued on one rank, against the layout that went on.
void Verifier::ResumeAlone(const std::string& checkpoint) {
  const std::string name = fmt::format("stop after step {}, resume on one rank", kStop);
  const std::string hint = "The checkpoint is not the whole state, or not in the model's order.";
  const std::unique_ptr<Run> resumed = MakeAlone();
  ByItself([&] { resumed->state.Load(checkpoint); });
  for (std::int64_t step = kStop; step < kSteps; ++step) {
    const double loss = StepAlone(*resumed, step).loss;
    Quantity(name, RelativeDifference(losses_[static_cast<std::size_t>(step)], loss), kFp64,
             fmt::format("resumed on one rank, the loss of step {}", step + 1), hint);
  }
  const Differences differences =
      Compare(grid_, on_grid_->state.ModelBlocks(), resumed->state.ModelBlocks());
  for (std::size_t i = 0; i < report_.tensors.size(); ++i) {
    const std::string failure =
        fmt::format("resumed on one rank, {} of step {}", report_.tensors[i].name, kSteps);
    Quantity(name, differences.all[i], kFp64, failure, hint);
  }
}

void Verifier::CompareBitsOf(const char* what, const std::string& when,
                             const std::vector<kernels::StateBlock>& got,
                             const std::vector<kernels::StateBlock>& wanted) {
  const Differences differences = CompareBits(grid_, got, wanted);
  for (std::size_t i = 0; i < got.size(); ++i) {
    Quantity(fmt::format("canonical {}, {}", what, NameOf(options_.model.dtype)),
             differences.all[i], kSameBits,
             fmt::format("{} canonical {}: {}", when, what, got[i].name), HintForBits(false));
  }
}

void Verifier::CompareCanonical() {
  const std::string dtype = NameOf(options_.model.dtype);
  const std::unique_ptr<Run> alone = MakeAlone(Arithmetic::kCanonical);
  Run run(grid_, data_, options_, stream_);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const std::string when = fmt::format("in step {}", step + 1);
    const train::StepResult wanted = StepAlone(*alone, step), got = StepOnGrid(run, step);
    Quantity("canonical loss, " + dtype, RelativeDifference(got.loss, wanted.loss), kSameBits,
             when + " the canonical loss", HintForBits(true));
    CompareBitsOf("gradients", when, run.state.GradientBlocks(), alone->state.GradientBlocks());
    Quantity("canonical gradient norm, " + dtype,
             RelativeDifference(got.gradient_norm, wanted.gradient_norm), kSameBits,
             when + " the canonical gradient norm", HintForBits(false));
    CompareBitsOf("weights", when, run.state.ModelBlocks(), alone->state.ModelBlocks());
    CompareBitsOf("moments", when, run.state.OptimizerBlocks(), alone->state.OptimizerBlocks());
  }
  double wanted = 0;
  ByItself([&] { wanted = data_.ValidationLoss(alone->state.Net()); });
  const double got = data_.ValidationLoss(run.state.Net());
  Quantity("canonical evaluation loss, " + dtype, RelativeDifference(got, wanted), kSameBits,
           "the canonical evaluation loss", HintForBits(true));
}

}  // namespace trireme::tasks
