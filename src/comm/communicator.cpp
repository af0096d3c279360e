// Communicator: lifetime of the MPI handle, splits, small reductions and broadcasts, and the
// agreement of ranks on a failure.
#include "trireme/comm/communicator.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <limits>
#include <new>
#include <thread>
#include <utility>

#include "trireme/comm/flight_recorder.hpp"
#include "trireme/comm/hosts.hpp"

namespace trireme::comm {

namespace {

// MPI counts are ints: longer messages are split into pieces of this many elements.
constexpr std::int64_t kPiece = std::int64_t{1} << 30;

template <typename T>
T Reduce(T value, MPI_Op operation, const Communicator& group, Call call = Call::kAllReduce) {
  const MPI_Datatype type = std::is_same_v<T, double> ? MPI_DOUBLE : MPI_INT64_T;
  const MPI_Comm handle = group.Handle();
  const Recorded recorded(group, call, static_cast<std::int64_t>(sizeof value));
  T result{};
  MPI_Allreduce(&value, &result, 1, type, operation, handle);
  return result;
}

// WorkJointly: rounds of a non-blocking reduction. Every rank takes part in the same rounds until
// one of them says that a rank failed or that all are done.

constexpr std::chrono::milliseconds kWait{2};  // between two looks of a rank that is done

// Thrown by a poll when another rank's work has failed.
struct OtherFailed {};

class Rounds {
 public:
  explicit Rounds(MPI_Comm ranks) : ranks_(ranks) { Begin(); }

  // True if any rank's work has failed. Does not block.
  bool Look() {
    int done = 0;
    if (!ended_) MPI_Test(&request_, &done, MPI_STATUS_IGNORE);
    if (done != 0) Next();
    return failed_;
  }
  // Reports that this rank's work has ended; waits until all have ended or one has failed.
  void End(bool failed) {
    own_ = {failed ? 1 : 0, 0};
    while (!ended_) {
      Look();
      if (!ended_) std::this_thread::sleep_for(kWait);
    }
  }

 private:
  void Begin() {
    sent_ = own_;
    MPI_Iallreduce(sent_.data(), all_.data(), static_cast<int>(all_.size()), MPI_INT, MPI_MAX,
                   ranks_, &request_);
  }
  void Next() {
    failed_ = all_[0] != 0;
    ended_ = failed_ || all_[1] == 0;
    if (!ended_) Begin();
  }

  MPI_Comm ranks_;
  MPI_Request request_ = MPI_REQUEST_NULL;
  std::array<int, 2> own_{0, 1};   // {failed, still at work}, of this rank
  std::array<int, 2> sent_{0, 1};  // what this rank sent in the current round
  std::array<int, 2> all_{0, 1};   // maxima over all ranks
  bool failed_ = false;            // on any rank
  bool ended_ = false;             // on every rank; no round is under way
};

}  // namespace

Communicator::Communicator(MPI_Comm handle, bool owned) : handle_(handle), owned_(owned) {
  if (handle_ == MPI_COMM_NULL) return;
  MPI_Comm_rank(handle_, &rank_);
  MPI_Comm_size(handle_, &size_);
}

Communicator Communicator::Adopt(MPI_Comm handle) { return Communicator(handle, false); }

Communicator Communicator::Planned(int rank, int size) {
  Communicator planned;
  planned.planned_ = true;
  planned.rank_ = rank;
  planned.size_ = size;
  return planned;
}

void Communicator::RefusePlanned() {
  throw RunError("a call of MPI in a group that is only planned", "This is a bug in Trireme.");
}

Communicator::Communicator(Communicator&& other) noexcept { *this = std::move(other); }

Communicator& Communicator::operator=(Communicator&& other) noexcept {
  // `other` takes over the handle that was here, and its destructor frees it.
  std::swap(handle_, other.handle_);
  std::swap(owned_, other.owned_);
  std::swap(part_, other.part_);
  std::swap(planned_, other.planned_);
  std::swap(rank_, other.rank_);
  std::swap(size_, other.size_);
  std::swap(recorder_, other.recorder_);
  std::swap(group_, other.group_);
  return *this;
}

Communicator::~Communicator() {
  if (!owned_ || handle_ == MPI_COMM_NULL) return;
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0) return;
  if (recorder_ != nullptr) recorder_->RemoveGroup(group_);
  MPI_Comm_free(&handle_);
}

