// Sgd: one parallel pass over all owned elements.
#include "rules.hpp"

namespace trireme::train {

Sgd::Sgd(const OptimizerOptions& options, const std::vector<OwnedParameter>& owned,
         const kernels::Registry& registry, const device::Stream& stream)
    : Rule(registry, stream, {}) {
  for (const OwnedParameter& part : owned) {
    ranges_.push_back(part.storage);
    ranges_.back().decay = part.parameter->decay ? options.weight_decay : 0;
  }
}

void Sgd::Update(const kernels::UpdateScalars* scalars, bool clear) {
  kernels::GradientDescent(Stream(), Type(), ranges_, scalars, clear);
}

}  // namespace trireme::train
