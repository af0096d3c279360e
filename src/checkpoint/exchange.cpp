// Exchange: who needs what, and the messages from readers to the first ranks of sets.
#include "exchange.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <exception>
#include <iterator>
#include <thread>

#include "trireme/base/error.hpp"
#include "trireme/comm/flight_recorder.hpp"
#include "worker.hpp"

namespace trireme::checkpoint {

namespace {

constexpr int kTag = 16;  // of all messages: they arrive in the order of the segments

void WaitFor(std::vector<MPI_Request>& requests) {
  if (requests.empty()) return;
  MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
  requests.clear();
}

}  // namespace

Exchange::Exchange(const comm::Communicator& world, const std::vector<Segment>& segments,
                   const std::vector<Target>& targets)
    : world_(world), segments_(segments), targets_(targets) {
  std::string mine;
  for (const Target& target : targets) {
    if (target.bytes == 0) continue;
    const Cut need{target.offset, target.bytes};
    mine.append(reinterpret_cast<const char*>(&need), sizeof need);
  }
  const std::string hash = std::to_string(Hash(mine.data(), std::ssize(mine)));
  const std::vector<std::string> hashes = world.Gather(hash);
  const auto first = std::find(hashes.begin(), hashes.end(), hash) - hashes.begin();
  set_ = world.Split(static_cast<int>(first), world.Rank(), "same bytes");
  const std::string of_first = set_.Broadcast(mine);
  world.Together([&] {
    if (of_first == mine) return;
    throw RunError("checkpoint: two different needs of bytes have one hash",
                   "This is a bug in Trireme.");
  });
  for (const std::string& text : world.Gather(set_.IsRoot() ? mine : std::string())) {
    std::vector<Cut>& needs = needs_.emplace_back(text.size() / sizeof(Cut));
    if (!needs.empty()) std::memcpy(needs.data(), text.data(), text.size());
  }
  const bool reads = world.SplitNode().IsRoot();
  const std::vector<std::string> flags = world.Gather(reads ? "r" : "");
  for (std::size_t rank = 0; rank < flags.size(); ++rank) {
    if (!flags[rank].empty()) readers_.push_back(static_cast<int>(rank));
  }
}

std::vector<Exchange::Cut> Exchange::CutsOf(const Segment& segment, int rank) const {
  const std::vector<Cut>& needs = needs_[static_cast<std::size_t>(rank)];
  const std::int64_t end = segment.offset + segment.length;
  auto need = std::upper_bound(
      needs.begin(), needs.end(), segment.offset,
      [](std::int64_t offset, const Cut& each) { return offset < each.offset + each.bytes; });
  std::vector<Cut> cuts;
  for (; need != needs.end() && need->offset < end; ++need) {
    const std::int64_t from = std::max(segment.offset, need->offset);
    cuts.push_back({from, std::min(end, need->offset + need->bytes) - from});
  }
  return cuts;
}

char* Exchange::Here(std::int64_t offset, std::int64_t bytes) const {
  if (!Receives()) return nullptr;
  const auto target = std::upper_bound(
      targets_.begin(), targets_.end(), offset,
      [](std::int64_t at, const Target& each) { return at < each.offset + each.bytes; });
  const bool whole = target != targets_.end() && target->offset <= offset &&
                     offset + bytes <= target->offset + target->bytes;
  return whole ? target->data + (offset - target->offset) : nullptr;
}

Part Exchange::ShareOf(std::size_t reader) const {
  return PartOf(std::ssize(segments_), static_cast<int>(reader), static_cast<int>(readers_.size()));
}

void Exchange::PostReceives(std::vector<MPI_Request>& requests) const {
  for (std::size_t reader = 0; reader < readers_.size(); ++reader) {
    if (readers_[reader] == world_.Rank()) continue;
    const Part share = ShareOf(reader);
    for (std::int64_t i = share.begin; i < share.end; ++i) {
      for (const Cut& cut : CutsOf(segments_[static_cast<std::size_t>(i)], world_.Rank())) {
        MPI_Irecv(Here(cut.offset, cut.bytes), static_cast<int>(cut.bytes), MPI_BYTE,
                  readers_[reader], kTag, world_.Handle(), &requests.emplace_back());
      }
    }
  }
}

void Exchange::Deliver(const Segment& segment, const char* data,
                       std::vector<MPI_Request>& sends) const {
  for (int rank = 0; rank < world_.Size(); ++rank) {
    for (const Cut& cut : CutsOf(segment, rank)) {
      const char* from = data + (cut.offset - segment.offset);
      if (rank != world_.Rank()) {
        MPI_Isend(from, static_cast<int>(cut.bytes), MPI_BYTE, rank, kTag, world_.Handle(),
                  &sends.emplace_back());
      } else if (char* const to = Here(cut.offset, cut.bytes); to != from) {
        std::memcpy(to, from, static_cast<std::size_t>(cut.bytes));
      }
    }
  }
}

// A reader's way through its share: a thread reads and checks a few segments ahead, each in a slot
// of the ring or in its place on this rank, while the rank's own thread sends.
class Exchange::Reader {
 public:
  Reader(const Exchange& exchange, const Part& share, const ReadSegment& read)
      : exchange_(exchange), share_(share), read_(read) {
    for (; queued_ < std::min<std::int64_t>(kAhead, share_.Size()); ++queued_) Queue(queued_);
  }

