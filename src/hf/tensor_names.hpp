// TensorNames: tensors by the names that a family has for them, whether or not a file leaves out
// the prefix that all of them may have.
#ifndef TRIREME_SRC_HF_TENSOR_NAMES_HPP_
#define TRIREME_SRC_HF_TENSOR_NAMES_HPP_

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tensor_map.hpp"
#include "trireme/hf/listing.hpp"

namespace trireme::hf {

class TensorNames {
 public:
  // Both must outlive this.
  TensorNames(const std::vector<MappedTensor>& map, const Listing& listing, Family family);

  // The mapped tensor that a name in the listing means; null: none.
  const MappedTensor* Find(const std::string& listed) const;

 private:
  std::map<std::string, const MappedTensor*> by_name_;  // as listed
};

}  // namespace trireme::hf

#endif  // TRIREME_SRC_HF_TENSOR_NAMES_HPP_