template <typename Make>
Communicator Communicator::Part(const char* name, const Make& make) const {
  MPI_Comm handle = MPI_COMM_NULL;
  const MPI_Comm whole = Handle();
  const Recorded recorded(*this, Call::kSplit);
  make(whole, &handle);
  Communicator result(handle, true);
  result.part_ = part_ || result.size_ < size_;
  if (recorder_ != nullptr) result.RecordWith(*recorder_, name);
  return result;
}

void Communicator::RecordWith(FlightRecorder& recorder, const std::string& name) {
  std::uint64_t id = rank_ == 0 ? recorder.NewGroupId() : 0;
  MPI_Bcast(&id, 1, MPI_UINT64_T, 0, Handle());
  recorder_ = &recorder;
  group_ = recorder.AddGroup(name, id, rank_, size_);
}

Communicator Communicator::Split(int color, int key, const char* name) const {
  return Part(name,
              [&](MPI_Comm whole, MPI_Comm* part) { MPI_Comm_split(whole, color, key, part); });
}

Communicator Communicator::SplitNode() const {
  return Part("node", [&](MPI_Comm whole, MPI_Comm* part) {
    MPI_Comm_split_type(whole, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, part);
  });
}

Communicator Communicator::Duplicate() const { return Part("copy", MPI_Comm_dup); }

void Communicator::Barrier() const {
  const MPI_Comm handle = Handle();
  const Recorded recorded(*this, Call::kBarrier);
  MPI_Barrier(handle);
}

void Communicator::QuietBarrier() const {
  constexpr std::chrono::milliseconds kPause(1);
  const MPI_Comm handle = Handle();
  const Recorded recorded(*this, Call::kBarrier);
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Ibarrier(handle, &request);
  while (true) {
    int done = 0;
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done != 0) return;
    std::this_thread::sleep_for(kPause);
  }
}

double Communicator::Sum(double value) const { return Reduce(value, MPI_SUM, *this); }
std::int64_t Communicator::Sum(std::int64_t value) const { return Reduce(value, MPI_SUM, *this); }
double Communicator::Max(double value) const { return Reduce(value, MPI_MAX, *this); }
std::int64_t Communicator::Max(std::int64_t value) const { return Reduce(value, MPI_MAX, *this); }
std::int64_t Communicator::Min(std::int64_t value) const { return Reduce(value, MPI_MIN, *this); }

void Communicator::Sum(std::vector<double>& values) const {
  const auto count = static_cast<std::int64_t>(values.size());
  const Recorded recorded(*this, Call::kAllReduce,
                          count * static_cast<std::int64_t>(sizeof(double)));
  for (std::int64_t begin = 0; begin < count; begin += kPiece) {
    const int piece = static_cast<int>(std::min(kPiece, count - begin));
    MPI_Allreduce(MPI_IN_PLACE, values.data() + begin, piece, MPI_DOUBLE, MPI_SUM, Handle());
  }
}

void Communicator::Broadcast(void* data, std::int64_t bytes, int root) const {
  const Recorded recorded(*this, Call::kBroadcast, bytes);
  for (std::int64_t begin = 0; begin < bytes; begin += kPiece) {
    const int piece = static_cast<int>(std::min(kPiece, bytes - begin));
    MPI_Bcast(static_cast<char*>(data) + begin, piece, MPI_BYTE, root, Handle());
  }
}

std::string Communicator::Broadcast(const std::string& text, int root) const {
  std::int64_t bytes = rank_ == root ? static_cast<std::int64_t>(text.size()) : 0;
  Broadcast(&bytes, static_cast<std::int64_t>(sizeof bytes), root);
  std::string result = rank_ == root ? text : std::string(static_cast<std::size_t>(bytes), '\0');
  Broadcast(result.data(), bytes, root);
  return result;
}

std::string Communicator::FirstText(const std::string& text) const {
  const std::int64_t first = Min(std::int64_t{text.empty() ? size_ : rank_});
  return first == size_ ? std::string() : Broadcast(text, static_cast<int>(first));
}

