// Ledger: calls, bytes and seconds of every group and kind of transfer on this rank.
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

// Groups of ranks that transfer something.
enum class Group {
  kWorld,      // all ranks: agreements on a step
  kData,       // ranks of the data and context axes with the same elements of the same part
  kShard,      // ranks that hold the shards of one copy
  kContext,    // blocks of the same sequences
  kTensor,     // slices of the same layers
  kPipeline,   // stages
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
  // Bytes of the whole operand: all ranks' parts together in a reduce-scatter or all-gather; a
  // rank's parts for all ranks, itself included, in an all-to-all.
  std::int64_t payload = 0;
  // Bytes that a rank sends in a bandwidth-optimal algorithm, on average over the group (Thakur et
  // al. 2005); see Moved().
  double moved = 0;
  double seconds_waited = 0;  // the caller could do nothing else
  double seconds_hidden = 0;  // in flight while the caller computed
};

// Bytes moved, of a payload in a group of n: all-reduce 2 (n - 1) / n; reduce-scatter, all-gather,
// all-to-all and broadcast (n - 1) / n; send 1; receive 0 (the sender counts it).
double Moved(Transfer transfer, int group_size, std::int64_t payload);

// Exposed communication by group, whose sum is `exposed`, from seconds waited as ledgers have them
// and the other times of steps. Waits of the pipeline for another stage's result are the `bubble`;
// the agreement, which reaches from one step into the next, is what is left over: the world's.
using GroupSeconds = std::array<double, kGroups>;
GroupSeconds ExposedByGroup(GroupSeconds waited, double bubble, double exposed);

class Ledger {
 public:
  // Adds one transfer: when it starts, or, with its seconds, when it is complete.
  void Record(Group group, Transfer transfer, int group_size, std::int64_t payload,
              double waited = 0, double hidden = 0);
  // Adds seconds of a transfer that was recorded when it started.
  void AddSeconds(Group group, Transfer transfer, double waited, double hidden);
  // Adds seconds waited for transfers of this group that cannot be told apart.
  void AddWaited(Group group, double seconds);
  const Traffic& At(Group group, Transfer transfer) const;
  double SecondsWaited(Group group) const;  // over all kinds of transfer
  void Clear();
  void Add(const Ledger& other) { Add(other, 1); }  // adds all counts of another
  // Removes the counts of an earlier state of this ledger.
  void Subtract(const Ledger& other) { Add(other, -1); }

  // The timeline in which this rank's transfers, and the computation between them, are recorded
  // from now on; null: none. It stays with a Clear, and with the copies of this ledger.
  void TraceInto(device::Recorder* recorder) { trace_ = recorder; }
  device::Recorder* Trace() const { return trace_; }
  // Is told of transfers of planned groups from now on; null: nothing is. Stays likewise.
  void LogInto(device::WorkLog* log) { log_ = log; }
  device::WorkLog* Log() const { return log_; }

 private:
  void Add(const Ledger& other, int sign);
  std::array<std::array<Traffic, kTransfers>, kGroups> traffic_{};
  std::array<double, kGroups> waited_{};  // of no transfer in particular
  device::Recorder* trace_ = nullptr;
  device::WorkLog* log_ = nullptr;
};

// Counts: elements of a transfer that belong to each rank of a group.

// Part of `length` elements for rank `rank` of `ranks`, cut between grains only: as even as
// possible, the last grain short if it must be.
inline Part PartOfGrains(std::int64_t length, std::int64_t grain, int rank, int ranks) {
  const Part grains = PartOf(CeilDivide(length, grain), rank, ranks);
  return {std::min(length, grains.begin * grain), std::min(length, grains.end * grain)};
}

// A list, or a rule that needs no list. Passed by value.
class Counts {
 public:
  // counts[r] elements for rank r; the list, [ranks], must outlive this.
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
  std::int64_t length_ = 0, grain_ = 0;  // grain 0: the list counts
};

}  // namespace trireme::comm
