// A group of ranks: the thin, typed face of one MPI communicator, or of a group that is only
// planned. Holds no policy.
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
  // A group that exists on paper, for planning a layout without MPI. Rank, Size, IsRoot and
  // IsPlanned answer, Together runs its body here; every other call throws RunError.
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

  // Collective. Ranks of one colour form a group, ordered by key. name: for messages, in the
  // records of calls that hang.
  Communicator Split(int color, int key, const char* name = "part") const;
  Communicator SplitNode() const;  // the ranks that share this node's memory
  // Collective. A communicator of the same ranks, whose messages meet no others.
  Communicator Duplicate() const;
  void Barrier() const;  // collective
  // Collective. A barrier for ranks that may wait long: they sleep, and leave their cores to
  // others.
  void QuietBarrier() const;

  // Collective reductions and broadcasts of small host data.
  double Sum(double value) const;
  std::int64_t Sum(std::int64_t value) const;
  double Max(double value) const;
  std::int64_t Max(std::int64_t value) const;
  std::int64_t Min(std::int64_t value) const;
  void Sum(std::vector<double>& values) const;  // element-wise, in place
  std::string Broadcast(const std::string& text, int root = 0) const;
  void Broadcast(void* data, std::int64_t bytes, int root = 0) const;  // may exceed 2 GiB
  std::vector<std::string> Gather(const std::string& text) const;      // [ranks], on every rank
  // The texts of all ranks one after the other. counts: [ranks], their lengths, in bytes.
  std::string Gather(const std::string& text, std::vector<int>& counts) const;

  // Collective. Runs `body` on this rank, then agrees with all others: if it threw on any rank,
  // every rank throws an AgreedError with the lowest failing rank's message (and the list of
  // failing ranks, unless all failed) and the largest exit code. `body` must not call a collective
  // that another rank could miss by throwing before it. A group that Split cut out of a larger one
  // throws a PartError instead: its ranks alone cannot leave through MPI_Finalize.
  void Together(const std::function<void()>& body) const;

  // Collective. From now on calls of this group and of those made from it are recorded; `recorder`
  // must outlive them.
  void RecordWith(FlightRecorder& recorder, const std::string& name);
  FlightRecorder* Recorder() const { return recorder_; }  // null: calls are not recorded
  int RecordedAs() const { return group_; }               // the recorder's place of this group

 private:
  Communicator(MPI_Comm handle, bool owned);
  // A group cut out of this one by make(whole, &part).
  template <typename Make>
  Communicator Part(const char* name, const Make& make) const;
  std::int64_t Agree(std::int64_t code) const;
  [[noreturn]] static void RefusePlanned();

  MPI_Comm handle_ = MPI_COMM_NULL;
  bool owned_ = false;
  bool part_ = false;     // smaller than the communicator it was split from
  bool planned_ = false;  // no MPI behind it
  int rank_ = 0;
  int size_ = 1;
  FlightRecorder* recorder_ = nullptr;
  int group_ = -1;  // of the recorder's
};

// An exception as it is told: an Error's code and message, or a failed run.
struct Failure {
  ExitCode code = ExitCode::kFailed;
  std::string message;
};
Failure CaughtFailure();  // of the exception that the caller handles

// MPI's type of fp32 and fp64.
MPI_Datatype MpiType(Dtype type);

// Question whether all ranks have the same text, without gathering the texts.

// Collective. A broadcast of rank 0's text, and a reduction of one number.
inline bool SameEverywhere(const Communicator& group, const std::string& mine) {
  const bool same = group.Broadcast(mine) == mine;
  return group.Min(std::int64_t{same ? 1 : 0}) == 1;
}

// Lists of all ranks of a group, on every rank.

// Collective. The items of all ranks, in the order of the ranks.
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

// Work that ranks do apart and end together: a fault on one rank ends it on all within a poll.

// Called by a rank's work every few tenths of a second; leaves the work if another rank's failed,
// by an exception that is no std::exception and must not be kept.
using Poll = std::function<void()>;

// Collective. Communicator::Together for long work without collectives: `work` runs on this rank,
// and once it has thrown on one rank, the others leave theirs at the next poll but one. Errors are
// those of Together; a rank that left at a poll counts as one that did not fail.
void WorkJointly(const Communicator& world, const std::function<void(const Poll&)>& work);

}  // namespace trireme::comm
