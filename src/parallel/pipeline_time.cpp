// The published times of the schedules, from the costs of unequal stages.
#include <algorithm>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/parallel/pipeline_schedule.hpp"

namespace trireme::parallel {

namespace {

// Costs of all chunks of a stage.
std::vector<StageCost> SumChunks(const PipelineShape& shape, const std::vector<StageCost>& costs) {
  std::vector<StageCost> sums(static_cast<std::size_t>(shape.stages), {0, 0, 0});
  for (std::size_t i = 0; i < costs.size(); ++i) {
    StageCost& sum = sums[i % sums.size()];
    sum.forward += costs[i].forward;
    sum.backward_input += costs[i].backward_input;
    sum.backward_weight += costs[i].backward_weight;
  }
  return sums;
}

struct SumAndLargest {
  double sum = 0, largest = 0;
  void Add(double value) {
    sum += value;
    largest = std::max(largest, value);
  }
  // A row of stages that hand on `count` items one by one.
  double Time(int count) const { return sum + (count - 1) * largest; }
};

// Costs of a stage whose weight gradients belong to its backward task.
std::vector<StageCost> Merged(std::vector<StageCost> costs) {
  for (StageCost& cost : costs) {
    cost.backward_input += std::exchange(cost.backward_weight, 0);
  }
  return costs;
}

// 1F1B and zero bubble, seen from stage `at`: between the start of a forward pass and that of its
// input gradient, the stages below need a time `below`; how much of that the stage has work for is
// known from its list of tasks. This holds for the first and for the last micro-batch.
double BoundOf(const PipelineShape& shape, const std::vector<StageCost>& costs, std::size_t at) {
  const int count = shape.micro_batches, stage = static_cast<int>(at);
  const StageCost& own = costs[at];
  double before = 0, below = 0, above = costs[0].backward_weight;
  for (std::size_t s = 0; s < at; ++s) {
    before += costs[s].forward;
    above += costs[s].backward_input;
  }
  for (std::size_t s = at + 1; s < costs.size(); ++s) {
    below += costs[s].forward + costs[s].backward_input;
  }
  const int warm_up = std::min(shape.stages - stage, count);
  const double first = std::max(0.0, below - (warm_up - 1) * own.forward);
  const double last =
      std::max(0.0, below - (warm_up - 1) * (own.backward_input + own.backward_weight));
  // With few micro-batches the two overlap.
  const double wait = warm_up < count ? first + last : std::max(first, last);
  const double work = own.forward + own.backward_input + own.backward_weight;
  const double after = std::max(0.0, above - std::min(stage + 1, count) * own.backward_weight);
  return before + count * work + wait + after;
}

// The first micro-batch must come down to the stage and the last one go up from it.
double InterleavedBound(const PipelineShape& shape, const std::vector<StageCost>& costs,
                        std::size_t at) {
  double around = 0;
  for (std::size_t s = 0; s < at; ++s) {
    around += costs[s].forward + costs[s].backward_input + costs[s].backward_weight;
  }
  const StageCost own = SumChunks(shape, costs)[at];
  return around + shape.micro_batches * (own.forward + own.backward_input + own.backward_weight);
}

}  // namespace

double LeastTime(const PipelineShape& shape, const std::vector<StageCost>& costs) {
  if (shape.kind == ScheduleKind::kGpipe) return PredictedTime(shape, costs);
  const bool interleaved = shape.kind == ScheduleKind::kInterleaved;
  const bool split = shape.kind == ScheduleKind::kZeroBubble;
  const std::vector<StageCost> used = split ? costs : Merged(costs);
  double longest = 0;
  for (std::size_t s = 0; s < static_cast<std::size_t>(shape.stages); ++s) {
    longest =
        std::max(longest, interleaved ? InterleavedBound(shape, used, s) : BoundOf(shape, used, s));
  }
  return longest;
}

double PredictedTime(const PipelineShape& shape, const std::vector<StageCost>& costs) {
  SumAndLargest forward, backward, both;
  for (const StageCost& cost : SumChunks(shape, costs)) {
    forward.Add(cost.forward);
    backward.Add(cost.backward_input + cost.backward_weight);
    both.Add(cost.forward + cost.backward_input + cost.backward_weight);
  }
  const int count = shape.micro_batches;
  switch (shape.kind) {
    case ScheduleKind::kGpipe:
      return forward.Time(count) + backward.Time(count);
    case ScheduleKind::kOneForwardOneBackward:
      return both.Time(count);
    case ScheduleKind::kInterleaved:
      return count * both.largest + (both.sum - both.largest) / shape.chunks;
    case ScheduleKind::kZeroBubble:
      return LeastTime(shape, costs);
  }
  throw RunError("unknown pipeline schedule");
}

}  // namespace trireme::parallel
