// The pipelines that the tests of schedules and programs go through.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "schedule_clock.hpp"
#include "trireme/parallel/pipeline.hpp"

namespace trireme::parallel {

inline constexpr ScheduleKind kKinds[] = {ScheduleKind::kGpipe,
                                          ScheduleKind::kOneForwardOneBackward,
                                          ScheduleKind::kInterleaved, ScheduleKind::kZeroBubble};

inline std::vector<PipelineShape> Shapes(ScheduleKind kind, int most_stages = 8,
                                         int most_chunks = 4, int most_micro_batches = 24) {
  const bool interleaved = kind == ScheduleKind::kInterleaved;
  std::vector<PipelineShape> shapes;
  for (int stages = 1; stages <= most_stages; ++stages) {
    for (int chunks = 1; chunks <= (interleaved && stages > 1 ? most_chunks : 1); ++chunks) {
      for (int count = 1; count <= most_micro_batches; ++count) {
        if (!interleaved || count % stages == 0) shapes.push_back({kind, stages, chunks, count});
      }
    }
  }
  return shapes;
}

inline std::vector<PipelineShape> AllShapes() {
  std::vector<PipelineShape> shapes;
  for (const ScheduleKind kind : kKinds) {
    for (const PipelineShape& shape : Shapes(kind)) shapes.push_back(shape);
  }
  return shapes;
}

inline std::string Text(const PipelineShape& shape) {
  return fmt::format("{}, {} stages, {} chunks, {} micro-batches", NameOf(shape.kind), shape.stages,
                     shape.chunks, shape.micro_batches);
}

inline std::vector<std::vector<Task>> Schedules(const PipelineShape& shape) {
  std::vector<std::vector<Task>> schedules;
  for (int stage = 0; stage < shape.stages; ++stage) {
    schedules.push_back(MakeSchedule(shape, stage));
  }
  return schedules;
}

inline std::vector<StageCost> Equal(const PipelineShape& shape, const StageCost& cost) {
  return std::vector<StageCost>(static_cast<std::size_t>(shape.VirtualStages()), cost);
}

}  // namespace trireme::parallel
