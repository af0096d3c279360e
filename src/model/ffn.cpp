// The kinds of feed-forward layers.
#include "trireme/model/ffn.hpp"

#include "dense_ffn.hpp"

namespace trireme::model {

kernels::ActivationKind KindOf(Activation activation) {
  switch (activation) {
    case Activation::kRelu:
      return kernels::ActivationKind::kRelu;
    case Activation::kGelu:
      return kernels::ActivationKind::kGelu;
    default:
      return kernels::ActivationKind::kSwiglu;
  }
}

std::unique_ptr<Ffn> MakeFfn(const ParameterPlace& place, const std::string& name,
                             std::uint32_t layer) {
  return std::make_unique<DenseFfn>(place, name, layer);
}

}  // namespace trireme::model
