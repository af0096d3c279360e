// The tokens in memory: this rank's own copy, or one window that all ranks of a node share.
#ifndef TRIREME_SRC_DATA_TOKEN_MEMORY_HPP_
#define TRIREME_SRC_DATA_TOKEN_MEMORY_HPP_

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "token_layout.hpp"
#include "trireme/comm/communicator.hpp"

namespace trireme::data {

class TokenMemory {
 public:
  // Collective over `world`, whose ranks on one node form `node`.
  TokenMemory(const comm::Communicator& world, const comm::Communicator& node,
              const TokenLayout& layout, Staging staging);
  // Collective over the node when the memory is shared, except while an exception unwinds.
  ~TokenMemory();
  TokenMemory(const TokenMemory&) = delete;
  TokenMemory& operator=(const TokenMemory&) = delete;

  // True on a rank that fills its copy: every rank, or the first of each node.
  bool Fills() const { return fills_; }
  // Collective over the node: makes the filling rank's writes visible to all.
  void Publish();

  void* Tokens(Split split) const { return bases_.at(static_cast<std::size_t>(split)); }
  std::int64_t Bytes() const { return bytes_; }  // of the copy, for all splits

  std::int32_t Token(Split split, std::int64_t index) const {
    const auto i = static_cast<std::size_t>(split);
    return narrow_[i]
               ? static_cast<const std::uint16_t*>(bases_[i])[index]
               : static_cast<std::int32_t>(static_cast<const std::uint32_t*>(bases_[i])[index]);
  }

 private:
  void* Allocate();
  void Fence();  // collective over the node
  void* AllocateShared(const comm::Communicator& world, const comm::Communicator& node);

  std::int64_t bytes_ = 0;
  std::array<void*, 3> bases_{};
  std::array<bool, 3> narrow_{};  // two bytes per token, else four
  bool fills_ = true;
  std::unique_ptr<std::byte[]> own_;
  comm::Communicator node_;  // ours, so that its errors return instead of ending the program
  MPI_Win window_ = MPI_WIN_NULL;
  int unwinding_ = 0;  // exceptions in flight at construction
};

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TOKEN_MEMORY_HPP_
