// KnownLines: hashes in the order of the lines.
#include "known_lines.hpp"

#include <algorithm>
#include <functional>

namespace trireme::tools {

bool KnownLines::IsNew(std::string_view line) {
  const std::uint64_t hash = std::hash<std::string_view>()(line);
  if (again_) {
    const auto begin = hashes_.begin() + static_cast<std::ptrdiff_t>(next_);
    const auto found = std::find(begin, hashes_.end(), hash);
    if (found != hashes_.end()) {
      // Lines passed over are gone.
      const auto after = hashes_.erase(begin, found) + 1;
      next_ = static_cast<std::size_t>(after - hashes_.begin());
      return false;
    }
    hashes_.resize(next_);
    again_ = false;
  }
  hashes_.push_back(hash);
  return true;
}

}  // namespace trireme::tools
