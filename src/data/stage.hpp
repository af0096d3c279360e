// Brings a token file's arrays into memory or onto nodes; the shared file system delivers them
// once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "token_arrays.hpp"
#include "token_layout.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/comm/shared_memory.hpp"

namespace trireme::data {

// Bytes of a split's arrays in memory.
std::int64_t BytesInMemory(const TokenLayout& layout, Split split);

class TokenMemory {
 public:
  // Allocates the memory; nothing for streamed files. Collective over `world`; node: the ranks of
  // this node.
  TokenMemory(const comm::Communicator& world, const comm::Communicator& node,
              const TokenLayout& layout, const Keeping& keeping);

  // Whether this rank fills its copy: every rank does or, with shared memory, the first of each
  // node.
  bool Fills() const { return fills_; }
  // Makes the filling rank's writes visible to its node. Collective over the node.
  void Publish();

  const std::array<bool, 3>& Kept() const { return keeps_; }  // by Split
  bool Keeps(Split split) const { return keeps_.at(static_cast<std::size_t>(split)); }
  // First element of an array (StoredArray::width bytes each); null if the file has no such array.
  void* At(Split split, Array array) const {
    return bases_.at(static_cast<std::size_t>(split)).at(static_cast<std::size_t>(array));
  }
  std::int64_t Bytes() const { return bytes_; }  // size of the copy, all kept splits together

 private:
  void* AllocateShared(const comm::Communicator& world);

  std::int64_t bytes_ = 0;
  std::array<bool, 3> keeps_{};                  // by Split
  std::array<std::array<void*, 3>, 3> bases_{};  // by Split, by Array
  bool fills_ = true;
  std::unique_ptr<std::byte[]> own_;
  const comm::Communicator& node_;
  std::optional<comm::SharedMemory> shared_;
};

// Upper limit of the bytes that all readers together read in one round: takes a fraction of a
// second, and fits an int, as MPI's counts and displacements must.
inline constexpr std::int64_t kRoundBytes = std::int64_t{1} << 28;

// Fills `memory` with the splits that it keeps, and publishes it. after_round (may be empty):
// called on all ranks after each round; an AgreedError thrown there ends the reading. Collective
// over `world`. Throws AgreedError for a file that cannot be read or has changed since it was
// inspected, and for the first bad element of an array.
void ReadArrays(const comm::Communicator& world, const std::string& path, const TokenLayout& layout,
                TokenMemory& memory, const std::function<void()>& after_round = {},
                std::int64_t round_bytes = kRoundBytes);

// Removes empty files of this user that killed jobs left in `folder`; returns how many. Serial.
int RemoveLeftovers(const std::string& folder);

inline constexpr std::int64_t kChunkBytes = std::int64_t{1} << 22;  // bytes per read of the source
inline constexpr int kMostReaders = 8;                              // nodes that read at a time

// A token file to be staged, and where.
struct StagingRequest {
  const std::string& path;
  const Keeping& keeping;
  const comm::Communicator& world;
  const comm::Communicator& node;  // the ranks of this node
  std::int64_t chunk_bytes = kChunkBytes;
};

// Copies the arrays of the kept splits to a file in keeping.folder on each node that has a reading
// rank, at the offsets that they have in the source. Returns the open copy on reading ranks, null
// on others. The nodes' first ranks read disjoint chunks, check their elements and broadcast them.
// Each node compares the hash of the chunk read back from its copy with the reader's hash; at the
// end all nodes compare the hash of their hashes, and the readers check that the source has its old
// size and date. `layout` then describes the copy, which has this machine's byte order.
// after_round: as in ReadArrays, after each round of up to kMostReaders chunks. Collective. Throws
// AgreedError, with exit code 2 for a bad element and for a folder without room.
std::unique_ptr<const TokenArrays> StageOnNodes(const StagingRequest& request, TokenLayout& layout,
                                                StagedCopies& staged,
                                                const std::function<void()>& after_round);

}  // namespace trireme::data
