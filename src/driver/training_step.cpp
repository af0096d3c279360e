#include "trireme/driver/training_step.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>

#include "trireme/driver/training.hpp"

namespace trireme::driver {

TrainingStep::TrainingStep(const data::TokenFile& tokens, const data::Sampler& sampler,
                           model::ParallelModel& model, optimizer::Optimizer& optimizer,
                           const optimizer::Schedule& schedule, parallel::GradientBuckets& buckets,
                           std::int64_t batch, bool keep_gradients, Defect defect)
    : tokens_(tokens),
      sampler_(sampler),
      model_(model),
      optimizer_(optimizer),
      schedule_(schedule),
      buckets_(buckets),
      batch_(batch),
      keep_gradients_(keep_gradients),
      defect_(defect) {}

StepResult TrainingStep::Run(std::int64_t step, const Requests& mine) {
  window_start_ = MPI_Wtime();
  step_ = step;
  result_ = {};
  LoadBatch();
  ComputeGradients();
  SumGradients();
  AgreeOnStep(mine);
  UpdateWeights();
  mine_.total += MPI_Wtime() - window_start_;
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
Part TrainingStep::Share() const {
  const int rank = Grid().Coordinates().data, ranks = Grid().Shape().data;
  const model::Canonical& canonical = model_.Canon();
  if (!canonical.On()) return PartOf(sampler_.BatchSize(step_), rank, ranks);
  return CanonicalShare(batch_, rank, ranks, canonical);
}

// Micro-batches of this step: this rank's, or, where all ranks of a shard group have to take part
// in each one's transfers, those of the rank with the most windows.
std::size_t TrainingStep::CountMicroBatches(std::size_t share) const {
  const model::ModelSetup& setup = model_.Setup();
  auto most = static_cast<std::int64_t>(share);
  if (model_.Units().ValuesSharded() || model_.Units().GradientsSharded()) {
    const std::int64_t batch = sampler_.BatchSize(step_);
    const model::Canonical& canonical = model_.Canon();
    // Canonical shares are those of the largest batch, filled from the front.
    most = std::min(batch,
                    LargestShare(canonical.On() ? batch_ : batch, Grid().Shape().data, canonical));
  }
  return static_cast<std::size_t>(CeilDivide(most, setup.micro_batch * setup.leaves));
}

void TrainingStep::LoadBatch() {
  const double start = MPI_Wtime();
  const model::ModelSetup& setup = model_.Setup();
  sampler_.Fill(step_, Share(), share_);
  const std::span<const data::Sample> share(share_);
  const auto most = static_cast<std::size_t>(setup.micro_batch);
  // A schedule may want more micro-batches than there are: empty ones.
  const std::size_t count = CountMicroBatches(share.size());
  const auto leaves = static_cast<std::size_t>(setup.leaves);
  entry_count_ = leaves * static_cast<std::size_t>(model_.Stages().Padded(static_cast<int>(count)));
  if (batches_.size() < entry_count_) batches_.resize(entry_count_);
  const model::Canonical& canonical = model_.Canon();
  const std::int64_t group =
      canonical.On() ? LeavesOfGroup(batch_, canonical) : std::int64_t{1};  // in entries
  for (std::size_t i = 0; i < entry_count_; ++i) {
    data::MicroBatch& entry = batches_[i];
    entry.sequences = entry.valid = 0;
    if (i * most >= share.size()) continue;
    data::FillMicroBatch(tokens_, data::Split::kTrain,
                         share.subspan(i * most, std::min(share.size() - i * most, most)),
                         setup.length, entry, model_.Held());
    entry.group = static_cast<std::int64_t>(i) / group;
  }
  result_.targets = sampler_.BatchTargets(step_);
  mine_.data += MPI_Wtime() - start;
}

void TrainingStep::ComputeGradients() {
  const double start = MPI_Wtime(), waited = Waited();
  model_.BeginStep();
  buckets_.Begin();
  const std::span<const data::MicroBatch> batches(batches_.data(), entry_count_);
  model::GradientsReady ready;
  if (defect_ != Defect::kAverageOfAverages && !model_.Canon().On()) {
    ready = [this](std::int64_t begin) { buckets_.Ready(begin); };
  }
  local_loss_ = model_.Train(batches, ready);
  if (defect_ == Defect::kAverageOfAverages) SpoilAverages();
  // What is left, the first stage's embedding for one; a rank without samples takes part with
  // zeros.
  buckets_.Ready(0);
  StepTimes& times = mine_;
  const double exposed = Waited() - waited;
  double bubble = 0, output = 0;
  if (!batches.empty()) {
    bubble = model_.Stages().SecondsWaitedForInput();
    output = model_.Stages().SecondsWaitedForOutput();
  }
  times.bubble += bubble;
  times.exposed_communication += exposed + output;
  times.compute += MPI_Wtime() - start - exposed - output - bubble;
}

// What a mean of the ranks' means would be: wrong wherever ranks have different numbers of targets.
void TrainingStep::SpoilAverages() {
  std::int64_t valid = 0;
  for (std::size_t i = 0; i < entry_count_; ++i) valid += batches_[i].valid;
  if (valid == 0) return;
  const double factor =
      static_cast<double>(result_.targets) / static_cast<double>(valid * Grid().Shape().data);
  const tensor::Registry& parameters = model_.Parameters();
  DispatchDtype(parameters.Type(), [&](auto zero) {
    using T = decltype(zero);
    auto* gradients = static_cast<T*>(parameters.Gradients());
    for (std::int64_t i = 0; i < parameters.Owns().gradients; ++i) {
      gradients[i] *= static_cast<T>(factor);
    }
  });
}

void TrainingStep::SpoilOneSum() {
  const tensor::Registry& parameters = model_.Parameters();
  DispatchDtype(parameters.Type(),
                [&](auto zero) { static_cast<decltype(zero)*>(parameters.Gradients())[0] += 1; });
}

void TrainingStep::SumGradients() {
  const double waited = Waited();
  model_.Units().FinishGradients();
  buckets_.Wait();
  if (defect_ == Defect::kDataSumSpoiled && Grid().Data().Rank() == 1) SpoilOneSum();
  model_.SumSharedGradients();
  mine_.exposed_communication += Waited() - waited;
}

// One small all-reduce carries everything on which the ranks must agree before the weights change,
// and the times of the last step's end and of this one so far.
void TrainingStep::AgreeOnStep(const Requests& mine) {
  const double start = MPI_Wtime();
  mine_.total += start - window_start_;
  window_start_ = start;
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
  mine_.exposed_communication += MPI_Wtime() - start;
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
    Grid().Over(group).AllReduce(Dtype::kFloat64, sums.data(), std::ssize(sums));
  }
  return model_.Canon().On() ? ExactSum::FromDigits(sums).Value() : sums.front();
}

void TrainingStep::UpdateWeights() {
  const double start = MPI_Wtime(), waited = Waited();
  result_.learning_rate = schedule_.Rate(step_ + 1);
  result_.gradient_norm = std::sqrt(SumSquares()) / static_cast<double>(result_.targets);
  if (!std::isfinite(result_.gradient_norm)) {
    // Every rank holds the same sum: all see this together.
    throw AgreedError(
        ExitCode::kFailed,
        fmt::format("step {}: the sum of the gradients over the ranks is not finite", step_ + 1),
        "The weights were not changed. Lower optimizer.learning_rate.");
  }
  optimizer_.Step(step_ + 1, result_.learning_rate, result_.gradient_norm, result_.targets,
                  !keep_gradients_);
  model_.Units().GatherUpdated();
  const double exposed = Waited() - waited;
  mine_.exposed_communication += exposed;
  mine_.compute += MPI_Wtime() - start - exposed;
}

}  // namespace trireme::driver
