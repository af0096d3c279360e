// Exchange: bytes of a file from the few processes that read it to the ranks that need them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "safetensors.hpp"
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

// Collective. Segments [0, n) of rank 0's list, in the order of their offsets without holes, given
// out in runs of about equal numbers to one process of each node. Returns this rank's; of a rank
// that reads nothing, none.
std::vector<Segment> ShareSegments(const comm::Communicator& world,
                                   const std::vector<Segment>& all);

// One process of each node reads a share of the segments, each once. Ranks whose targets are the
// same places of the file form a set, whose first rank receives and then passes on. Messages move
// in rounds, between which ranks may agree to leave: then none is under way.
// A rank asks the readers that have what it needs, and hears from them in which messages it comes:
// beside 24 bytes for each reader, nothing grows with the number of ranks.
class Exchange {
 public:
  // Sent in seconds even from a slow disk.
  static constexpr std::int64_t kRoundBytes = std::int64_t{256} << 20;

  // Collective over `world`. share: of ShareSegments. targets: of this rank, in the order of their
  // offsets, without overlaps. Takes all memory, and starts the readers' threads, which begin to
  // read. All must outlive it. AgreedError if memory or a thread is missing. round_bytes: of a
  // reader.
  Exchange(const comm::Communicator& world, const std::vector<Segment>& share,
           const std::vector<Target>& targets, const ReadSegment& read,
           std::int64_t round_bytes = kRoundBytes);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  int Rounds() const { return rounds_count_; }  // the same on every rank
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
  // Part of a segment that a rank needs: a message, or a copy on the reader itself.
  struct Cut {
    std::int64_t offset = 0, bytes = 0;  // in the file
    int round = 0;
    int rank = 0;  // on the reader: of the one that needs it; there: of the reader
  };
  void FindSet();
  std::vector<Cut> AskReaders() const;
  void PlanRounds(std::int64_t round_bytes);
  void CutSegments(const std::vector<Cut>& needs);
  // The cuts of a segment of the share, on its reader.
  std::span<const Cut> CutsOf(std::size_t segment) const;
  // Memory of this rank at a place of the file; null unless one target holds all the bytes.
  char* Here(std::int64_t offset, std::int64_t bytes) const;
  // Sends the parts of a segment of the share, and copies this rank's own.
  void Deliver(std::size_t segment, const char* data, std::vector<MPI_Request>& sends) const;

  const comm::Communicator& world_;
  const std::vector<Segment>& share_;
  const std::vector<Target>& targets_;
  comm::Communicator set_;  // ranks that need the same
  int rounds_count_ = 0;
  // On readers: the first segments of the rounds, [rounds], and all cuts in the order of segments
  // and ranks, with the first of each segment and an end, [segments + 1].
  std::vector<std::int64_t> rounds_;
  std::vector<Cut> cuts_;
  std::vector<std::size_t> first_cuts_;
  std::vector<Cut> receives_;          // of this rank, in the order of rounds and readers
  std::vector<MPI_Request> requests_;  // of a round; has the room of the largest
  std::unique_ptr<Reader> reader_;     // on readers; its thread ends before the above do
};

// Small items from any rank to any rank, for meetings of what two ranks know at a third one.

// Collective. Sends item i of `bytes` bytes to rank to[i]; returns those for this rank, in the
// order of their senders. Nothing grows with the number of ranks.
std::vector<std::byte> DeliverBytes(const comm::Communicator& world, const std::vector<int>& to,
                                    const void* items, std::int64_t bytes);

template <typename Item>
std::vector<Item> Deliver(const comm::Communicator& world, const std::vector<int>& to,
                          const std::vector<Item>& items) {
  static_assert(std::is_trivially_copyable_v<Item>);
  const std::vector<std::byte> got =
      DeliverBytes(world, to, items.data(), static_cast<std::int64_t>(sizeof(Item)));
  std::vector<Item> result(got.size() / sizeof(Item));
  auto* const out = reinterpret_cast<std::byte*>(result.data());
  for (std::size_t i = 0; i < got.size(); ++i) out[i] = got[i];
  return result;
}

}  // namespace trireme::checkpoint
