// The rules, one class per method.
#ifndef TRIREME_SRC_OPTIMIZER_RULES_HPP_
#define TRIREME_SRC_OPTIMIZER_RULES_HPP_

#include <vector>

#include "trireme/optimizer/rule.hpp"

namespace trireme::optimizer {

// Adam with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2).
class AdamW final : public Rule {
 public:
  AdamW(const Options& options, const std::vector<OwnedParameter>& owned,
        const tensor::Registry& registry, const device::Stream& stream);
  void SetScalars(std::int64_t step, std::span<kernels::UpdateScalars> scalars) const override;
  void Update(const kernels::UpdateScalars* scalars, bool clear) override;

 private:
  double beta1_, beta2_, epsilon_;
  std::vector<kernels::UpdateRange> ranges_;  // one per owned parameter
};

// Gradient descent with decoupled weight decay; keeps no moments.
class Sgd final : public Rule {
 public:
  Sgd(const Options& options, const std::vector<OwnedParameter>& owned,
      const tensor::Registry& registry, const device::Stream& stream);
  void SetScalars(std::int64_t, std::span<kernels::UpdateScalars>) const override {}
  void Update(const kernels::UpdateScalars* scalars, bool clear) override;

 private:
  std::vector<kernels::UpdateRange> ranges_;  // one per owned parameter
};

}  // namespace trireme::optimizer

#endif  // TRIREME_SRC_OPTIMIZER_RULES_HPP_
