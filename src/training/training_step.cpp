#include "trireme/training/training_step.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>

#include "trireme/base/clock.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/products.hpp"
#include "trireme/training/training_state.hpp"

namespace trireme::training {

TrainingStep::TrainingStep(const data::TokenFile& tokens, const data::Sampler& sampler,
                           model::ParallelModel& model, optimizer::Optimizer& optimizer,
                           const optimizer::Schedule& schedule, parallel::GradientBuckets& buckets,
                           std::int64_t batch, bool keep_gradients, bool graphs,
                           const std::string& products_file)
    : tokens_(tokens),
      sampler_(sampler),
      model_(model),
      optimizer_(optimizer),
      schedule_(schedule),
      buckets_(buckets),
      batch_(batch),
      keep_gradients_(keep_gradients),
      graphs_(graphs),
      products_file_(products_file),
      done_(model.Setup().stream) {
  if (Stream().products != nullptr) Stream().products->SetScales(Stream(), {});
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

// The positions of this step's batch that this data rank takes.
Part TrainingStep::Share(std::int64_t step) const {
  const int rank = Grid().Coordinates().data, ranks = Grid().Shape().data;
  const model::Canonical& canonical = model_.Canon();
  if (!canonical.On()) return PartOf(sampler_.BatchSize(step), rank, ranks);
  return CanonicalShare(batch_, rank, ranks, canonical);
}

// Micro-batches of this step: this rank's, or, where all ranks of a shard group have to take part
// in each one's transfers, those of the rank with the most windows.
std::size_t TrainingStep::CountMicroBatches(std::int64_t step, std::size_t share) const {
  const model::ModelSetup& setup = model_.Setup();
  auto most = static_cast<std::int64_t>(share);
  if (model_.Units().ValuesSharded() || model_.Units().GradientsSharded()) {
    const std::int64_t batch = sampler_.BatchSize(step);
    const model::Canonical& canonical = model_.Canon();
    // Canonical shares are those of the largest batch, filled from the front.
    most = std::min(batch,
                    LargestShare(canonical.On() ? batch_ : batch, Grid().Shape().data, canonical));
  }
  return static_cast<std::size_t>(CeilDivide(most, setup.micro_batch * setup.leaves));
}

void TrainingStep::Load(std::int64_t step, Loaded& loaded) const {
  const model::ModelSetup& setup = model_.Setup();
  loaded.step = step;
  sampler_.Fill(step, Share(step), loaded.share);
  const std::span<const data::Sample> share(loaded.share);
  const auto most = static_cast<std::size_t>(setup.micro_batch);
  // A schedule may want more micro-batches than there are: empty ones.
  const std::size_t count = CountMicroBatches(step, share.size());
  const auto leaves = static_cast<std::size_t>(setup.leaves);
  loaded.count = leaves * static_cast<std::size_t>(model_.Stages().Padded(static_cast<int>(count)));
  if (loaded.batches.size() < loaded.count) loaded.batches.resize(loaded.count);
  const model::Canonical& canonical = model_.Canon();
  const std::int64_t group =
      canonical.On() ? LeavesOfGroup(batch_, canonical) : std::int64_t{1};  // in entries
  for (std::size_t i = 0; i < loaded.count; ++i) {
    data::MicroBatch& entry = loaded.batches[i];
    entry.sequences = entry.valid = 0;
    if (i * most >= share.size()) continue;
    data::FillMicroBatch(tokens_, data::Split::kTrain,
                         share.subspan(i * most, std::min(share.size() - i * most, most)),
                         setup.length, entry, model_.Held());
    entry.group = static_cast<std::int64_t>(i) / group;
  }
}

void TrainingStep::LoadBatch() {
  const device::ProfileRange range("load batch");
  const double start = Seconds();
  if (next_.step == step_) {
    std::swap(now_, next_);
  } else {
    Load(step_, now_);
  }
  result_.targets = sampler_.BatchTargets(step_);
  mine_.data += Seconds() - start;
}

void TrainingStep::QueueGradients() {
  model_.BeginStep();
  buckets_.Begin();
  model::GradientsReady ready;
  if (!model_.Canon().On()) {
    ready = [this](std::int64_t begin) { buckets_.Ready(begin); };
  }
  model_.StartTrain(now_.Entries(), ready);
  // What is left, the first stage's embedding for one; a rank without samples takes part with
  // zeros.
  buckets_.Ready(0);
}

void TrainingStep::ComputeGradients() {
  const double start = Seconds(), waited = Waited();
  QueueGradients();
  StepTimes& times = mine_;
  const double exposed = Waited() - waited;
  double bubble = 0, output = 0;
  if (now_.count > 0) {
    bubble = model_.Stages().SecondsWaitedForInput();
    output = model_.Stages().SecondsWaitedForOutput();
  }
  times.bubble += bubble;
  times.exposed_communication += exposed + output;
  times.compute += Seconds() - start - exposed - output - bubble;
}

void TrainingStep::QueueSums() {
  model_.Units().FinishGradients();
  buckets_.Wait();
  model_.SumSharedGradients();
  optimizer_.QueueSquares();
  if (Stream().products != nullptr) Stream().products->QueueLargest(Stream());
}

void TrainingStep::SumGradients() {
  const double waited = Waited();
  QueueSums();
  mine_.exposed_communication += Waited() - waited;
}

// One small all-reduce carries everything on which the ranks must agree before the weights change,
// and the times of the last step's end and of this one so far.
void TrainingStep::AgreeOnStep(const Requests& mine) {
  const double start = Seconds();
  mine_.total += start - window_start_;
  window_start_ = start;
  local_loss_ = now_.count == 0 ? ExactSum() : model_.FinishLoss();
  const bool finite_loss = std::isfinite(local_loss_.Value());
  const std::string& tensor =
      buckets_.NotFinite().empty() ? model_.Units().NotFinite() : buckets_.NotFinite();
  const bool bad = !finite_loss || !tensor.empty();
  constexpr std::size_t kAgreed = 9;
  std::array<double, kAgreed + ExactSum::kNumbers> sums = {bad ? 1.0 : 0.0,
                                                           mine.signal ? 1.0 : 0.0,
                                                           mine.walltime ? 1.0 : 0.0,
                                                           mine.checkpoint ? 1.0 : 0.0,
                                                           mine_.total,
                                                           mine_.data,
                                                           mine_.compute,
                                                           mine_.exposed_communication,
                                                           mine_.bubble};
  // The loss is summed exactly, so that no layout changes it but by its terms.
  const std::span<double> loss = std::span(sums).subspan(kAgreed);
  std::ranges::copy((finite_loss ? local_loss_ : ExactSum()).Digits(), loss.begin());
  Grid().Over(comm::Group::kWorld).AllReduce(Dtype::kFloat64, sums.data(), std::ssize(sums));
  result_.loss = ExactSum::FromDigits(loss).Value() / static_cast<double>(result_.targets);
  result_.requests = {sums[1] > 0, sums[2] > 0, sums[3] > 0};
  const double ranks = Grid().World().Size();
  result_.times = {sums[4] / ranks, sums[5] / ranks, sums[6] / ranks, sums[7] / ranks,
                   sums[8] / ranks};
  mine_ = {};
  if (sums[0] > 0) {
    Grid().World().Together([&] {
      if (!bad) return;
      throw RunError(
          fmt::format("step {}: {} is not finite on rank {}", step_ + 1,
                      finite_loss ? "the gradient of " + tensor : std::string("the loss"),
                      Grid().World().Rank()),
          "The weights were not changed. Lower optimizer.learning_rate or lengthen "
          "schedule.warmup_steps, and continue from the last checkpoint with -r.");
    });
  }
  mine_.exposed_communication += Seconds() - start;
}

// Each element once: the shards', stages' and slices' sums of squares make up the replica's. A
// canonical sum is exact, so that no layout changes it.
double TrainingStep::SumSquares() {
  std::array<double, ExactSum::kNumbers> digits{};
  std::span<double> sums(digits);
  if (model_.Canon().On()) {
    digits = optimizer_.ExactGradientSquares().Digits();
  } else {
    sums = sums.first(1);
    sums[0] = optimizer_.GradientSquares();
  }
  for (const comm::Group group : {comm::Group::kShard, comm::Group::kReplica}) {
    Grid().Over(group).OnHost().AllReduce(Dtype::kFloat64, sums.data(), std::ssize(sums));
  }
  return model_.Canon().On() ? ExactSum::FromDigits(sums).Value() : sums.front();
}

void TrainingStep::RequireFiniteNorm() const {
  if (std::isfinite(result_.gradient_norm)) return;
  // Every rank holds the same sum: all see this together. On a GPU nobody has looked before.
  const char* const advice =
      "The weights were not changed. Lower optimizer.learning_rate or lengthen "
      "schedule.warmup_steps, and continue from the last checkpoint with -r.";
  Grid().World().Together([&] {
    const std::string name = optimizer_.FirstNotFinite();
    if (name.empty()) return;
    throw RunError(
        fmt::format("step {}: the gradient of {} is not finite, summed over the ranks, on rank {}",
                    step_ + 1, name, Grid().World().Rank()),
        advice);
  });
  throw AgreedError(
      ExitCode::kFailed,
      fmt::format("step {}: the sum of the gradients over the ranks is not finite", step_ + 1),
      advice);
}

void TrainingStep::UpdateWeights() {
  const device::ProfileRange range("update");
  const double start = Seconds(), waited = Waited();
  result_.learning_rate = schedule_.Rate(step_ + 1);
  result_.gradient_norm = std::sqrt(SumSquares()) / static_cast<double>(result_.targets);
  RequireFiniteNorm();
  optimizer_.Step(step_ + 1, result_.learning_rate, result_.gradient_norm, result_.targets,
                  !keep_gradients_);
  model_.Units().GatherUpdated();
  UpdateScales();
  const double exposed = Waited() - waited;
  mine_.exposed_communication += exposed;
  mine_.compute += Seconds() - start - exposed;
}

}  // namespace trireme::training
