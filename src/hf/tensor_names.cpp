// Names of tensors with and without their common prefix.
#include "tensor_names.hpp"

#include <algorithm>

namespace trireme::hf {

namespace {

bool Lists(const Listing& listing, const std::string& name) {
  return std::any_of(listing.files.begin(), listing.files.end(), [&](const ListedFile& file) {
    return std::any_of(file.contents.tensors.begin(), file.contents.tensors.end(),
                       [&](const auto& tensor) { return tensor.name == name; });
  });
}

}  // namespace

TensorNames::TensorNames(const std::vector<MappedTensor>& map, const Listing& listing,
                         Family family) {
  const std::string prefix = OptionalPrefix(family);
  const std::string& first = map.front().name;
  const bool bare =
      !prefix.empty() && !Lists(listing, first) && Lists(listing, first.substr(prefix.size()));
  for (const MappedTensor& tensor : map) {
    const bool cut = bare && tensor.name.starts_with(prefix);
    by_name_[cut ? tensor.name.substr(prefix.size()) : tensor.name] = &tensor;
  }
}

const MappedTensor* TensorNames::Find(const std::string& listed) const {
  const auto found = by_name_.find(listed);
  return found == by_name_.end() ? nullptr : found->second;
}

}  // namespace trireme::hf
