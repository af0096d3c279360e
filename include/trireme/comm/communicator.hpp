// Communicator: a group of ranks. A thin, typed wrapper of one MPI communicator, or a group that
// exists only in a plan.
#pragma once

#include <mpi.h>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "trireme/base/dtype.hpp"
#include "trireme/base/error.hpp"

namespace trireme::comm {

class FlightRecorder;

class Communicator {
 public:
  Communicator() = default;                    // the null communicator
  static Communicator Adopt(MPI_Comm handle);  // does not free it (MPI_COMM_WORLD, MPI_COMM_SELF)
  // A group without MPI, for planning a layout. Rank, Size, IsRoot and IsPlanned answer, and
  // Together runs its body; every other call throws RunError.
  static Communicator Planned(int rank, int size);
  Communicator(Communicator&& other) noexcept;
  Communicator& operator=(Communicator&& other) noexcept;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator();

  int Rank() const { return rank_; }
  int Size() const { return size_; }
  bool IsRoot() const { return rank_ == 0; }
  bool IsPlanned() const { return planned_; }
  MPI_Comm Handle() const {
    if (planned_) RefusePlanned();
    return handle_;
  }

  // Collective. Ranks with the same colour form a group, ordered by key. name: what messages and
  // the records of hanging calls name the group.
  Communicator Split(int color, int key, const char* name = "part") const;
  Communicator SplitNode() const;  // the ranks that share this node's memory
  // Collective. A communicator of the same ranks, whose messages are separate from this one's.
  Communicator Duplicate() const;
  void Barrier() const;  // collective
  // Collective. A barrier for long waits: ranks sleep between tests instead of occupying their
  // cores.
  void QuietBarrier() const;

  // Collective reductions and broadcasts of small host data:
  double Sum(double value) const;
  std::int64_t Sum(std::int64_t value) const;
  double Max(double value) const;
  std::int64_t Max(std::int64_t value) const;
  std::int64_t Min(std::int64_t value) const;
  void Sum(std::vector<double>& values) const;  // element-wise, in place
  std::string Broadcast(const std::string& text, int root = 0) const;
  void Broadcast(void* data, std::int64_t bytes, int root = 0) const;  // may exceed 2 GiB
  // The text of the lowest rank whose text is not empty; "" if there is none.
  std::string FirstText(const std::string& text) const;
  std::vector<std::string> Gather(const std::string& text) const;  // [ranks], on every rank
  // All ranks' texts in one string, in rank order. counts: set to their lengths, [ranks], in bytes.
  std::string Gather(const std::string& text, std::vector<int>& counts) const;

  // Collective. Runs `body` on this rank, then agrees with all others: if it threw on any rank,
  // every rank throws an AgreedError with the message of the lowest failing rank, the list of
  // failing ranks (unless all failed) and the largest exit code. `body` must not call a collective
  // that another rank could miss by throwing before it. A group that was split from a larger one
  // throws a PartError instead, because its ranks alone cannot leave through MPI_Finalize.
  void Together(const std::function<void()>& body) const;

  // Collective. From now on the calls of this group, and of groups split from it, are recorded.
  // `recorder` must outlive them.
  void RecordWith(FlightRecorder& recorder, const std::string& name);
  FlightRecorder* Recorder() const { return recorder_; }  // null: calls are not recorded
  int RecordedAs() const { return group_; }               // this group's index in the recorder

 private:
  Communicator(MPI_Comm handle, bool owned);
  // A new group, which make(handle of this one, &handle of the new one) creates.
  template <typename Make>
  Communicator Part(const char* name, const Make& make) const;
  [[noreturn]] static void RefusePlanned();

  MPI_Comm handle_ = MPI_COMM_NULL;
  bool owned_ = false;
  bool part_ = false;     // smaller than the communicator it was split from
  bool planned_ = false;  // no MPI communicator behind it
  int rank_ = 0;
  int size_ = 1;
  FlightRecorder* recorder_ = nullptr;
  int group_ = -1;  // index in the recorder; -1: none
};

// An exception as it is reported: an Error's code and message, or kFailed for any other exception.
struct Failure {
  ExitCode code = ExitCode::kFailed;
  std::string message;
};
Failure CaughtFailure();  // of the exception that is being handled

// MPI's type for fp32 or fp64.
MPI_Datatype MpiType(Dtype type);

// Questions to all ranks, without gathering.

// Collective. Whether `mine` is true on all ranks.
inline bool TrueEverywhere(const Communicator& group, bool mine) {
  return group.Min(std::int64_t{mine ? 1 : 0}) == 1;
}
// Collective. Whether `mine` is the same on all ranks: each compares rank 0's text with its own.
inline bool SameEverywhere(const Communicator& group, const std::string& mine) {
  return TrueEverywhere(group, group.Broadcast(mine) == mine);
}

// Gathering lists.

// Collective. The items of all ranks in rank order, on every rank.
template <typename T>
std::vector<T> GatherAll(const Communicator& group, const std::vector<T>& mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  const std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(T));
  std::vector<int> counts;
  const std::string gathered = group.Gather(bytes, counts);
  std::vector<T> all(gathered.size() / sizeof(T));
  if (!all.empty()) std::memcpy(static_cast<void*>(all.data()), gathered.data(), gathered.size());
  return all;
}

// Long work that ranks do separately but end together: a failure on one rank soon ends it on all.

// A rank's work calls this every few tenths of a second. It leaves the work by an exception if
// another rank has failed; the work must not swallow it (it is not a std::exception).
using Poll = std::function<void()>;

// Collective. Communicator::Together for long work without collectives: runs `work` on this rank;
// once it has thrown on one rank, the others leave theirs by their second poll from then. Throws as
// Together does; a rank that left at a poll does not count as failed.
void WorkJointly(const Communicator& world, const std::function<void(const Poll&)>& work);

}  // namespace trireme::comm
