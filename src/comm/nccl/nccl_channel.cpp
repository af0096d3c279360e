// NcclChannel: tickets, their events, and the response to a failure. Links are constructed in
// connect.cpp.
#include "nccl_channel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <thread>

#include "log.hpp"
#include "make_channel.hpp"
#include "operations.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/device/cuda/check.hpp"

namespace trireme::comm {

namespace nccl {

namespace {

// Limit of the wait for transfers and for the other ranks at the end of a channel.
constexpr double kPatience = 10;  // seconds

bool IsMessage(const Operation& operation) {
  return operation.transfer == Transfer::kSend || operation.transfer == Transfer::kReceive;
}

// Whether `done` came true in time.
template <typename Done>
bool Within(double seconds, Done&& done) {
  const double start = Seconds();
  while (!done()) {
    if (Seconds() - start > seconds) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace

std::unique_ptr<Channel> MakeChannel(const Communicator& group, const ChannelSetup& setup) {
  return std::make_unique<NcclChannel>(group, setup);
}

NcclChannel::NcclChannel(const Communicator& group, const ChannelSetup& setup)
    : group_(group.Duplicate()),
      name_(setup.group),
      stream_(setup.stream),
      exceptions_(std::uncaught_exceptions()) {
  KeepLog();
  ConnectCollectives(setup);
  NameLog(Name());
  ConnectEdges(setup);
  if (!edges_.empty()) NameLog(Name() + ", messages");
  RequireCrossing(setup);
}

NcclChannel::~NcclChannel() {
  try {
    const bool unwinding = std::uncaught_exceptions() > exceptions_;
    if (!failed_ && !unwinding && ComeToRest()) {
      collectives_->Destroy();
      for (const Edge& edge : edges_) edge.link->Destroy();
      return;
    }
  } catch (const std::exception&) {
    // A failure has been or will be reported at the wait for it.
  }
  if (!failed_) AwaitEnds(GiveUp());
}

// Whether all links of all ranks are idle: only then can a link's memory go without harm to others.
bool NcclChannel::ComeToRest() {
  const auto idle = [&] {
    return collectives_->Idle() &&
           std::all_of(edges_.begin(), edges_.end(), [](const Edge& e) { return e.link->Idle(); });
  };
  if (!Within(kPatience, idle)) return false;
  MPI_Request all = MPI_REQUEST_NULL;
  MPI_Ibarrier(group_.Handle(), &all);
  return Within(kPatience, [&] {
    int done = 0;
    MPI_Test(&all, &done, MPI_STATUS_IGNORE);
    return done != 0;
  });
}

std::string NcclChannel::Name() const { return fmt::format("{} group", NameOf(name_)); }

const Link& NcclChannel::LinkOf(const Operation& operation) const {
  if (!IsMessage(operation)) return *collectives_;
  const bool outgoing = operation.transfer == Transfer::kSend;
  for (const Edge& edge : edges_) {
    if (edge.peer == operation.peer && edge.tag == operation.tag && edge.outgoing == outgoing) {
      return *edge.link;
    }
  }
  throw RunError(
      fmt::format("NCCL, {}: no way for a {} of tag {} between ranks {} and {} of the group",
                  Name(), NameOf(operation.transfer), operation.tag, group_.Rank(), operation.peer),
      "This is a bug in Trireme.");
}

int NcclChannel::Start(const Operation& operation) {
  if (failed_) CheckHealth();
  const Link& link = LinkOf(operation);
  const int ticket = Take();
  Flight& flight = flights_[static_cast<std::size_t>(ticket)];
  flight.recorded = Capturing();
  flight.operand.Record(stream_.gpu->queue);
  FollowComputation(flight.operand, link.Queue());
  BeginTrace(operation, flight, link.Queue());
  if (!IsMessage(operation)) {
    QueueCollective(operation, link, place_);
  } else if (operation.transfer == Transfer::kSend) {
    QueueSend(operation, link);
  } else {
    QueueReceive(operation, link);
  }
  flight.arrived.Record(link.Queue());
  return ticket;
}

void NcclChannel::FollowComputation(const device::Event& operand, void* link_queue) const {
  operand.MakeWait(link_queue);
}

bool NcclChannel::Test(int ticket) {
  const Flight& flight = flights_[static_cast<std::size_t>(ticket)];
  // An event of a graph may not be asked, nor any other while one is recorded.
  if (flight.recorded || Capturing()) return false;
  return flight.arrived.Happened();
}

void NcclChannel::Wait(int ticket) {
  Flight& flight = flights_[static_cast<std::size_t>(ticket)];
  if (!flight.recorded) flight.stood.Record(stream_.gpu->queue);
  flight.arrived.MakeWait(stream_.gpu->queue);
  (flight.recorded ? idle_ : waited_).push_back(ticket);
}

int NcclChannel::Take() {
  if (idle_.empty() && !Capturing()) Settle();
  if (idle_.empty()) {
    Flight flight;
    flight.operand = device::Event(stream_);
    flight.arrived = device::Event(stream_, true);
    flight.stood = device::Event(stream_, true);
    flights_.push_back(std::move(flight));
    return static_cast<int>(flights_.size()) - 1;
  }
  const int ticket = idle_.back();
  idle_.pop_back();
  return ticket;
}

// Reads the times of those waits that the device has come past.
void NcclChannel::Settle() {
  std::size_t read = 0;
  for (; read < waited_.size(); ++read) {
    const Flight& flight = flights_[static_cast<std::size_t>(waited_[read])];
    if (!flight.stood.Happened() || !flight.arrived.Happened()) break;
    exposed_ += std::max(0.0, flight.arrived.SecondsSince(flight.stood));
    if (flight.traced && recorder_ != nullptr) Trace(flight);
    idle_.push_back(waited_[read]);
  }
  waited_.erase(waited_.begin(), waited_.begin() + static_cast<std::ptrdiff_t>(read));
}

double NcclChannel::TakeExposed() {
  if (!Capturing()) Settle();
  return std::exchange(exposed_, 0.0);
}

bool NcclChannel::Capturing() const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  device::cuda::Check(cudaStreamIsCapturing(device::cuda::Queue(stream_), &status),
                      "state of the computation's queue");
  return status != cudaStreamCaptureStatusNone;
}

void NcclChannel::CheckHealth() {
  BoundLog();
  std::string failure = collectives_->Failure();
  for (const Edge& edge : edges_) {
    if (failure.empty()) failure = edge.link->Failure();
  }
  if (failure.empty()) return;
  GiveUp();
  throw RunError(fmt::format("NCCL, {}: a transfer cannot end: {}", Name(), failure),
                 "A rank of this group stopped, or its network failed: the first message of the "
                 "other ranks says why. NCCL_DEBUG=WARN in the environment says more.");
}

std::vector<std::shared_future<void>> NcclChannel::GiveUp() noexcept {
  failed_ = true;
  std::vector<std::shared_future<void>> ends = {collectives_->Abort()};
  for (const Edge& edge : edges_) ends.push_back(edge.link->Abort());
  return ends;
}

}  // namespace nccl

}  // namespace trireme::comm
