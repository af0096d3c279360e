// Exchange: moves bytes of a file from the few processes that read it to the ranks that need them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "safetensors.hpp"
#include "trireme/comm/communicator.hpp"

namespace trireme::checkpoint {

// Memory of a rank and the range of the file that fills it.
struct Target {
  std::int64_t offset = 0;  // in the file
  std::int64_t bytes = 0;
  char* data = nullptr;
};

// Reads a segment into memory and checks it. Runs on a thread of its own and must not call MPI.
using ReadSegment = std::function<void(const Segment& segment, char* to)>;

// Collective. Divides rank 0's list of segments, which is ordered by offset and without holes, into
// runs of about equally many, one for a reading process of each node. Returns this rank's run;
// empty if it does not read.
std::vector<Segment> ShareSegments(const comm::Communicator& world,
                                   const std::vector<Segment>& all);

// One process of each node reads a share of the segments, each once. Ranks whose targets have the
// same file ranges form a set; its first rank receives the bytes and then passes them on. Messages
// move in rounds; between rounds none is under way, so ranks may agree to stop.
// A rank asks the readers that have what it needs, and they tell it which messages will carry it.
// Apart from 24 bytes per reader, nothing grows with the number of ranks.
class Exchange {
 public:
  // Bytes of a round per reader: it takes only seconds, even with a slow disk.
  static constexpr std::int64_t kRoundBytes = std::int64_t{256} << 20;

  // Collective over `world`. share: from ShareSegments. targets: this rank's, ordered by offset and
  // without overlaps. Allocates all memory and starts the readers' threads, which begin to read.
  // All arguments must outlive it. Throws AgreedError if memory or a thread is missing.
  // round_bytes: per reader.
  Exchange(const comm::Communicator& world, const std::vector<Segment>& share,
           const std::vector<Target>& targets, const ReadSegment& read,
           std::int64_t round_bytes = kRoundBytes);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  int Rounds() const { return rounds_count_; }  // the same on every rank
  // Collective. Fills the targets of the sets' first ranks with one round's bytes; call it for all
  // rounds in order. A reader whose `read` has thrown sends arbitrary bytes, so that no rank waits.
  void Run(int round) noexcept;
  // Waits for the segments that are read ahead; throws the first exception of `read` on this rank.
  void Check() const;

  // True on the first rank of a set.
  bool Receives() const { return set_.IsRoot(); }
  // Collective over each set. Sends memory of the set's first rank to the others; the pieces must
  // have the same sizes on all ranks of a set.
  void PassOn(const std::vector<Target>& memory) const;

 private:
  class Reader;
  // Part of a segment that a rank needs: a message, or a copy if the reader itself needs it.
  struct Cut {
    std::int64_t offset = 0, bytes = 0;  // in the file
    int round = 0;
    int rank = 0;  // on the reader: the rank that needs it; on that rank: the reader
  };
  void FindSet();
  std::vector<Cut> AskReaders() const;
  void PlanRounds(std::int64_t round_bytes);
  void CutSegments(const std::vector<Cut>& needs);
  // The cuts of one segment of this reader's share.
  std::span<const Cut> CutsOf(std::size_t segment) const;
  // This rank's memory for bytes of the file; null unless one target contains all of them.
  char* Here(std::int64_t offset, std::int64_t bytes) const;
  // Sends the cuts of one segment, and copies those that this rank itself needs.
  void Deliver(std::size_t segment, const char* data, std::vector<MPI_Request>& sends) const;

  const comm::Communicator& world_;
  const std::vector<Segment>& share_;
  const std::vector<Target>& targets_;
  comm::Communicator set_;  // ranks with the same file ranges
  int rounds_count_ = 0;
  // On readers. rounds_: [rounds], first segment of each; cuts_: ordered by segment and rank;
  // first_cuts_: [segments + 1], index of each segment's first cut.
  std::vector<std::int64_t> rounds_;
  std::vector<Cut> cuts_;
  std::vector<std::size_t> first_cuts_;
  std::vector<Cut> receives_;          // this rank's, ordered by round and reader
  std::vector<MPI_Request> requests_;  // of one round; reserved for the largest
  std::unique_ptr<Reader> reader_;     // on readers; its thread ends before the members above
};

// Small items from any rank to any rank, used where a third rank combines what two ranks know.

// Collective. Sends item i, of `bytes` bytes, to rank to[i]; returns the items for this rank,
// ordered by sender. No memory or message grows with the number of ranks.
std::vector<std::byte> DeliverBytes(const comm::Communicator& world, const std::vector<int>& to,
                                    const void* items, std::int64_t bytes);

template <typename Item>
std::vector<Item> Deliver(const comm::Communicator& world, const std::vector<int>& to,
                          const std::vector<Item>& items) {
  static_assert(std::is_trivially_copyable_v<Item>);
  const std::vector<std::byte> got =
      DeliverBytes(world, to, items.data(), static_cast<std::int64_t>(sizeof(Item)));
  std::vector<Item> result(got.size() / sizeof(Item));
  if (!got.empty()) std::memcpy(static_cast<void*>(result.data()), got.data(), got.size());
  return result;
}

}  // namespace trireme::checkpoint
