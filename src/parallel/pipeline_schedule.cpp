// The four schedules: the order of one stage's tasks, and how many micro-batches it holds at most.
#include "trireme/parallel/pipeline_schedule.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "pipeline_links.hpp"
#include "trireme/base/error.hpp"

namespace trireme::parallel {

namespace {

using enum TaskKind;

std::vector<Task> Gpipe(int micro_batches) {
  std::vector<Task> tasks;
  for (int m = 0; m < micro_batches; ++m) tasks.push_back({kForward, m, 0});
  for (int m = 0; m < micro_batches; ++m) tasks.push_back({kBackward, m, 0});
  return tasks;
}

std::vector<Task> OneForwardOneBackward(const PipelineShape& shape, int stage) {
  std::vector<Task> tasks;
  int forward = 0;
  while (forward < std::min(shape.stages - stage, shape.micro_batches)) {
    tasks.push_back({kForward, forward++, 0});
  }
  for (int m = 0; m < shape.micro_batches; ++m) {
    tasks.push_back({kBackward, m, 0});
    if (forward < shape.micro_batches) tasks.push_back({kForward, forward++, 0});
  }
  return tasks;
}

// 1F1B on forward passes and input gradients; weight gradients follow `stage` micro-batches later.
// Memory that 1F1B's later stages save is thus spent on waiting weight gradients, and every stage
// holds as much as 1F1B's first.
std::vector<Task> ZeroBubble(const PipelineShape& shape, int stage) {
  std::vector<Task> tasks;
  const int count = shape.micro_batches;
  int forward = 0;
  while (forward < std::min(shape.stages - stage, count)) {
    tasks.push_back({kForward, forward++, 0});
  }
  for (int m = 0; m < count; ++m) {
    tasks.push_back({stage == 0 ? kBackward : kBackwardInput, m, 0});
    if (stage > 0 && m >= stage) tasks.push_back({kBackwardWeight, m - stage, 0});
    if (forward < count) tasks.push_back({kForward, forward++, 0});
  }
  if (stage == 0) return tasks;
  for (int m = std::max(count - stage, 0); m < count; ++m) tasks.push_back({kBackwardWeight, m, 0});
  return tasks;
}

// Chunks change every P micro-batches, P v tasks make a round; backward passes take the chunks from
// the last to the first.
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
    throw RunError(
        fmt::format("schedule {} has one chunk a stage, not {}", NameOf(shape.kind), shape.chunks));
  }
  if (shape.stages > 1 && shape.kind == ScheduleKind::kGpipe) return Gpipe(shape.micro_batches);
  if (shape.kind == ScheduleKind::kZeroBubble) return ZeroBubble(shape, stage);
  return OneForwardOneBackward(shape, stage);
}

std::vector<Task> MakeEvaluation(const PipelineShape& shape, int stage) {
  (void)stage;  // every stage takes the same order
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

}  // namespace trireme::parallel
