// The [pipeline] section: its keys and their valid combinations.
#include <fmt/format.h>

#include <array>

#include "trireme/base/error.hpp"
#include "trireme/parallel/pipeline_schedule.hpp"

namespace trireme::parallel {

namespace {
constexpr std::array kNames = {"gpipe", "1f1b", "interleaved", "zero_bubble"};  // as ScheduleKind
constexpr int kMostChunks = 1024;  // far beyond any number of layers a stage
}  // namespace

const char* NameOf(ScheduleKind kind) { return kNames.at(static_cast<std::size_t>(kind)); }

void DeclarePipeline(input::Schema& schema) {
  schema.Section("pipeline", "The order of forward and backward passes over grid.pipeline stages.")
      .Choice("pipeline.schedule", "1f1b", {kNames.begin(), kNames.end()},
              "gpipe: all forward, then all backward passes. 1f1b: as gpipe in time, with the "
              "activations of no more micro-batches than stages. interleaved: every stage holds "
              "several parts of the model; shorter idle times, more messages and activations. "
              "zero_bubble: weight gradients fill the idle times, with 1f1b's activations of the "
              "first stage on every stage. With one stage there is nothing to schedule.")
      .Integer("pipeline.chunks", 1, {1, kMostChunks}, "",
               "Parts of the model that a stage holds; 2 or more with interleaved, else 1.");
}

PipelineShape ReadPipeline(const input::Deck& deck, int stages) {
  PipelineShape shape;
  shape.stages = stages;
  shape.chunks = static_cast<int>(deck.Integer("pipeline.chunks"));
  const std::string& name = deck.Text("pipeline.schedule");
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) shape.kind = static_cast<ScheduleKind>(i);
  }
  const bool interleaved = shape.kind == ScheduleKind::kInterleaved;
  if (interleaved && stages == 1) {
    throw deck.Complain("pipeline.schedule", "one stage has nothing to interleave with",
                        "Set grid.pipeline to 2 or more, or choose another schedule.");
  }
  if (interleaved && shape.chunks == 1) {
    throw deck.Complain("pipeline.chunks", "interleaved needs several parts of the model a stage",
                        "Choose 2 or more.");
  }
  if (!interleaved && shape.chunks > 1) {
    throw deck.Complain("pipeline.chunks",
                        fmt::format("schedule {} has one part of the model a stage", name),
                        "Choose pipeline.schedule = interleaved, or leave pipeline.chunks out.");
  }
  return shape;
}

}  // namespace trireme::parallel
