// TrainingStep: the tasks of a step on the CPU, and those that both kinds of device share.
#include "trireme/training/training_step.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>
#include <utility>

#include "trireme/base/clock.hpp"
#include "trireme/kernels/libraries.hpp"

namespace trireme::training {

namespace {

constexpr const char* kAdvice =
    "The weights were not changed. Lower optimizer.learning_rate or lengthen "
    "schedule.warmup_steps, and continue from the last checkpoint with -r.";

}  // namespace

TrainingStep::TrainingStep(TrainingState& state, const data::TokenFile& tokens)
    : state_(state), loader_(state, tokens), done_(state.Stream()) {
  if (kernels::Libraries* const libraries = kernels::LibrariesOf(Stream())) {
    libraries->SetScales(Stream(), {});
  }
}

StepResult TrainingStep::Run(std::int64_t step, const Requests& mine) {
  window_start_ = Seconds();
  step_ = step;
  result_ = {};
  LoadBatch();
  if (Stream().OnGpu()) {
    Rehearse();
    GradientsOnGpu();
    LoadNextBatch();
    AwaitGradients();
  } else {
    ComputeGradients();
    SumGradients();
  }
  AgreeOnStep(mine);
  UpdateWeights();
  mine_.total += Seconds() - window_start_;
  return result_;
}

double TrainingStep::Waited() const {
  double sum = 0;
  for (int group = 0; group < comm::kGroups; ++group) {
    const auto name = static_cast<comm::Group>(group);
    if (name != comm::Group::kPipeline) sum += Grid().Traffic().SecondsWaited(name);
  }
  return sum;
}

void TrainingStep::LoadBatch() {
  const device::ProfileRange range("load batch");
  const double start = Seconds();
  if (next_.step == step_) {
    std::swap(now_, next_);
  } else {
    loader_.Load(step_, now_);
  }
  result_.targets = Samples().BatchTargets(step_);
  mine_.data += Seconds() - start;
}

model::StagedBatches::Taken TrainingStep::TakeBatch() {
  if (!now_.staged) now_.staged = Net().Stage(now_.Entries());
  model::StagedBatches::Staged staged = std::move(*now_.staged);
  now_.staged.reset();
  return Net().Take(std::move(staged));
}

void TrainingStep::ComputeGradients() {
  const double start = Seconds(), waited = Waited();
  state_.QueueGradients(TakeBatch());
  const double exposed = Waited() - waited;
  double bubble = 0, output = 0;
  if (now_.count > 0) {
    bubble = Net().Stages().SecondsWaitedForInput();
    output = Net().Stages().SecondsWaitedForOutput();
  }
  mine_.bubble += bubble;
  mine_.exposed_communication += exposed + output;
  mine_.compute += Seconds() - start - exposed - output - bubble;
}

void TrainingStep::SumGradients() {
  const double waited = Waited();
  state_.QueueSums();
  mine_.exposed_communication += Waited() - waited;
}

// One small all-reduce carries everything on which the ranks must agree before the weights change,
// and the times of the last step's end and of this one so far.
void TrainingStep::AgreeOnStep(const Requests& mine) {
  const double start = Seconds();
  mine_.total += start - window_start_;
  window_start_ = start;
  const ExactSum loss = now_.count == 0 ? ExactSum() : Net().FinishLoss();
  const bool finite_loss = std::isfinite(loss.Value());
  const bool bad = !finite_loss || !state_.NotFinite().empty();
  using State = TrainingState;
  std::array<double, State::kAgreed> sums{};
  sums[State::kBad] = bad ? 1 : 0;
  sums[State::kSignal] = mine.signal ? 1 : 0;
  sums[State::kWalltime] = mine.walltime ? 1 : 0;
  sums[State::kCheckpoint] = mine.checkpoint ? 1 : 0;
  sums[State::kBusy] = mine.busy ? 1 : 0;
  sums[State::kTotal] = mine_.total;
  sums[State::kData] = mine_.data;
  sums[State::kCompute] = mine_.compute;
  sums[State::kExposed] = mine_.exposed_communication;
  sums[State::kBubble] = mine_.bubble;
  // The loss is summed exactly, so that no layout changes it but by its terms.
  const std::span<double> digits = std::span(sums).subspan(State::kLossDigits);
  std::ranges::copy((finite_loss ? loss : ExactSum()).Digits(), digits.begin());
  state_.Agree(sums);
  result_.loss = ExactSum::FromDigits(digits).Value() / static_cast<double>(result_.targets);
  result_.requests = {sums[State::kSignal] > 0, sums[State::kWalltime] > 0,
                      sums[State::kCheckpoint] > 0, sums[State::kBusy] > 0};
  const double ranks = Grid().World().Size();
  result_.times = {sums[State::kTotal] / ranks, sums[State::kData] / ranks,
                   sums[State::kCompute] / ranks, sums[State::kExposed] / ranks,
                   sums[State::kBubble] / ranks};
  result_.own_compute = mine_.compute;
  mine_ = {};
  RequireFinite(finite_loss, sums[State::kBad] == 0);
  mine_.exposed_communication += Seconds() - start;
}

void TrainingStep::RequireFinite(bool finite_loss, bool all_ranks) const {
  if (all_ranks) return;
  const std::string& tensor = state_.NotFinite();
  Grid().World().Together([&] {
    if (finite_loss && tensor.empty()) return;
    throw RunError(fmt::format("step {}: {} is not finite on rank {}", step_ + 1,
                               finite_loss ? "the gradient of " + tensor : std::string("the loss"),
                               Grid().World().Rank()),
                   kAdvice);
  });
}

void TrainingStep::RequireFiniteNorm() const {
  if (std::isfinite(result_.gradient_norm)) return;
  // Every rank holds the same sum: all see this together. On a GPU nobody has looked before.
  Grid().World().Together([&] {
    const std::string name = state_.FirstNotFinite();
    if (name.empty()) return;
    throw RunError(
        fmt::format("step {}: the gradient of {} is not finite, summed over the ranks, on rank {}",
                    step_ + 1, name, Grid().World().Rank()),
        kAdvice);
  });
  throw AgreedError(
      ExitCode::kFailed,
      fmt::format("step {}: the sum of the gradients over the ranks is not finite", step_ + 1),
      kAdvice);
}

void TrainingStep::UpdateWeights() {
  const device::ProfileRange range("update");
  const double start = Seconds(), waited = Waited();
  result_.learning_rate = state_.Plan().schedule.Rate(step_ + 1);
  result_.gradient_norm = state_.GradientNorm(result_.targets);
  RequireFiniteNorm();
  state_.Update(step_ + 1, result_.learning_rate, result_.gradient_norm, result_.targets);
  const double exposed = Waited() - waited;
  mine_.exposed_communication += exposed;
  mine_.compute += Seconds() - start - exposed;
}

}  // namespace trireme::training
