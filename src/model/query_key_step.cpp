// The kinds of steps between the projection of queries and keys and the attention.
#include "trireme/model/query_key_step.hpp"

#include "query_key_norm.hpp"
#include "rotation.hpp"

namespace trireme::model {

std::vector<std::unique_ptr<QueryKeyStep>> MakeQueryKeySteps(const ParameterPlace& place,
                                                             const std::string& name) {
  std::vector<std::unique_ptr<QueryKeyStep>> steps;
  if (place.options.qk_norm) {
    steps.push_back(std::make_unique<QueryKeyNorm>(place, name));
  }
  if (place.options.position == Position::kRope) steps.push_back(std::make_unique<Rotation>());
  return steps;
}

}  // namespace trireme::model