std::string Communicator::Gather(const std::string& text, std::vector<int>& counts) const {
  const auto ranks = static_cast<std::size_t>(size_);
  const auto own_bytes = static_cast<std::int64_t>(text.size());
  std::vector<std::int64_t> bytes(ranks);
  const MPI_Comm handle = Handle();
  const Recorded recorded(*this, Call::kAllGather);
  MPI_Allgather(&own_bytes, 1, MPI_INT64_T, bytes.data(), 1, MPI_INT64_T, handle);

  counts.resize(ranks);
  std::vector<int> starts(ranks);
  std::int64_t total = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    starts[rank] = static_cast<int>(total);
    counts[rank] = static_cast<int>(bytes[rank]);
    total += bytes[rank];
    // Every rank sees the same lengths, so all ranks throw or none does.
    if (total > std::numeric_limits<int>::max()) {
      throw RunError("Communicator::Gather: the texts of all ranks together exceed 2 GiB");
    }
  }
  std::string all(static_cast<std::size_t>(total), '\0');
  MPI_Allgatherv(text.data(), counts[static_cast<std::size_t>(rank_)], MPI_CHAR, all.data(),
                 counts.data(), starts.data(), MPI_CHAR, handle);
  return all;
}

std::vector<std::string> Communicator::Gather(const std::string& text) const {
  std::vector<int> counts;
  const std::string all = Gather(text, counts);
  std::vector<std::string> result;
  result.reserve(counts.size());
  std::size_t start = 0;
  for (const int count : counts) {
    result.push_back(all.substr(start, static_cast<std::size_t>(count)));
    start += static_cast<std::size_t>(count);
  }
  return result;
}

MPI_Datatype MpiType(Dtype type) { return type == Dtype::kFloat64 ? MPI_DOUBLE : MPI_FLOAT; }

// Communicator::Together: ranks agree whether any of them failed, and leave with one message.

Failure CaughtFailure() {
  try {
    throw;
  } catch (const Error& error) {
    return {error.Code(), error.what()};
  } catch (const std::bad_alloc&) {
    return {ExitCode::kFailed,
            "out of memory\n  " +
                MemoryAdvice("Use more ranks or nodes, or smaller sizes in the deck.")};
  } catch (const std::exception& error) {
    return {ExitCode::kFailed, error.what()};
  } catch (...) {
    return {ExitCode::kFailed, "an exception of unknown type"};
  }
}

void Communicator::Together(const std::function<void()>& body) const {
  if (planned_) return body();
  std::int64_t own_code = 0;  // 0: this rank's body returned
  std::string own_message;
  try {
    body();
  } catch (...) {
    const Failure failure = CaughtFailure();
    // Any exception is at least a failed run, even one with code 0, which would mean success.
    own_code = std::max(static_cast<std::int64_t>(failure.code), std::int64_t{1});
    own_message = failure.message;
  }
  const std::int64_t code = Reduce(own_code, MPI_MAX, *this, Call::kAgreement);  // the largest
  if (code == 0) return;

  // The failing ranks, in ascending order.
  const auto ranks = GatherAll(*this, own_code != 0 ? std::vector<int>{rank_} : std::vector<int>{});
  std::string message = Broadcast(own_message, ranks.front());
  if (static_cast<int>(ranks.size()) < size_) {
    message += fmt::format("\n  (on {})", ListRanks(ranks, size_));
  }
  if (part_) throw PartError(static_cast<ExitCode>(code), message, size_);
  throw AgreedError(static_cast<ExitCode>(code), message);
}

void WorkJointly(const Communicator& world, const std::function<void(const Poll&)>& work) {
  const Communicator ranks = world.Duplicate();  // keeps rounds apart from other messages
  world.Together([&] {
    Rounds rounds(ranks.Handle());
    std::exception_ptr fault;
    try {
      work([&rounds] {
        if (rounds.Look()) throw OtherFailed();
      });
    } catch (const OtherFailed&) {
      fault = nullptr;
    } catch (...) {
      fault = std::current_exception();
    }
    rounds.End(fault != nullptr);
    if (fault) std::rethrow_exception(fault);
  });
}

}  // namespace trireme::comm
