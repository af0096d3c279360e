#include "trireme/driver/training_step.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

namespace trireme::driver {

TrainingStep::TrainingStep(const data::TokenFile& tokens, const data::Sampler& sampler,
                           model::ParallelModel& model, optimizer::Optimizer& optimizer,
                           const optimizer::Schedule& schedule, parallel::GradientBuckets& buckets,
                           Defect defect)
    : tokens_(tokens),
      sampler_(sampler),
      model_(model),
      optimizer_(optimizer),
      schedule_(schedule),
      buckets_(buckets),
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

void TrainingStep::LoadBatch() {
  const double start = MPI_Wtime();
  const std::vector<data::Sample> share =
      sampler_.Share(step_, Grid().Data().Rank(), Grid().Data().Size());
  const std::span<const data::Sample> all(share);
  const auto most = static_cast<std::size_t>(model_.Setup().micro_batch);
  batch_count_ = (share.size() + most - 1) / most;
  // A schedule may want more micro-batches than there are: empty ones.
  padded_count_ = static_cast<std::size_t>(model_.Stages().Padded(static_cast<int>(batch_count_)));
  if (batches_.size() < padded_count_) batches_.resize(padded_count_);
  for (std::size_t i = batch_count_; i < padded_count_; ++i) {
    batches_[i].sequences = batches_[i].valid = 0;
  }
  for (std::size_t i = 0; i < batch_count_; ++i) {
    const std::size_t count = std::min(share.size() - i * most, most);
    data::FillMicroBatch(tokens_, data::Split::kTrain, all.subspan(i * most, count),
                         model_.Setup().length, batches_[i]);
  }
  result_.targets = sampler_.BatchTargets(step_);
  mine_.data += MPI_Wtime() - start;
}

void TrainingStep::ComputeGradients() {
  const double start = MPI_Wtime(), waited = Waited();
  model_.Parameters().ZeroGradients();
  buckets_.Begin();
  const std::span<const data::MicroBatch> batches(batches_.data(), padded_count_);
  model::GradientsReady ready;
  if (defect_ != Defect::kAverageOfAverages) {
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
  for (std::size_t i = 0; i < batch_count_; ++i) valid += batches_[i].valid;
  if (valid == 0) return;
  const double factor =
      static_cast<double>(result_.targets) / static_cast<double>(valid * Grid().Data().Size());
  const tensor::Registry& parameters = model_.Parameters();
  DispatchDtype(parameters.Type(), [&](auto zero) {
    using T = decltype(zero);
    auto* gradients = static_cast<T*>(parameters.Gradients());
    for (std::int64_t i = 0; i < parameters.Size(); ++i) gradients[i] *= static_cast<T>(factor);
  });
}

void TrainingStep::SpoilOneSum() {
  const tensor::Registry& parameters = model_.Parameters();
  DispatchDtype(parameters.Type(),
                [&](auto zero) { static_cast<decltype(zero)*>(parameters.Gradients())[0] += 1; });
}

void TrainingStep::SumGradients() {
  const double waited = Waited();
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
  const bool finite_loss = std::isfinite(local_loss_);
  const bool bad = !finite_loss || !buckets_.NotFinite().empty();
  std::vector<double> sums = {finite_loss ? local_loss_ : 0.0,
                              mine.signal ? 1.0 : 0.0,
                              mine.walltime ? 1.0 : 0.0,
                              mine.checkpoint ? 1.0 : 0.0,
                              bad ? 1.0 : 0.0,
                              mine_.total,
                              mine_.data,
                              mine_.compute,
                              mine_.exposed_communication,
                              mine_.bubble};
  Grid()
      .Over(comm::Group::kWorld)
      .AllReduce(Dtype::kFloat64, sums.data(), static_cast<std::int64_t>(sums.size()));
  result_.loss = sums[0] / static_cast<double>(result_.targets);
  result_.requests = {sums[1] > 0, sums[2] > 0, sums[3] > 0};
  const double ranks = Grid().World().Size();
  result_.times = {sums[5] / ranks, sums[6] / ranks, sums[7] / ranks, sums[8] / ranks,
                   sums[9] / ranks};
  mine_ = {};
  if (sums[4] > 0) {
    Grid().World().Together([&] {
      if (!bad) return;
      throw RunError(fmt::format("step {}: {} is not finite on rank {}", step_ + 1,
                                 finite_loss ? "the gradient of " + buckets_.NotFinite()
                                             : std::string("the loss"),
                                 Grid().World().Rank()),
                     "The weights were not changed. Lower optimizer.learning_rate or lengthen "
                     "schedule.warmup_steps, and continue from the last checkpoint with -r.");
    });
  }
  mine_.exposed_communication += MPI_Wtime() - start;
}

void TrainingStep::UpdateWeights() {
  const double start = MPI_Wtime(), waited = Waited();
  result_.learning_rate = schedule_.Rate(step_ + 1);
  // Each element once: the stages' and slices' sums of squares make up the replica's.
  double squares = optimizer_.GradientSquares();
  Grid().Over(comm::Group::kReplica).AllReduce(Dtype::kFloat64, &squares, 1);
  result_.gradient_norm = std::sqrt(squares) / static_cast<double>(result_.targets);
  if (!std::isfinite(result_.gradient_norm)) {
    // Every rank holds the same sum: all see this together.
    throw AgreedError(
        ExitCode::kFailed,
        fmt::format("step {}: the sum of the gradients over the ranks is not finite", step_ + 1),
        "The weights were not changed. Lower optimizer.learning_rate.");
  }
  optimizer_.Step(step_ + 1, result_.learning_rate, result_.gradient_norm, result_.targets);
  const double exposed = Waited() - waited;
  mine_.exposed_communication += exposed;
  mine_.compute += MPI_Wtime() - start - exposed;
}

}  // namespace trireme::driver
