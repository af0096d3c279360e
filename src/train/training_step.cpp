// TrainingStep: the tasks of a step on the CPU, and those that both kinds of device share.
#include "trireme/train/training_step.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>

#include "trireme/base/clock.hpp"
#include "trireme/kernels/libraries.hpp"

namespace trireme::train {

TrainingStep::TrainingStep(TrainingState& state, const data::Corpus& tokens)
    : state_(state),
      masked_(state.Plan().model.document_mask || tokens.HasMask(data::Split::kTrain)),
      done_(state.Stream()) {
  auto loader = std::make_unique<BatchLoader>(state, tokens);
  windows_ = loader.get();
  loader_ = std::move(loader);
  Begin();
}

TrainingStep::TrainingStep(TrainingState& state, const data::PairFile& pairs)
    : state_(state), masked_(false), done_(state.Stream()) {
  Grid().World().Together([&] {
    auto loader = std::make_unique<PairLoader>(state, pairs);
    pairs_ = loader.get();
    loader_ = std::move(loader);
  });
  Begin();
}

void TrainingStep::Begin() {
  if (kernels::Libraries* const libraries = kernels::LibrariesOf(Stream())) {
    libraries->SetScales(Stream(), {});
  }
}

StepResult TrainingStep::Run(std::int64_t step, const Requests& mine, OnFault on_fault) {
  if (Trace() != nullptr) Trace()->SetStep(step + 1);
  const device::Scope scope(Trace(),
                           {.name = device::SliceName::kStep, .category = device::SliceCategory::kStep});
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
  CountTargets();
  MeasureGradient();
  AgreeOnStep(mine);
  if (!result_.fault) {
    LookAtGradients();
    UpdateWeights();
  }
  if (result_.fault) LeaveOutUpdate(on_fault);
  mine_.total += Seconds() - window_start_;
  return result_;
}

void TrainingStep::Move(const data::Origin& origin) {
  if (windows_ != nullptr) windows_->Move(origin);  // pairs have one order
  next_.step = -1;                                  // loaded ahead from another place
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
  const device::Scope scope(Trace(),
                           {.name = device::SliceName::kLoadBatch, .category = device::SliceCategory::kData});
  const double start = Seconds();
  if (next_.step == step_) {
    std::swap(now_, next_);
  } else {
    loader_->Load(step_, now_);
  }
  result_.tokens = result_.targets = loader_->Targets(step_);
  mine_.data += Seconds() - start;
}

model::StagedBatches::Taken TrainingStep::TakeBatch() {
  if (!now_.staged) now_.staged = Net().Stage(now_.Entries());
  model::StagedBatches::Staged staged = std::move(*now_.staged);
  now_.staged.reset();
  return Net().Take(std::move(staged));
}

void TrainingStep::ComputeGradients() {
  const device::Scope scope(Trace(), {.name = device::SliceName::kGradients});
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
  // Waits alone are counted.
  const device::Scope scope(
      Trace(), {.name = device::SliceName::kSumGradients, .category = device::SliceCategory::kStep});
  const double waited = Waited();
  state_.QueueSums();
  mine_.exposed_communication += Waited() - waited;
}

// A mean is one global sum over one global count. Without masks the count is a function of the
// step.
void TrainingStep::CountTargets() {
  if (!masked_) return;
  const device::Scope scope(Trace(), {.name = device::SliceName::kCountTargets});
  const double start = Seconds(), waited = Waited();
  std::array<std::int64_t, TrainingState::kCounts> counts{};
  for (const data::Entry& entry : now_.Entries()) {
    counts[0] += entry.valid;
    counts[1] += entry.visible_keys;
  }
  state_.SumOfBatch(counts);
  result_.targets = counts[0];
  result_.visible_keys = counts[1];
  const double exposed = Waited() - waited;
  mine_.exposed_communication += exposed;
  mine_.compute += Seconds() - start - exposed;
}

// Before the agreement: a sum that arrived on one rank as a value that is not finite is a fault for
// all. On a GPU nobody has looked at the gradients before.
void TrainingStep::MeasureGradient() {
  const device::Scope scope(Trace(), {.name = device::SliceName::kGradientNorm});
  const double start = Seconds(), waited = Waited();
  // No target: the gradient of no loss is zero.
  result_.gradient_norm = state_.GradientNorm(std::max<std::int64_t>(result_.targets, 1));
  const double exposed = Waited() - waited;
  mine_.exposed_communication += exposed;
  mine_.compute += Seconds() - start - exposed;
}

// One small all-reduce carries everything on which the ranks must agree before the weights change,
// and the times of the last step's end and of this one so far.
void TrainingStep::AgreeOnStep(const Requests& mine) {
  const device::Scope scope(Trace(),
                           {.name = device::SliceName::kAgreement, .category = device::SliceCategory::kWait});
  const double start = Seconds();
  mine_.total += start - window_start_;
  window_start_ = start;
  const ExactSum loss = now_.count == 0 ? ExactSum() : Net().FinishLoss();
  const bool finite_loss = std::isfinite(loss.Value());
  const bool bad =
      !finite_loss || !state_.NotFinite().empty() || !std::isfinite(result_.gradient_norm);
  using State = TrainingState;
  std::array<double, State::kAgreed> sums{};
  sums[State::kBad] = bad ? 1 : 0;
  sums[State::kUnread] = now_.unread ? 1 : 0;
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
  if (sums[State::kUnread] > 0) Grid().World().Together([&] { loader_->RequireRead(); });
  result_.loss = ExactSum::FromDigits(digits).Value() / static_cast<double>(result_.targets);
  result_.requests = {sums[State::kSignal] > 0, sums[State::kWalltime] > 0,
                      sums[State::kCheckpoint] > 0, sums[State::kBusy] > 0};
  const double ranks = Grid().World().Size();
  result_.times = {sums[State::kTotal] / ranks, sums[State::kData] / ranks,
                   sums[State::kCompute] / ranks, sums[State::kExposed] / ranks,
                   sums[State::kBubble] / ranks};
  result_.own_compute = mine_.compute;
  mine_ = {};
  if (sums[State::kBad] > 0) {
    result_.fault = FindFault(finite_loss);
  } else if (result_.targets == 0) {
    result_.fault = Fault{.what = "no target of this batch counts", .more = {}, .no_target = true};
  }
  mine_.exposed_communication += Seconds() - start;
}

void TrainingStep::LookAtGradients() {
  if (!look_) return;
  const double start = Seconds();
  std::exchange(look_, nullptr)(result_.targets);
  window_start_ += Seconds() - start;
}

void TrainingStep::UpdateWeights() {
  const device::ProfileRange range("update");
  const device::Scope scope(
      Trace(), {.name = device::SliceName::kUpdate, .phase = device::Phase::kUpdate, .queues = true});
  const double start = Seconds(), waited = Waited();
  result_.learning_rate = state_.Plan().schedule.Rate(step_ + 1);
  state_.Update(step_ + 1, result_.learning_rate, result_.gradient_norm, result_.targets);
  const double exposed = Waited() - waited;
  mine_.exposed_communication += exposed;
  mine_.compute += Seconds() - start - exposed;
}

}  // namespace trireme::train
