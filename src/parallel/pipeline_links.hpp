// The data flow between virtual stages, which every schedule must obey: the task that each waits
// for.
#ifndef TRIREME_SRC_PARALLEL_PIPELINE_LINKS_HPP_
#define TRIREME_SRC_PARALLEL_PIPELINE_LINKS_HPP_

#include <string>

#include "trireme/parallel/pipeline.hpp"

namespace trireme::parallel {

inline constexpr int kNoStage = -1;

inline int VirtualStage(const PipelineShape& shape, int stage, int chunk) {
  return chunk * shape.stages + stage;
}
inline bool GoesForward(TaskKind kind) {
  return kind == TaskKind::kForward || kind == TaskKind::kEvaluate;
}
inline bool GivesInputGradient(TaskKind kind) {
  return kind == TaskKind::kBackward || kind == TaskKind::kBackwardInput;
}
inline bool GivesWeightGradient(TaskKind kind) {
  return kind == TaskKind::kBackward || kind == TaskKind::kBackwardWeight;
}

// The virtual stage whose result `task` takes in; kNoStage if it needs none.
int SourceOf(const PipelineShape& shape, int stage, const Task& task);
// The virtual stage that takes in the result of `task`.
int DestinationOf(const PipelineShape& shape, int stage, const Task& task);

std::string Describe(const Task& task);  // "F3 of chunk 1"

}  // namespace trireme::parallel

#endif  // TRIREME_SRC_PARALLEL_PIPELINE_LINKS_HPP_
