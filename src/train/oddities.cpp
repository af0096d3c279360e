// Oddities: parts of a plan that are allowed and hardly anybody wants.
#include <fmt/format.h>

#include "trireme/data/sampler.hpp"
#include "trireme/train/plan.hpp"

namespace trireme::train {

namespace {

void OfWindows(const data::Sampler::Options& samples, const TokenFacts& tokens,
               std::vector<std::string>& odd) {
  if (samples.stride > samples.length) {
    odd.push_back(
        fmt::format("data.stride = {} exceeds data.sequence_length = {}: {:.0f}% of the "
                    "tokens are never trained on",
                    samples.stride, samples.length,
                    100. * static_cast<double>(samples.stride - samples.length) /
                        static_cast<double>(samples.stride)));
  }
  if (tokens.train > 0 && samples.length > tokens.train - 1) {
    odd.push_back(
        fmt::format("data.sequence_length = {} exceeds the {} tokens of {}: its only "
                    "window is filled up",
                    samples.length, tokens.train, tokens.source));
  }
}

}  // namespace

std::vector<std::string> Oddities(const Plan& plan) {
  std::vector<std::string> odd;
  const TrainingPlan& training = plan.training;
  const int data_ranks = plan.grid.data;
  if (data_ranks > training.batch) {
    odd.push_back(fmt::format("{} data ranks share data.batch = {}: {} of them have nothing to do",
                              data_ranks, training.batch, data_ranks - training.batch));
  }
  const Schedule& schedule = training.schedule;
  if (schedule.peak == 0) {
    odd.emplace_back("optimizer.learning_rate = 0: nothing is learned");
  } else if (schedule.warmup_steps > schedule.steps) {
    odd.push_back(fmt::format(
        "schedule.warmup_steps = {} exceeds the run's {} steps: the rate ends "
        "at {:.3g} and never reaches optimizer.learning_rate = {:.3g}",
        schedule.warmup_steps, schedule.steps, schedule.Rate(schedule.steps), schedule.peak));
  }
  const model::Options& model = training.model.options;
  if (!training.pairs) OfWindows(training.samples, plan.tokens, odd);
  if (model.position == model::Position::kRope && training.model.length > model.max_positions) {
    odd.push_back(
        fmt::format("data.sequence_length = {} exceeds model.max_positions = {}, for "
                    "which the rotary positions are made",
                    training.model.length, model.max_positions));
  }
  return odd;
}

}  // namespace trireme::train