  void SendAll() {
    for (std::int64_t i = 0; i < share_.Size(); ++i) {
      while (worker_.Unfinished() > static_cast<std::size_t>(queued_ - i - 1)) Progress();
      exchange_.Deliver(SegmentAt(i), places_[Slot(i)], sends_[Slot(i)]);
      if (queued_ == share_.Size()) continue;
      WaitFor(sends_[Slot(queued_)]);
      Queue(queued_++);
    }
    for (std::vector<MPI_Request>& each : sends_) WaitFor(each);
  }
  void Finish() { worker_.Finish(); }

 private:
  static constexpr std::size_t kSlots = 6;   // segments in memory at once
  static constexpr std::int64_t kAhead = 4;  // of these, being read; others are being sent

  static std::size_t Slot(std::int64_t i) { return static_cast<std::size_t>(i) % kSlots; }
  const Segment& SegmentAt(std::int64_t i) const {
    return exchange_.segments_[static_cast<std::size_t>(share_.begin + i)];
  }

  void Queue(std::int64_t i) {
    const Segment& segment = SegmentAt(i);
    char*& place = places_[Slot(i)];
    place = exchange_.Here(segment.offset, segment.length);
    if (place == nullptr) {
      std::vector<char>& buffer = buffers_[Slot(i)];
      buffer.resize(std::max(buffer.size(), static_cast<std::size_t>(segment.length)));
      place = buffer.data();
    }
    worker_.Queue([this, &segment, to = place] { read_(segment, to); });
  }

  // Lets MPI move what is being sent, while the thread reads.
  void Progress() {
    constexpr std::chrono::microseconds kPause(20);
    for (std::vector<MPI_Request>& each : sends_) {
      int done = 0;
      if (!each.empty()) {
        MPI_Testall(static_cast<int>(each.size()), each.data(), &done, MPI_STATUSES_IGNORE);
      }
      if (done != 0) each.clear();
    }
    std::this_thread::sleep_for(kPause);
  }

  const Exchange& exchange_;
  const Part share_;
  const ReadSegment& read_;
  std::int64_t queued_ = 0;  // segments given to the thread so far
  std::array<char*, kSlots> places_{};
  std::array<std::vector<char>, kSlots> buffers_;
  std::array<std::vector<MPI_Request>, kSlots> sends_;
  Worker worker_{{}};  // ends before what its tasks use
};

void Exchange::Run(const ReadSegment& read) const {
  const comm::Recorded recorded(world_, comm::Call::kExchange);
  std::vector<MPI_Request> receives;
  PostReceives(receives);
  std::exception_ptr failure;
  const auto reader = std::find(readers_.begin(), readers_.end(), world_.Rank());
  if (reader != readers_.end()) {
    Reader mine(*this, ShareOf(static_cast<std::size_t>(reader - readers_.begin())), read);
    mine.SendAll();
    try {
      mine.Finish();
    } catch (...) {
      failure = std::current_exception();
    }
  }
  WaitFor(receives);
  if (failure) std::rethrow_exception(failure);
}

void Exchange::PassOn(const std::vector<Target>& memory) const {
  if (set_.Size() == 1) return;
  for (const Target& piece : memory) set_.Broadcast(piece.data, piece.bytes);
}

}  // namespace trireme::checkpoint
