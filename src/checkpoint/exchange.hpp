// Exchange: bytes of a file from the few processes that read it to the ranks that need them.
#ifndef TRIREME_SRC_CHECKPOINT_EXCHANGE_HPP_
#define TRIREME_SRC_CHECKPOINT_EXCHANGE_HPP_

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <memory>
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
// same places of the file form a set, whose first rank receives and then passes on. Messages move
// in rounds, between which ranks may agree to leave: then none is under way.
class Exchange {
 public:
  // Sent in seconds even from a slow disk.
  static constexpr std::int64_t kRoundBytes = std::int64_t{256} << 20;

  // Collective over `world`. targets: of this rank, in the order of their offsets, without
  // overlaps. Takes all memory, and starts the readers' threads, which begin to read. All must
  // outlive it. AgreedError if memory or a thread is missing. round_bytes: of a reader.
  Exchange(const comm::Communicator& world, const std::vector<Segment>& segments,
           const std::vector<Target>& targets, const ReadSegment& read,
           std::int64_t round_bytes = kRoundBytes);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  int Rounds() const { return static_cast<int>(rounds_.size()) - 1; }  // the same on every rank
  // Collective. Fills targets of the sets' first ranks with the round's bytes; all rounds follow
  // each other. A reader whose `read` has thrown sends anything, so that no rank waits for it.
  void Run(int round) noexcept;
  // Throws what `read` threw first on this rank.
  void Check() const;

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
  void ShareNeeds();
  void PlanRounds(std::int64_t round_bytes);
  // Calls body(cut) for the parts of a segment that a rank needs.
  template <typename Body>
  void EachCut(const Segment& segment, int rank, const Body& body) const;
  // Calls body(reader's world rank, cut) for what this rank receives in a round.
  template <typename Body>
  void EachReceive(std::size_t round, const Body& body) const;
  // Memory of this rank at a place of the file; null unless one target holds all the bytes.
  char* Here(std::int64_t offset, std::int64_t bytes) const;
  // Sends the parts of a segment, and copies this rank's own.
  void Deliver(const Segment& segment, const char* data, std::vector<MPI_Request>& sends) const;

  const comm::Communicator& world_;
  const std::vector<Segment>& segments_;
  const std::vector<Target>& targets_;
  comm::Communicator set_;               // ranks that need the same
  std::vector<std::vector<Cut>> needs_;  // [world ranks]: of the sets' first ranks, else empty
  std::vector<int> readers_;             // world ranks
  // First segments of the readers' rounds, and an end. [rounds + 1][readers]
  std::vector<std::vector<std::int64_t>> rounds_;
  std::vector<MPI_Request> receives_;  // of a round; has the room of the largest
  std::unique_ptr<Reader> reader_;     // on readers; its thread ends before the above do
};

}  // namespace trireme::checkpoint

#endif  // TRIREME_SRC_CHECKPOINT_EXCHANGE_HPP_
