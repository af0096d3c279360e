// A model spread over the ranks of one data replica: the network, its stage's tasks, and inference.
#pragma once

#include <functional>
#include <memory>

#include "trireme/model/inference.hpp"
#include "trireme/model/network.hpp"
#include "trireme/model/stage_tasks.hpp"

namespace trireme::model {

class ParallelModel : public Network {
 public:
  // Collective over the grid's world. Takes all memory and draws the initial weights. `grid` must
  // outlive it. between (may be empty) is called on all ranks about every second of the drawing,
  // equally often, and may throw an AgreedError.
  ParallelModel(const comm::ProcessGrid& grid, const ModelPlan& plan, const device::Stream& stream,
                const std::function<void()>& between = {})
      : Network(grid, plan, stream), drain_(stream, [&grid] { grid.GiveUp(); }) {
    Parallelise();
    grid.World().Together([this] {
      tasks_ = StageTasks::Make(*this);
      inference_ = std::make_unique<model::Inference>(*this, *tasks_);
    });
    DrawWeights(between);
  }
  ParallelModel(const ParallelModel&) = delete;
  ParallelModel& operator=(const ParallelModel&) = delete;
  ~ParallelModel() { Units().LeaveUpdated(); }  // before drain_ waits for what is queued

  StageTasks& Tasks() { return *tasks_; }
  const StageTasks& Tasks() const { return *tasks_; }
  model::Inference& Inference() { return *inference_; }

  // Bytes of this rank's buffers, each rounded up as device::AllocateZeroed does: the sum is what
  // the allocator counts.
  device::MemoryTerms Memory() const {
    device::MemoryTerms memory;
    AddMemory(memory);
    tasks_->AddMemory(memory);
    inference_->AddMemory(memory);
    return memory;
  }

 private:
  std::unique_ptr<StageTasks> tasks_;
  std::unique_ptr<model::Inference> inference_;
  device::Drain drain_;  // destroyed first
};

}  // namespace trireme::model
