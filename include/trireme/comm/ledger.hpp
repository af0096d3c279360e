// What was transferred: calls, bytes and seconds of every group and kind of transfer, on this rank.
#ifndef TRIREME_COMM_LEDGER_HPP_
#define TRIREME_COMM_LEDGER_HPP_

#include <array>
#include <cstdint>

namespace trireme::comm {

// Whose transfer. kWorld: agreements on a step; kData: ranks of the data and context axes that hold
// the same elements of the same part of the model; kShard: those that hold its shards; kContext:
// blocks of the same sequences; kReplica: all stages and slices of one data replica; kEmbedding:
// the first and the last stage, which share tied embeddings; kKeyValue: tensor ranks that hold the
// same key/value head.
enum class Group {
  kWorld,
  kData,
  kShard,
  kContext,
  kTensor,
  kPipeline,
  kEmbedding,
  kKeyValue,
  kReplica
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
  std::int64_t payload = 0;  // bytes of the whole operand: of all ranks' parts together in a
                             // reduce-scatter or all-gather; of what a rank has for all ranks,
                             // itself included, in an all-to-all
  double moved = 0;          // bytes that a rank sends in a bandwidth-optimal algorithm, on average
                             // over the group (Thakur et al. 2005); see Moved()
  double seconds_waited = 0;  // the caller could do nothing else
  double seconds_hidden = 0;  // in flight while the caller computed
};

// All-reduce 2 (n - 1) / n, reduce-scatter, all-gather, all-to-all and broadcast (n - 1) / n of the
// payload in a group of n; a send all of it, a receive nothing (its sender counts it).
double Moved(Transfer transfer, int group_size, std::int64_t payload);

class Ledger {
 public:
  void Record(Group group, Transfer transfer, int group_size, std::int64_t payload, double waited,
              double hidden);
  // What was waited in transfers of this group together, where none of them can be told apart.
  void AddWaited(Group group, double seconds);
  const Traffic& At(Group group, Transfer transfer) const;
  double SecondsWaited(Group group) const;  // over all kinds of transfer
  void Clear() { *this = {}; }
  void Add(const Ledger& other);       // what it has, once more
  void Subtract(const Ledger& other);  // what was here earlier, so that the rest came since

 private:
  std::array<std::array<Traffic, kTransfers>, kGroups> traffic_{};
  std::array<double, kGroups> waited_{};  // of no transfer in particular
};

}  // namespace trireme::comm

#endif  // TRIREME_COMM_LEDGER_HPP_
