// Copies of a token file on nodes, which the shared file system delivers once.
#ifndef TRIREME_SRC_DATA_STAGE_HPP_
#define TRIREME_SRC_DATA_STAGE_HPP_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "positioned_file.hpp"
#include "trireme/comm/communicator.hpp"

namespace trireme::data {

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
std::unique_ptr<const PositionedFile> StageOnNodes(const StagingRequest& request,
                                                   TokenLayout& layout, StagedCopies& staged,
                                                   const std::function<void()>& after_round);

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_STAGE_HPP_
