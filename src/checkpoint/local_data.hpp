// Data of a local checkpoint on its way to a file: pieces of state, and files that have no name
// yet.
#ifndef TRIREME_SRC_CHECKPOINT_LOCAL_DATA_HPP_
#define TRIREME_SRC_CHECKPOINT_LOCAL_DATA_HPP_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "local_file.hpp"
#include "local_shares.hpp"
#include "trireme/base/positioned_file.hpp"

namespace trireme::checkpoint {

// Bytes of the data from `begin` on; zeros between pieces. places: of the pieces stored, and the
// end. Neither `begin` nor the end of `to` splits an element: pieces begin at multiples of 64
// bytes.
void FillData(const State& state, const LocalShares& shares,
              const std::vector<std::int64_t>& places, std::int64_t begin, std::span<std::byte> to);

// A file under its temporary name.
struct LocalDraft {
  std::string path;  // with the last name
  std::optional<PositionedFile> file;

  void Name(const std::string& folder, const LocalName& name);
  std::string Temporary() const { return path + kLocalTemporary; }
  // Makes it anew and reserves its space. Throws RunError.
  void Open(std::int64_t bytes);
  // Gives it its name. Throws RunError.
  void Publish();
  void Remove() const;
};

}  // namespace trireme::checkpoint

#endif  // TRIREME_SRC_CHECKPOINT_LOCAL_DATA_HPP_
