// The rules, one class per method.
#ifndef TRIREME_SRC_TRAIN_RULES_HPP_
#define TRIREME_SRC_TRAIN_RULES_HPP_

#include <vector>

#include "trireme/train/rule.hpp"

namespace trireme::train {

// Adam with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2).
class AdamW final : public Rule {
 public:
  AdamW(const OptimizerOptions& options, const std::vector<OwnedParameter>& owned,
        const kernels::Registry& registry, const device::Stream& stream);
  void SetScalars(std::int64_t step, std::span<kernels::UpdateScalars> scalars) const override;
  void Update(const kernels::UpdateScalars* scalars, bool clear) override;

 private:
  double beta1_, beta2_, epsilon_;
  std::vector<kernels::UpdateRange> ranges_;  // one per owned parameter
};

// Gradient descent with decoupled weight decay; keeps no moments.
class Sgd final : public Rule {
 public:
  Sgd(const OptimizerOptions& options, const std::vector<OwnedParameter>& owned,
      const kernels::Registry& registry, const device::Stream& stream);
  void SetScalars(std::int64_t, std::span<kernels::UpdateScalars>) const override {}
  void Update(const kernels::UpdateScalars* scalars, bool clear) override;

 private:
  std::vector<kernels::UpdateRange> ranges_;  // one per owned parameter
};

}  // namespace trireme::train

#endif  // TRIREME_SRC_TRAIN_RULES_HPP_
