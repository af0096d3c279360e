// Copies of a token file on nodes, which the shared file system delivers once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "hdf5.hpp"
#include "token_arrays.hpp"
#include "token_layout.hpp"
#include "trireme/base/files.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/comm/shared_memory.hpp"

namespace trireme::data {

// The arrays of the splits that are kept in memory: in this rank's own copy, or in one window that
// all ranks of a node share.

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

// The collective reading of a token file's arrays into memory.

// Most bytes that all readers together read in one round: a fraction of a second, and an int for
// MPI's counts and displacements.
inline constexpr std::int64_t kRoundBytes = std::int64_t{1} << 28;

// Collective over `world`: fills `memory` with the splits that it keeps, and publishes it.
// after_round (may be empty) is called on all ranks after each round; an AgreedError of it ends the
// reading. Throws AgreedError for a file that cannot be read or has changed since it was inspected,
// and for the first bad element of an array.
void ReadArrays(const comm::Communicator& world, const std::string& path, const TokenLayout& layout,
                TokenMemory& memory, const std::function<void()>& after_round = {},
                std::int64_t round_bytes = kRoundBytes);

// Collective over `world`. bad: a bad element that this rank has found, at kNoElement for none. All
// throw an AgreedError for the first one of all ranks.
void AgreeOnBad(const comm::Communicator& world, const std::string& path, const TokenLayout& layout,
                const ArrayName& array, BadValue bad);

// A file of a node that has no name as soon as the ranks of the node have it open, so that the
// system frees it when the last of them is gone, however they end.

struct NodeFile {
  std::optional<Descriptor> filled;  // on the rank that fills it, and may read it: the node's first
  std::optional<Descriptor> read;    // on other ranks that read it
};

// Collective over `world`; `node`: ranks of a node. Makes an empty file in `folder` on each node
// with a rank that reads, opens it, and takes its name away. Only between these two a death by
// SIGKILL leaves a name, of an empty file: the next call removes it (RemoveLeftovers). Throws
// AgreedError.
NodeFile MakeNodeFile(const comm::Communicator& world, const comm::Communicator& node,
                      const std::string& folder, bool reads);

// Removes this user's empty node files that no process holds. Returns their number. Serial.
int RemoveLeftovers(const std::string& folder);

inline constexpr std::int64_t kChunkBytes = std::int64_t{1} << 22;  // of one read of the source
inline constexpr int kMostReaders = 8;  // nodes that read at the same time

// A token file to be staged, and where.
struct StagingRequest {
  const std::string& path;
  const Keeping& keeping;
  const comm::Communicator& world;
  const comm::Communicator& node;  // ranks of a node
  std::int64_t chunk_bytes = kChunkBytes;
};

// Collective. Copies the arrays of the splits that are kept to a file in keeping.folder on each
// node with a rank that reads, at the places that they have in the source, and returns the copy on
// those ranks, null on others. The nodes' first ranks read disjoint chunks, check their elements,
// and pass them on; each compares the hash of what it reads back from its copy with that of the
// chunk's reader, all nodes the hash of these hashes, and each reader the source's size and date
// with those at its opening. `layout` is made that of the copy: staged arrays have this machine's
// order of bytes. after_round: as of ReadArrays, called for each chunk or kMostReaders of them.
// Throws AgreedError: exit code 2 for a bad element and for a folder without room.
std::unique_ptr<const TokenArrays> StageOnNodes(const StagingRequest& request, TokenLayout& layout,
                                                StagedCopies& staged,
                                                const std::function<void()>& after_round);

}  // namespace trireme::data
