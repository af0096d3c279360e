// A group of ranks: the thin, typed face of one MPI communicator, or of a group that is only
// planned. Holds no policy.
#ifndef TRIREME_COMM_COMMUNICATOR_HPP_
#define TRIREME_COMM_COMMUNICATOR_HPP_

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <string>
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
  // A group split from this one.
  Communicator Part(MPI_Comm handle, const char* name) const;
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

// MPI's type of fp32 and fp64.
MPI_Datatype MpiType(Dtype type);

}  // namespace trireme::comm

#endif  // TRIREME_COMM_COMMUNICATOR_HPP_
