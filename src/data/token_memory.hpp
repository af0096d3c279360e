// The arrays of the splits that are kept in memory: in this rank's own copy, or in one window that
// all ranks of a node share.
#ifndef TRIREME_SRC_DATA_TOKEN_MEMORY_HPP_
#define TRIREME_SRC_DATA_TOKEN_MEMORY_HPP_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "token_layout.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/comm/shared_memory.hpp"

namespace trireme::data {

// Bytes of a split's arrays in memory.
std::int64_t BytesInMemory(const TokenLayout& layout, Split split);

class TokenMemory {
 public:
  // Collective over `world`, whose ranks on one node form `node`. Keeps nothing that is streamed.
  TokenMemory(const comm::Communicator& world, const comm::Communicator& node,
              const TokenLayout& layout, const Keeping& keeping);

  // True on a rank that fills its copy: every rank, or the first of each node.
  bool Fills() const { return fills_; }
  // Collective over the node: makes the filling rank's writes visible to all.
  void Publish();

  bool Keeps(Split split) const { return keeps_.at(static_cast<std::size_t>(split)); }
  // The array's first element, of StoredArray::width bytes; null without such an array.
  void* At(Split split, Array array) const {
    return bases_.at(static_cast<std::size_t>(split)).at(static_cast<std::size_t>(array));
  }
  std::int64_t Bytes() const { return bytes_; }  // of the copy, for all splits that are kept

  std::int32_t Token(Split split, std::int64_t index) const {
    const auto i = static_cast<std::size_t>(split);
    const void* const tokens = bases_[i].front();
    return narrow_[i] ? static_cast<const std::uint16_t*>(tokens)[index]
                      : static_cast<std::int32_t>(static_cast<const std::uint32_t*>(tokens)[index]);
  }

 private:
  void* Allocate();
  void* AllocateShared(const comm::Communicator& world);

  std::int64_t bytes_ = 0;
  std::array<bool, 3> keeps_{};                  // by Split
  std::array<std::array<void*, 3>, 3> bases_{};  // by Split, by Array
  std::array<bool, 3> narrow_{};                 // two bytes per token, else four
  bool fills_ = true;
  std::unique_ptr<std::byte[]> own_;
  const comm::Communicator& node_;
  std::optional<comm::SharedMemory> shared_;
};

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TOKEN_MEMORY_HPP_
