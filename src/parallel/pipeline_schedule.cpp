// The four schedules: the order of a stage's tasks, and how many micro-batches are in flight.
#include <fmt/format.h>
#include <algorithm>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/parallel/pipeline.hpp"

namespace trireme::parallel {

namespace {

using enum TaskKind;

// gpipe, 1f1b and zero_bubble: some forward passes first, then backward and forward passes in turn.
// zero_bubble orders forward passes and input gradients as 1f1b; each weight gradient follows
// `stage` micro-batches later. So later stages spend the memory that they save in 1f1b on waiting
// weight gradients, and every stage holds as many micro-batches as the first stage of 1f1b.
std::vector<Task> OneChunk(const PipelineShape& shape, int stage) {
  const int count = shape.micro_batches;
  const bool split = shape.kind == ScheduleKind::kZeroBubble && stage > 0;
  const bool all_ahead = shape.kind == ScheduleKind::kGpipe && shape.stages > 1;
  const int ahead = all_ahead ? count : std::min(shape.stages - stage, count);
  std::vector<Task> tasks;
  int forward = 0;
  while (forward < ahead) tasks.push_back({kForward, forward++, 0});
  for (int m = 0; m < count; ++m) {
    tasks.push_back({split ? kBackwardInput : kBackward, m, 0});
    if (split && m >= stage) tasks.push_back({kBackwardWeight, m - stage, 0});
    if (forward < count) tasks.push_back({kForward, forward++, 0});
  }
  for (int m = std::max(count - stage, 0); split && m < count; ++m) {
    tasks.push_back({kBackwardWeight, m, 0});
  }
  return tasks;
}

// A stage runs P micro-batches through one chunk, then through the next; v chunks make a round of P
// v tasks. Backward passes take the chunks from the last to the first.
std::vector<Task> Interleaved(const PipelineShape& shape, int stage) {
  const int stages = shape.stages, chunks = shape.chunks;
  if (shape.micro_batches % stages != 0) {
    throw RunError(
        fmt::format("interleaved schedule: {} micro-batches are no multiple of {} stages",
                    shape.micro_batches, stages));
  }
  const auto task = [&](TaskKind kind, int which) {
    const int round = which / (stages * chunks);
    const int within = which % (stages * chunks);
    const int chunk = within / stages;
    return Task{kind, round * stages + within % stages,
                kind == kForward ? chunk : chunks - 1 - chunk};
  };
  const int total = shape.micro_batches * chunks;
  std::vector<Task> tasks;
  int forward = 0;
  while (forward < MostInFlight(shape, stage)) tasks.push_back(task(kForward, forward++));
  for (int backward = 0; backward < total; ++backward) {
    tasks.push_back(task(kBackward, backward));
    if (forward < total) tasks.push_back(task(kForward, forward++));
  }
  return tasks;
}

// Finds the best distribution of blocks over the virtual stages without trying all of them.

class Balance {
 public:
  Balance(std::int64_t layers, int virtual_stages, double block, double embedding, double head)
      : layers_(layers), block_(block), extra_(static_cast<std::size_t>(virtual_stages), 0.0) {
    extra_.front() += embedding;
    extra_.back() += head;
  }

  // The lowest possible cost of the most expensive stage. That cost is extra_[stage] + n block_ for
  // some stage and n: this is the least such value within which all blocks find room.
  double Least() const {
    std::vector<double> candidates;
    for (std::size_t stage : {std::size_t{0}, extra_.size() / 2, extra_.size() - 1}) {
      for (std::int64_t n = Fewest(stage); n <= layers_; ++n) {
        candidates.push_back(Cost(stage, n));
      }
    }
    std::sort(candidates.begin(), candidates.end());
    return *std::partition_point(candidates.begin(), candidates.end(),
                                 [&](double limit) { return !Fits(limit); });
  }

  // Blocks per stage, filled evenly, with no stage's cost above `limit`. Among stages with equally
  // many blocks, a cheaper one is filled first, but the last stage never before others.
  std::vector<std::int64_t> Fill(double limit) const {
    std::vector<std::int64_t> counts;
    std::int64_t left = layers_;
    for (std::size_t stage = 0; stage < extra_.size(); ++stage) {
      counts.push_back(Fewest(stage));
      left -= counts.back();
    }
    for (; left > 0; --left) {
      std::size_t best = extra_.size();
      for (std::size_t stage = 0; stage < extra_.size(); ++stage) {
        if (Cost(stage, counts[stage] + 1) > limit) continue;
        if (best == extra_.size() || counts[stage] < counts[best] ||
            (counts[stage] == counts[best] && extra_[stage] < extra_[best] &&
             stage + 1 < extra_.size())) {
          best = stage;
        }
      }
      ++counts[best];
    }
    return counts;
  }

