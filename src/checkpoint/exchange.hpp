// Exchange: bytes of a file from the few processes that read it to the ranks that need them.
#ifndef TRIREME_SRC_CHECKPOINT_EXCHANGE_HPP_
#define TRIREME_SRC_CHECKPOINT_EXCHANGE_HPP_

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "checksums.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/comm/communicator.hpp"

namespace trireme::checkpoint {

// Memory of a rank, and the place in the file that it is filled from.
struct Target {
  std::int64_t offset = 0;  // in the file
  std::int64_t bytes = 0;
  char* data = nullptr;
};

// Brings a segment into memory and checks it. Called on a thread of its own: no MPI.
using ReadSegment = std::function<void(const Segment& segment, char* to)>;

// One process of each node reads a share of the segments, each once. Ranks whose targets are the
// same places of the file form a set, whose first rank receives and then passes on.
class Exchange {
 public:
  // Collective over `world`. targets: of this rank, in the order of their offsets, without
  // overlaps. All must outlive it.
  Exchange(const comm::Communicator& world, const std::vector<Segment>& segments,
           const std::vector<Target>& targets);

  // Fills the targets of the sets' first ranks. On every rank, within one Together; `read` is
  // called on readers only. After it has thrown, this rank still sends (anything), so that no other
  // waits for it, and throws the same at the end.
  void Run(const ReadSegment& read) const;

  // True on the first rank of a set.
  bool Receives() const { return set_.IsRoot(); }
  // Collective over each set. Sends memory of the first rank to the others: pieces of the same
  // sizes on all ranks of a set.
  void PassOn(const std::vector<Target>& memory) const;

 private:
  class Reader;
  // Part of a segment that a rank needs.
  struct Cut {
    std::int64_t offset = 0, bytes = 0;  // in the file
  };
  std::vector<Cut> CutsOf(const Segment& segment, int rank) const;
  // Memory of this rank at a place of the file; null unless one target holds all the bytes.
  char* Here(std::int64_t offset, std::int64_t bytes) const;
  void PostReceives(std::vector<MPI_Request>& requests) const;
  // Sends the parts of a segment, and copies this rank's own.
  void Deliver(const Segment& segment, const char* data, std::vector<MPI_Request>& sends) const;
  Part ShareOf(std::size_t reader) const;  // of the segments

  const comm::Communicator& world_;
  const std::vector<Segment>& segments_;
  const std::vector<Target>& targets_;
  comm::Communicator set_;               // ranks that need the same
  std::vector<std::vector<Cut>> needs_;  // [world ranks]: of the sets' first ranks, else empty
  std::vector<int> readers_;             // world ranks
};

}  // namespace trireme::checkpoint

#endif  // TRIREME_SRC_CHECKPOINT_EXCHANGE_HPP_
