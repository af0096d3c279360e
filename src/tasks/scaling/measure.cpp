// MeasureRound: steps on a part of the world, with their times told apart.
#include "measure.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "statistics.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/device/cores.hpp"
#include "trireme/app/hang_bound.hpp"
#include "trireme/train/training_step.hpp"

namespace trireme::tasks {

namespace {

class Measurement {
 public:
  Measurement(const app::Job& job, const comm::Communicator& group, const train::Plan& plan,
              app::Deadline& deadline)
      : job_(job), group_(group), deadline_(deadline), grid_(group, plan.grid, plan.sharing) {}

  std::optional<Round> Run(const train::Plan& plan, const Texts& texts, const ScalingOptions& options) {
    app::ArmSetUp(*job_.runtime, job_.options.machine.hang_timeout);
    app::UseGpu(job_, grid_);
    train::TrainingState state(grid_, plan.training, job_.stream);
    train::TrainingStep step = texts.pairs != nullptr
                                      ? train::TrainingStep(state, *texts.pairs)
                                      : train::TrainingStep(state, *texts.corpus);
    for (std::int64_t i = 0; i < options.warmup_steps + options.steps; ++i) {
      const comm::Ledger before = at_agreement_;
      const train::StepResult result = RunStep(step, i);
      if (result.requests.signal || result.requests.walltime) return std::nullopt;
      if (i >= options.warmup_steps) Count(result, before);
    }
    return Finish();
  }

 private:
  train::StepResult RunStep(train::TrainingStep& step, std::int64_t number) {
    if (!job_.placement.numbers.empty()) device::PinThreads(job_.placement.numbers);
    job_.runtime->Watch().Arm(
        comm::Phase::kStep, number + 1,
        app::HangBound(comm::Phase::kStep, job_.options.machine.hang_timeout, deadline_));
    train::Requests mine;
    mine.signal = job_.signals->Received();
    mine.walltime = group_.IsRoot() && deadline_.MustStop(Seconds() + last_, false);
    // Transfers are counted up to the agreement, at which the step's times end too.
    step.BeforeNextUpdate([this](std::int64_t) { at_agreement_ = grid_.Traffic(); });
    train::StepResult result = step.Run(number, mine);
    last_ = result.times.total;
    deadline_.Step(last_);
    return result;
  }

  void Count(const train::StepResult& result, const comm::Ledger& before) {
    round_.seconds.push_back(result.times.total);
    round_.tokens += static_cast<double>(result.tokens);
    round_.loss += result.loss;
    Split& split = round_.split;
    split.compute += result.times.compute;
    split.data += result.times.data;
    split.bubble += result.times.bubble;
    exposed_ += result.times.exposed_communication;
    compute_.push_back(result.own_compute);
    comm::Ledger now = at_agreement_;
    now.Subtract(before);
    for (std::size_t group = 0; group < split.waited.size(); ++group) {
      waited_[group] += now.SecondsWaited(static_cast<comm::Group>(group));
    }
  }

  // Sums become means over ranks and steps.
  Round Finish() {
    const auto steps = static_cast<double>(round_.seconds.size());
    const double ranks = group_.Size();
    Split& split = round_.split;
    split.compute /= steps;
    split.data /= steps;
    split.bubble /= steps;
    exposed_ /= steps;
    round_.tokens /= steps;
    round_.loss /= steps;
    group_.Sum(waited_);
    comm::GroupSeconds waited{};
    for (std::size_t i = 0; i < waited.size(); ++i) waited[i] = waited_[i] / (steps * ranks);
    split.waited = comm::ExposedByGroup(waited, split.bubble, exposed_);
    split.other = round_.Mean() - split.compute - split.data - split.bubble - exposed_;
    split.imbalance = std::min(Imbalance(ComputeOfAll(), grid_.Shape()), exposed_);
    return round_;
  }

  // Seconds of each rank in each step, [ranks, steps].
  std::vector<double> ComputeOfAll() const {
    std::vector<double> all(static_cast<std::size_t>(group_.Size()) * compute_.size());
    std::copy(compute_.begin(), compute_.end(),
              all.begin() + static_cast<std::ptrdiff_t>(group_.Rank()) * std::ssize(compute_));
    group_.Sum(all);
    return all;
  }

  const app::Job& job_;
  const comm::Communicator& group_;
  app::Deadline& deadline_;
  comm::ProcessGrid grid_;
  comm::Ledger at_agreement_;    // this rank's transfers
  std::vector<double> compute_;  // of this rank, seconds of each measured step
  std::vector<double> waited_ = std::vector<double>(comm::kGroups);  // sums over measured steps
  double exposed_ = 0;
  double last_ = 0;  // seconds of the last step
  Round round_;
};

}  // namespace

double Round::Mean() const { return MeanOf(seconds); }

double Imbalance(const std::vector<double>& compute, const comm::GridShape& shape) {
  const auto ranks = static_cast<std::size_t>(shape.Ranks());
  const auto stages = static_cast<std::size_t>(shape.pipeline);
  const std::size_t steps = compute.size() / ranks, of_stage = ranks / stages;
  double sum = 0;
  for (std::size_t step = 0; step < steps; ++step) {
    for (std::size_t stage = 0; stage < stages; ++stage) {
      // A stage's ranks follow one another.
      double most = 0, all = 0;
      for (std::size_t rank = stage * of_stage; rank < (stage + 1) * of_stage; ++rank) {
        most = std::max(most, compute[rank * steps + step]);
        all += compute[rank * steps + step];
      }
      sum += most * static_cast<double>(of_stage) - all;
    }
  }
  return sum / static_cast<double>(ranks * steps);
}

std::optional<Round> MeasureRound(const app::Job& job, const comm::Communicator& group,
                                  const train::Plan& plan, const Texts& texts,
                                  const ScalingOptions& options, app::Deadline& deadline) {
  return Measurement(job, group, plan, deadline).Run(plan, texts, options);
}

}  // namespace trireme::tasks
