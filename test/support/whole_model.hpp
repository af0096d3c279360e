// A whole model on one rank, without MPI: what the tests of the model and the step benchmark run.
#ifndef TRIREME_TEST_SUPPORT_WHOLE_MODEL_HPP_
#define TRIREME_TEST_SUPPORT_WHOLE_MODEL_HPP_

#include <cstdint>
#include <vector>

#include "trireme/model/model.hpp"

namespace trireme::test {

class WholeModel {
 public:
  explicit WholeModel(const model::ModelPlan& plan, const device::Stream& stream = {})
      : model_(plan, model::PlanStage(plan, {}, {}, 0), {stream, tensor_, ring_}) {
  }

  // Adds the gradients of the summed loss of `batch` to the registry's; returns the summed loss in
  // nats. `ready` may be empty.
  double ForwardBackward(const data::MicroBatch& batch, const model::GradientsReady& ready) {
    model_.Begin({&batch, 1}, ready, nullptr);
    Run(parallel::TaskKind::kForward);
    Run(parallel::TaskKind::kBackward, true);
    if (ready) ready(0);
    return model_.SummedLoss().Value();
  }
  // Evaluation, without dropout or smoothing: the summed loss; `losses` (or null): [B * T].
  double Loss(const data::MicroBatch& batch, double* losses = nullptr) {
    model_.Begin({&batch, 1}, {}, losses);
    Run(parallel::TaskKind::kEvaluate);
    return model_.SummedLoss().Value();
  }
  // Logits of the token after position `position` of sequence 0: [vocabulary].
  std::vector<double> Logits(const data::MicroBatch& batch, std::int64_t position) {
    model_.BeginLogits({&batch, 1}, position);
    Run(parallel::TaskKind::kEvaluate);
    return model_.LogitsSlice();
  }

  const model::ModelPlan& Plan() const { return model_.Plan(); }
  const device::Stream& Stream() const { return model_.Stream(); }
  tensor::Registry& Parameters() { return model_.Parameters(); }
  const tensor::Registry& Parameters() const { return model_.Parameters(); }
  model::ModelMemory Memory() const { return model_.Memory(); }

 private:
  void Run(parallel::TaskKind kind, bool final = false) {
    model_.Run({{kind, 0, 0}, {}, final}, {}, {});
  }
  parallel::TensorGroup tensor_;
  parallel::RingAttention ring_;
  model::Model model_;
};

}  // namespace trireme::test

#endif  // TRIREME_TEST_SUPPORT_WHOLE_MODEL_HPP_
