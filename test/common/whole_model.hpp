// A whole model on one rank, without MPI: what the tests of the model and the step benchmark run.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/comm/process_grid.hpp"
#include "trireme/model/parallel_model.hpp"

namespace trireme::test {

class WholeModel {
 public:
  explicit WholeModel(const model::ModelPlan& plan, const device::Stream& stream = {})
      : grid_(comm::ProcessGrid::Planned({}, {}, 0)), model_(grid_, plan, stream) {}

  // Adds the gradients of the summed loss of `batch` to the registry's; returns the summed loss in
  // nats. `ready` may be empty.
  double ForwardBackward(const data::Entry& batch, const model::GradientsReady& ready) {
    model_.Tasks().StartTrain(model_.Tasks().Batches().Take(std::span(&batch, 1)), ready);
    if (ready) ready(0);
    return model_.Tasks().FinishLoss().Value();
  }
  // Evaluation, without dropout or smoothing: the summed loss; `losses` (or null): [B * T].
  double Loss(const data::Entry& batch, double* losses = nullptr) {
    return model_.Tasks().Loss({&batch, 1}, losses).Value();
  }
  // Logits of the token after position `position` of sequence 0: [vocabulary].
  std::vector<double> Logits(const data::Entry& batch, std::int64_t position) {
    return model_.Inference().Logits(batch, position);
  }

  const model::ModelPlan& Plan() const { return model_.Plan(); }
  const device::Stream& Stream() const { return model_.Stream(); }
  kernels::Registry& Parameters() { return model_.Parameters(); }
  const kernels::Registry& Parameters() const { return model_.Parameters(); }
  device::MemoryTerms Memory() const { return model_.Memory(); }

 private:
  comm::ProcessGrid grid_;
  model::ParallelModel model_;
};

}  // namespace trireme::test
