// AdamW: two moments, and one parallel pass over all owned elements.
#include <cmath>

#include "rules.hpp"

namespace trireme::train {

AdamW::AdamW(const OptimizerOptions& options, const std::vector<OwnedParameter>& owned,
             const kernels::Registry& registry, const device::Stream& stream)
    : Rule(registry, stream, {"first_moment.", "second_moment."}),
      beta1_(options.beta1),
      beta2_(options.beta2),
      epsilon_(options.epsilon) {
  for (const OwnedParameter& part : owned) {
    kernels::UpdateRange range = part.storage;
    range.decay = part.parameter->decay ? options.weight_decay : 0;
    range.first = MomentAt(0, part.moment);
    range.second = MomentAt(1, part.moment);
    ranges_.push_back(range);
  }
}

void AdamW::SetScalars(std::int64_t step, std::span<kernels::UpdateScalars> scalars) const {
  kernels::UpdateScalars& own = scalars.front();
  own.beta1 = beta1_;
  own.beta2 = beta2_;
  own.epsilon = epsilon_;
  own.correction1 = 1 - std::pow(beta1_, static_cast<double>(step));
  own.correction2 = 1 - std::pow(beta2_, static_cast<double>(step));
}

void AdamW::Update(const kernels::UpdateScalars* scalars, bool clear) {
  kernels::AdamW(Stream(), Type(), ranges_, scalars, clear);
}

}  // namespace trireme::train