 private:
  double Cost(std::size_t stage, std::int64_t blocks) const {
    return extra_[stage] + static_cast<double>(blocks) * block_;
  }
  std::int64_t Fewest(std::size_t stage) const { return stage + 1 < extra_.size() ? 1 : 0; }

  std::int64_t Room(std::size_t stage, double limit) const {  // most blocks; -1: not even 0 fit
    std::int64_t fits = -1, least = layers_ + 1;              // does fit, does not
    while (least - fits > 1) {
      const std::int64_t middle = fits + (least - fits) / 2;
      (Cost(stage, middle) <= limit ? fits : least) = middle;
    }
    return fits;
  }

  bool Fits(double limit) const {
    std::int64_t room = 0;
    for (std::size_t stage = 0; stage < extra_.size(); ++stage) {
      const std::int64_t here = Room(stage, limit);
      if (here < Fewest(stage)) return false;
      room += here;
    }
    return room >= layers_;
  }

  std::int64_t layers_;
  double block_;
  std::vector<double> extra_;  // [virtual stages]: cost of embedding or head
};

}  // namespace

int SourceOf(const PipelineShape& shape, int stage, const Task& task) {
  const int here = VirtualStage(shape, stage, task.chunk);
  if (GoesForward(task.kind)) return here == 0 ? kNoStage : here - 1;
  if (!GivesInputGradient(task.kind) || here == shape.VirtualStages() - 1) return kNoStage;
  return here + 1;
}

int DestinationOf(const PipelineShape& shape, int stage, const Task& task) {
  const int here = VirtualStage(shape, stage, task.chunk);
  if (GivesInputGradient(task.kind)) return here == 0 ? kNoStage : here - 1;
  if (!GoesForward(task.kind) || here == shape.VirtualStages() - 1) return kNoStage;
  return here + 1;
}

std::string Describe(const Task& task) {
  constexpr const char* kNames[] = {"forward pass", "backward pass", "input gradient",
                                    "weight gradient", "evaluation"};
  return fmt::format("{} of micro-batch {}, chunk {}", kNames[static_cast<int>(task.kind)],
                     task.micro_batch, task.chunk);
}

int PaddedMicroBatches(const PipelineShape& shape, int count) {
  if (shape.kind != ScheduleKind::kInterleaved) return count;
  return static_cast<int>(CeilDivide(count, shape.stages)) * shape.stages;
}

std::vector<Task> MakeSchedule(const PipelineShape& shape, int stage) {
  if (shape.kind == ScheduleKind::kInterleaved) return Interleaved(shape, stage);
  if (shape.chunks != 1) {
    throw RunError(fmt::format("schedule {} has one chunk per stage, not {}", NameOf(shape.kind),
                               shape.chunks));
  }
  return OneChunk(shape, stage);
}

std::vector<Task> MakeEvaluation(const PipelineShape& shape) {
  std::vector<Task> tasks;
  for (int begin = 0; begin < shape.micro_batches; begin += shape.stages) {
    const int end = std::min(begin + shape.stages, shape.micro_batches);
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      for (int m = begin; m < end; ++m) tasks.push_back({kEvaluate, m, chunk});
    }
  }
  return tasks;
}

int MostInFlight(const PipelineShape& shape, int stage) {
  const int stages = shape.stages, count = shape.micro_batches;
  switch (shape.kind) {
    case ScheduleKind::kGpipe:
      return stages == 1 ? 1 : count;
    case ScheduleKind::kOneForwardOneBackward:
      return std::min(stages - stage, count);
    case ScheduleKind::kInterleaved:
      return std::min((stages - stage - 1) * 2 + (shape.chunks - 1) * stages + 1,
                      count * shape.chunks);
    case ScheduleKind::kZeroBubble:
      return std::min(stages, count);
  }
  throw RunError("unknown pipeline schedule");
}

std::vector<Part> BalanceStages(std::int64_t layers, int virtual_stages, double block_cost,
                                double embedding_cost, double head_cost) {
  if (layers + 1 < virtual_stages) {
    throw RunError("more virtual stages than blocks and head: a bug in Trireme");
  }
  const Balance balance(layers, virtual_stages, block_cost, embedding_cost, head_cost);
  std::vector<Part> parts;
  std::int64_t begin = 0;
  for (const std::int64_t count : balance.Fill(balance.Least())) {
    parts.push_back({begin, begin + count});
    begin += count;
  }
  return parts;
}

}  // namespace trireme::parallel
