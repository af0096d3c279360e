// Exchange: who needs what, and the messages from readers to the first ranks of sets.
#include "exchange.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <iterator>
#include <mutex>
#include <thread>

#include "trireme/base/error.hpp"
#include "trireme/comm/flight_recorder.hpp"

namespace trireme::checkpoint {

namespace {

constexpr int kTag = 16;  // of all messages: they arrive in the order of the segments

void WaitFor(std::vector<MPI_Request>& requests) {
  if (requests.empty()) return;
  MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
  requests.clear();
}

}  // namespace

// A reader's way through its share: a thread reads and checks a few segments ahead, each in a slot
// of the ring or in its place on this rank, while the rank's own thread sends. All memory is taken
// at construction: afterwards a rank that fails alone would leave others waiting.
class Exchange::Reader {
 public:
  // Segments [begin, end).
  Reader(const Exchange& exchange, const ReadSegment& read, std::int64_t begin, std::int64_t end)
      : exchange_(exchange), read_(read), end_(end), sent_(begin), allowed_(begin), done_(begin) {
    std::array<std::int64_t, kSlots> bytes{};
    std::array<std::size_t, kSlots> messages{};
    for (std::int64_t i = begin; i < end; ++i) {
      const Segment& segment = SegmentAt(i);
      if (exchange.Here(segment.offset, segment.length) == nullptr) {
        bytes[Slot(i)] = std::max(bytes[Slot(i)], segment.length);
      }
      std::size_t count = 0;
      for (int rank = 0; rank < exchange.world_.Size(); ++rank) {
        exchange.EachCut(segment, rank, [&](const Cut&) { ++count; });
      }
      messages[Slot(i)] = std::max(messages[Slot(i)], count);
    }
    for (std::size_t slot = 0; slot < kSlots; ++slot) {
      buffers_[slot].resize(static_cast<std::size_t>(bytes[slot]));
      sends_[slot].reserve(messages[slot]);
    }
    Allow(std::min(begin + kAhead, end));
    if (begin < end) thread_ = std::jthread([this](const std::stop_token& stop) { Read(stop); });
  }

