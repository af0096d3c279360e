// The kinds of feed-forward layers.
#include "trireme/model/ffn.hpp"

#include "dense_ffn.hpp"

namespace trireme::model {

std::unique_ptr<Ffn> MakeFfn(const ParameterPlace& place, const std::string& name,
                             std::uint32_t layer) {
  return std::make_unique<DenseFfn>(place, name, layer);
}

}  // namespace trireme::model
