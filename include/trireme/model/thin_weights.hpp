// Second copies of the weights of linear layers, for passes of a few rows
// (kernels/thin_panels.hpp): of weights that do not change any more.
#ifndef TRIREME_MODEL_THIN_WEIGHTS_HPP_
#define TRIREME_MODEL_THIN_WEIGHTS_HPP_

#include <cstdint>
#include <span>
#include <vector>

#include "trireme/device/arena.hpp"
#include "trireme/kernels/linear.hpp"
#include "trireme/kernels/registry.hpp"

namespace trireme::model {

class StageLayers;
struct ModelPlan;
struct StagePlan;

// The weight of a linear layer: `count` adjacent parameters, from `id` on.
struct ThinWeight {
  kernels::ParameterId id = kernels::kNoParameter;
  int count = 1;
  kernels::Form form = kernels::Form::kTransposed;
};

class ThinWeights {
 public:
  // Room for the copies of this rank's layers; no memory unless plan.thin_panels.
  ThinWeights(const ModelPlan& plan, const StagePlan& local, const StageLayers& layers,
              const device::Stream& stream);
  // Copies the weights as they are now.
  void Pack(const kernels::Registry& registry, const device::Stream& stream);
  // The copy of the weight that begins with this parameter; null before Pack.
  const void* PanelsOf(kernels::ParameterId id) const;
  std::int64_t Bytes() const { return device::BytesOf(panels_); }

 private:
  std::vector<ThinWeight> weights_;
  std::vector<std::int64_t> begins_;  // [parameters of the model]: bytes; -1: no copy
  device::Buffer panels_;
  bool packed_ = false;
};

}  // namespace trireme::model

#endif  // TRIREME_MODEL_THIN_WEIGHTS_HPP_