  // Sends the segments before `until`; all messages have arrived on return.
  void SendUntil(std::int64_t until) noexcept {
    for (; sent_ < until; ++sent_) {
      while (!IsRead(sent_)) Progress();
      exchange_.Deliver(SegmentAt(sent_), PlaceOf(sent_), sends_[Slot(sent_)]);
      if (allowed_ == end_) continue;
      WaitFor(sends_[Slot(allowed_)]);
      Allow(allowed_ + 1);
    }
    for (std::vector<MPI_Request>& each : sends_) WaitFor(each);
  }
  void Check() const {
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  static constexpr std::size_t kSlots = 6;   // segments in memory at once
  static constexpr std::int64_t kAhead = 4;  // of these, being read; others are being sent

  static std::size_t Slot(std::int64_t i) { return static_cast<std::size_t>(i) % kSlots; }
  const Segment& SegmentAt(std::int64_t i) const {
    return exchange_.segments_[static_cast<std::size_t>(i)];
  }
  char* PlaceOf(std::int64_t i) {
    const Segment& segment = SegmentAt(i);
    char* const here = exchange_.Here(segment.offset, segment.length);
    return here != nullptr ? here : buffers_[Slot(i)].data();
  }

  bool IsRead(std::int64_t i) const {
    const std::lock_guard lock(mutex_);
    return i < done_;
  }
  // Lets the thread read the segments before `end`.
  void Allow(std::int64_t end) {
    {
      const std::lock_guard lock(mutex_);
      allowed_ = end;
    }
    changed_.notify_one();
  }

  // The thread. After a failure the rest is taken for read.
  void Read(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (done_ < end_ && changed_.wait(lock, stop, [&] { return done_ < allowed_; })) {
      if (stop.stop_requested()) return;
      const std::int64_t next = done_;
      std::exception_ptr failure = failure_;
      lock.unlock();
      try {
        if (!failure) read_(SegmentAt(next), PlaceOf(next));
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      failure_ = failure;
      done_ = next + 1;
    }
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
  const ReadSegment& read_;
  const std::int64_t end_;
  std::int64_t sent_;     // segments before it are sent
  std::int64_t allowed_;  // may be read; set by the rank's own thread
  std::int64_t done_;     // are read
  std::exception_ptr failure_;
  mutable std::mutex mutex_;  // of the three above
  std::condition_variable_any changed_;
  std::array<std::vector<char>, kSlots> buffers_;
  std::array<std::vector<MPI_Request>, kSlots> sends_;
  std::jthread thread_;  // ends before what it uses
};

Exchange::Exchange(const comm::Communicator& world, const std::vector<Segment>& segments,
                   const std::vector<Target>& targets, const ReadSegment& read,
                   std::int64_t round_bytes)
    : world_(world), segments_(segments), targets_(targets) {
  ShareNeeds();
  const bool reads = world.SplitNode().IsRoot();
  const std::vector<std::string> flags = world.Gather(reads ? "r" : "");
  world.Together([&] {
    for (std::size_t rank = 0; rank < flags.size(); ++rank) {
      if (!flags[rank].empty()) readers_.push_back(static_cast<int>(rank));
    }
    PlanRounds(round_bytes);
    std::size_t most = 0;
    for (std::size_t round = 0; round + 1 < rounds_.size(); ++round) {
      std::size_t count = 0;
      EachReceive(round, [&](int, const Cut&) { ++count; });
      most = std::max(most, count);
    }
    receives_.reserve(most);
    if (!reads) return;
    const auto own = static_cast<std::size_t>(
        std::find(readers_.begin(), readers_.end(), world.Rank()) - readers_.begin());
    reader_ = std::make_unique<Reader>(*this, read, rounds_.front()[own], rounds_.back()[own]);
  });
}

Exchange::~Exchange() = default;

// Finds the sets, and what their first ranks need.
void Exchange::ShareNeeds() {
  std::string mine, hash;
  world_.Together([&] {
    for (const Target& target : targets_) {
      if (target.bytes == 0) continue;
      const Cut need{target.offset, target.bytes};
      mine.append(reinterpret_cast<const char*>(&need), sizeof need);
    }
    hash = std::to_string(Hash(mine.data(), std::ssize(mine)));
  });
  const std::vector<std::string> hashes = world_.Gather(hash);
  const auto first = std::find(hashes.begin(), hashes.end(), hash) - hashes.begin();
  set_ = world_.Split(static_cast<int>(first), world_.Rank(), "same bytes");
  const std::string of_first = set_.Broadcast(mine);
  world_.Together([&] {
    if (of_first == mine) return;
    throw RunError("checkpoint: two different needs of bytes have one hash",
                   "This is a bug in Trireme.");
  });
  if (!set_.IsRoot()) mine.clear();
  const std::vector<std::string> all = world_.Gather(mine);
  world_.Together([&] {
    for (const std::string& text : all) {
      std::vector<Cut>& needs = needs_.emplace_back(text.size() / sizeof(Cut));
      if (!needs.empty()) std::memcpy(needs.data(), text.data(), text.size());
    }
  });
}

// Cuts each reader's share where it exceeds a round's bytes; rounds after its last are empty.
void Exchange::PlanRounds(std::int64_t round_bytes) {
  const int count = static_cast<int>(readers_.size());
  std::vector<std::int64_t> next(readers_.size()), end(readers_.size());
  for (int reader = 0; reader < count; ++reader) {
    const Part share = PartOf(std::ssize(segments_), reader, count);
    next[static_cast<std::size_t>(reader)] = share.begin;
    end[static_cast<std::size_t>(reader)] = share.end;
  }
  rounds_.push_back(next);
  while (next != end) {
    for (std::size_t reader = 0; reader < readers_.size(); ++reader) {
      for (std::int64_t bytes = 0; next[reader] < end[reader] && bytes < round_bytes;
           ++next[reader]) {
        bytes += segments_[static_cast<std::size_t>(next[reader])].length;
      }
    }
    rounds_.push_back(next);
  }
}

template <typename Body>
void Exchange::EachCut(const Segment& segment, int rank, const Body& body) const {
  const std::vector<Cut>& needs = needs_[static_cast<std::size_t>(rank)];
  const std::int64_t end = segment.offset + segment.length;
  auto need = std::upper_bound(
      needs.begin(), needs.end(), segment.offset,
      [](std::int64_t offset, const Cut& each) { return offset < each.offset + each.bytes; });
  for (; need != needs.end() && need->offset < end; ++need) {
    const std::int64_t from = std::max(segment.offset, need->offset);
    body(Cut{from, std::min(end, need->offset + need->bytes) - from});
  }
}

template <typename Body>
void Exchange::EachReceive(std::size_t round, const Body& body) const {
  for (std::size_t reader = 0; reader < readers_.size(); ++reader) {
    const int from = readers_[reader];
    if (from == world_.Rank()) continue;
    for (std::int64_t i = rounds_[round][reader]; i < rounds_[round + 1][reader]; ++i) {
      EachCut(segments_[static_cast<std::size_t>(i)], world_.Rank(),
              [&](const Cut& cut) { body(from, cut); });
    }
  }
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

void Exchange::Deliver(const Segment& segment, const char* data,
                       std::vector<MPI_Request>& sends) const {
  for (int rank = 0; rank < world_.Size(); ++rank) {
    EachCut(segment, rank, [&](const Cut& cut) {
      const char* from = data + (cut.offset - segment.offset);
      if (rank != world_.Rank()) {
        MPI_Isend(from, static_cast<int>(cut.bytes), MPI_BYTE, rank, kTag, world_.Handle(),
                  &sends.emplace_back());
      } else if (char* const to = Here(cut.offset, cut.bytes); to != from) {
        std::memcpy(to, from, static_cast<std::size_t>(cut.bytes));
      }
    });
  }
}

void Exchange::Run(int round) noexcept {
  const comm::Recorded recorded(world_, comm::Call::kExchange);
  const auto index = static_cast<std::size_t>(round);
  EachReceive(index, [&](int from, const Cut& cut) {
    MPI_Irecv(Here(cut.offset, cut.bytes), static_cast<int>(cut.bytes), MPI_BYTE, from, kTag,
              world_.Handle(), &receives_.emplace_back());
  });
  if (reader_) {
    const auto own = std::find(readers_.begin(), readers_.end(), world_.Rank());
    reader_->SendUntil(rounds_[index + 1][static_cast<std::size_t>(own - readers_.begin())]);
  }
  WaitFor(receives_);
}

void Exchange::Check() const {
  if (reader_) reader_->Check();
}

void Exchange::PassOn(const std::vector<Target>& memory) const {
  if (set_.Size() == 1) return;
  for (const Target& piece : memory) set_.Broadcast(piece.data, piece.bytes);
}

}  // namespace trireme::checkpoint
