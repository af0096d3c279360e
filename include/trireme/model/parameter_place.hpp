// The place of a layer's parameters, and the numbers of a block's linear layers.
#ifndef TRIREME_MODEL_PARAMETER_PLACE_HPP_
#define TRIREME_MODEL_PARAMETER_PLACE_HPP_

#include <cstdint>

#include "trireme/device/stream.hpp"
#include "trireme/model/options.hpp"
#include "trireme/parallel/tensor_group.hpp"
#include "trireme/kernels/parameter_list.hpp"

namespace trireme::model {

using kernels::Matrix;
using kernels::ParameterId;

// List that a layer adds its parameters to, the cut among tensor ranks, and whether this rank's
// stage holds the layer (if not, its parameters are only listed).
struct ParameterPlace {
  const Options& options;
  kernels::ParameterList& parameters;
  const parallel::TensorGroup& tensor;
  bool held = true;
  device::Stream stream;  // runs the products
};

// The linear layers of a block, and their numbers in the model (kernels/products.hpp).
enum class LinearSite : std::uint32_t { kQkv, kOutput, kUp, kDown };
inline constexpr int kSitesABlock = 4;
inline int SiteOf(std::uint32_t layer, LinearSite site) {
  return static_cast<int>(layer) * kSitesABlock + static_cast<int>(site);
}

}  // namespace trireme::model

#endif  // TRIREME_MODEL_PARAMETER_PLACE_HPP_
