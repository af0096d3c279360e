// Ledger: calls, bytes and seconds of this rank, by group and kind of transfer.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include "trireme/base/partition.hpp"

namespace trireme::device {
class Recorder;
class WorkLog;
}  // namespace trireme::device

namespace trireme::comm {

// Groups of ranks between which tensors move.
enum class Group {
  kWorld,      // all ranks: they agree on each step
  kData,       // ranks of the data and context axes that hold the same elements
  kShard,      // ranks that together hold one copy of what is sharded
  kContext,    // ranks with blocks of the same sequences
  kTensor,     // ranks with slices of the same layers
  kPipeline,   // the stages
  kEmbedding,  // first and last stage, which share tied embeddings
  kKeyValue,   // tensor ranks with the same key/value head
  kReplica     // all stages and slices of one data replica
};
inline constexpr int kGroups = 9;
const char* NameOf(Group group);  // "data", "key/value" ...

enum class Transfer {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kBroadcast,
  kSend,
  kReceive
};
inline constexpr int kTransfers = 7;
const char* NameOf(Transfer transfer);  // "all-reduce" ...

struct Traffic {
  std::int64_t calls = 0;
  // Bytes of the whole operand. Reduce-scatter, all-gather: all ranks' parts together; all-to-all:
  // what one rank sends to all ranks, itself included.
  std::int64_t payload = 0;
  // Bytes that a rank sends with a bandwidth-optimal algorithm, averaged over the group (Thakur et
  // al. 2005); see Moved().
  double moved = 0;
  double seconds_waited = 0;  // while the caller could do nothing else
  double seconds_hidden = 0;  // in flight while the caller computed
};

// Bytes that a rank sends of `payload`, in a group of n: all-reduce 2 (n - 1) / n; reduce-scatter,
// all-gather, all-to-all and broadcast (n - 1) / n; send 1; receive 0 (the sender counts it).
double Moved(Transfer transfer, int group_size, std::int64_t payload);

// Divides `exposed`, the seconds of communication that no computation hid, among the groups.
// waited: the ledger's seconds, by group; bubble: seconds to subtract from the pipeline's. The
// remainder is the world's, since its agreement reaches from one step into the next.
using GroupSeconds = std::array<double, kGroups>;
GroupSeconds ExposedByGroup(GroupSeconds waited, double bubble, double exposed);

class Ledger {
 public:
  // Adds one transfer: without seconds when it starts, or with them when it is complete.
  void Record(Group group, Transfer transfer, int group_size, std::int64_t payload,
              double waited = 0, double hidden = 0);
  // Adds seconds of a transfer that was recorded when it started.
  void AddSeconds(Group group, Transfer transfer, double waited, double hidden);
  // Adds seconds waited for transfers of this group that cannot be attributed to one kind.
  void AddWaited(Group group, double seconds);
  const Traffic& At(Group group, Transfer transfer) const;
  double SecondsWaited(Group group) const;  // over all kinds of transfer
  void Clear();
  void Add(const Ledger& other) { Add(other, 1); }  // adds all counts of another
  // Subtracts the counts of an earlier state of this ledger.
  void Subtract(const Ledger& other) { Add(other, -1); }

  // Sets the timeline that records this rank's transfers and the computation between them from now
  // on; null: none. Clear keeps it, and copies of this ledger share it.
  void TraceInto(device::Recorder* recorder) { trace_ = recorder; }
  device::Recorder* Trace() const { return trace_; }
  // Sets the log of planned groups' transfers from now on; null: none. Kept like Trace().
  void LogInto(device::WorkLog* log) { log_ = log; }
  device::WorkLog* Log() const { return log_; }

 private:
  void Add(const Ledger& other, int sign);
  std::array<std::array<Traffic, kTransfers>, kGroups> traffic_{};
  std::array<double, kGroups> waited_{};  // not attributed to a kind of transfer
  device::Recorder* trace_ = nullptr;
  device::WorkLog* log_ = nullptr;
};

// Counts: how many elements of a transfer belong to each rank of a group.

// Rank `rank`'s part of `length` elements, cut at multiples of `grain` only. Parts are as even as
// possible; the last grain may be short.
inline Part PartOfGrains(std::int64_t length, std::int64_t grain, int rank, int ranks) {
  const Part grains = PartOf(CeilDivide(length, grain), rank, ranks);
  return {std::min(length, grains.begin * grain), std::min(length, grains.end * grain)};
}

// A list of counts, or a rule that computes them. Passed by value.
class Counts {
 public:
  // counts[r] elements for rank r; the list, [ranks], must outlive this object.
  template <std::convertible_to<std::span<const std::int64_t>> List>
  Counts(const List& counts)  // NOLINT(google-explicit-constructor): a list is counts
      : list_(counts) {}
  // `length` elements, cut by PartOfGrains.
  static Counts Cut(std::int64_t length, std::int64_t grain = 1) { return {length, grain}; }

  std::int64_t Of(int rank, int ranks) const {
    return grain_ == 0 ? list_[static_cast<std::size_t>(rank)]
                       : PartOfGrains(length_, grain_, rank, ranks).Size();
  }
  std::int64_t Largest(int ranks) const {
    std::int64_t largest = 0;
    for (int rank = 0; rank < ranks; ++rank) largest = std::max(largest, Of(rank, ranks));
    return largest;
  }
  bool Suit(int ranks) const { return grain_ > 0 || std::ssize(list_) == ranks; }
  std::size_t ListSize() const { return list_.size(); }

 private:
  Counts(std::int64_t length, std::int64_t grain) : length_(length), grain_(grain) {}
  std::span<const std::int64_t> list_;
  std::int64_t length_ = 0, grain_ = 0;  // grain 0: list_ holds the counts
};

}  // namespace trireme::comm
