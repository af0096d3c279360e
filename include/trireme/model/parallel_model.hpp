// A model spread over the ranks of a replica: the network, its stage's tasks, and inference.
#pragma once

#include <functional>
#include <memory>

#include "trireme/model/inference.hpp"
#include "trireme/model/network.hpp"
#include "trireme/model/stage_tasks.hpp"

namespace trireme::model {

class ParallelModel : public Network {
 public:
  // Allocates all memory and draws the initial weights. Collective over the grid's world. grid must
  // outlive this. between: empty, or called about once a second while weights are drawn, equally
  // often on all ranks; it may throw an AgreedError.
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
  ~ParallelModel() { Units().LeaveUpdated(); }  // before drain_ waits for queued work

  StageTasks& Tasks() { return *tasks_; }
  const StageTasks& Tasks() const { return *tasks_; }
  model::Inference& Inference() { return *inference_; }

  // Bytes of this rank's buffers. Each is rounded up as in device::AllocateZeroed, so that the sum
  // is what the allocator counts.
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
