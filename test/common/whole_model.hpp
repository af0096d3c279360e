// A whole model on one rank, without MPI: what the tests of the model and the step benchmark run.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/model/model.hpp"

namespace trireme::test {

class WholeModel {
 public:
  explicit WholeModel(const model::ModelPlan& plan, const device::Stream& stream = {})
      : plan_(plan),
        local_(model::PlanStage(plan, {}, {}, 0)),
        stream_(stream),
        layers_(plan_, local_, tensor_, stream),
        model_(plan_, local_, layers_, {stream, tensor_, ring_, units_}) {
    Parameters().Initialise(plan.seed);
  }

  // Adds the gradients of the summed loss of `batch` to the registry's; returns the summed loss in
  // nats. `ready` may be empty.
  double ForwardBackward(const data::Entry& batch, const model::GradientsReady& ready) {
    model_.Begin(Take(batch), ready, nullptr);
    Run(parallel::TaskKind::kForward);
    Run(parallel::TaskKind::kBackward, true);
    if (ready) ready(0);
    return model_.SummedLoss().Value();
  }
  // Evaluation, without dropout or smoothing: the summed loss; `losses` (or null): [B * T].
  double Loss(const data::Entry& batch, double* losses = nullptr) {
    model_.Begin(Take(batch), {}, losses);
    Run(parallel::TaskKind::kEvaluate);
    return model_.SummedLoss().Value();
  }
  // Logits of the token after position `position` of sequence 0: [vocabulary].
  std::vector<double> Logits(const data::Entry& batch, std::int64_t position) {
    model_.BeginLogits(Take(batch), position);
    Run(parallel::TaskKind::kEvaluate);
    return model_.LogitsSlice();
  }

  const model::ModelPlan& Plan() const { return plan_; }
  const device::Stream& Stream() const { return stream_; }
  kernels::Registry& Parameters() { return layers_.Parameters(); }
  const kernels::Registry& Parameters() const { return layers_.Parameters(); }
  model::ModelMemory Memory() const { return model_.Memory(); }

 private:
  model::StagedBatches::Taken Take(const data::Entry& batch) {
    return model_.Batches().Take(std::span(&batch, 1));
  }
  void Run(parallel::TaskKind kind, bool final = false) {
    model_.Run({{kind, 0, 0}, {}, final}, {}, {});
  }
  model::ModelPlan plan_;
  model::StagePlan local_;
  device::Stream stream_;
  parallel::TensorGroup tensor_;
  parallel::RingAttention ring_;
  parallel::ShardedUnits units_;  // without sharding
  model::StageLayers layers_;
  model::Model model_;
};

}  // namespace trireme::test
