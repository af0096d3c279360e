// Exchange: finds out who needs what, and sends it from the readers to the first rank of each set.
#include "exchange.hpp"

#include <mpi.h>
#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/comm/flight_recorder.hpp"

namespace trireme::checkpoint {

namespace {

constexpr int kExchangeTag = 16;  // one tag for all messages, so they arrive in segment order

void WaitFor(std::vector<MPI_Request>& requests) {
  if (requests.empty()) return;
  MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
  requests.clear();
}

}  // namespace

// Reads this rank's share: a thread reads and checks a few segments ahead, each into a slot of a
// ring or directly into its place on this rank, while the rank's own thread sends. The constructor
// takes all memory, because a rank that fails alone afterwards would leave others waiting.
class Exchange::Reader {
 public:
  Reader(const Exchange& exchange, const ReadSegment& read)
      : exchange_(exchange), read_(read), end_(std::ssize(exchange.share_)) {
    std::array<std::int64_t, kSlots> bytes{};
    std::array<std::size_t, kSlots> messages{};
    for (std::int64_t i = 0; i < end_; ++i) {
      const Segment& segment = SegmentAt(i);
      if (exchange.Here(segment.offset, segment.length) == nullptr) {
        bytes[Slot(i)] = std::max(bytes[Slot(i)], segment.length);
      }
      messages[Slot(i)] =
          std::max(messages[Slot(i)], exchange.CutsOf(static_cast<std::size_t>(i)).size());
    }
    for (std::size_t slot = 0; slot < kSlots; ++slot) {
      buffers_[slot].resize(static_cast<std::size_t>(bytes[slot]));
      sends_[slot].reserve(messages[slot]);
    }
    Allow(std::min(kAhead, end_));
    thread_ = std::jthread([this](const std::stop_token& stop) { Read(stop); });
  }

  // Sends the segments before `until`; all their messages have arrived when it returns.
  void SendUntil(std::int64_t until) noexcept {
    for (; sent_ < until; ++sent_) {
      while (!IsRead(sent_)) Progress();
      exchange_.Deliver(static_cast<std::size_t>(sent_), PlaceOf(sent_), sends_[Slot(sent_)]);
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
  static constexpr std::int64_t kAhead = 4;  // segments read ahead; the other slots are being sent

  static std::size_t Slot(std::int64_t i) { return static_cast<std::size_t>(i) % kSlots; }
  const Segment& SegmentAt(std::int64_t i) const {
    return exchange_.share_[static_cast<std::size_t>(i)];
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
  // Allows the thread to read the segments before `end`.
  void Allow(std::int64_t end) {
    {
      const std::lock_guard lock(mutex_);
      allowed_ = end;
    }
    changed_.notify_one();
  }

  // The thread's function. After a failure it marks the remaining segments as read without reading.
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

  // Lets MPI progress with the sends while the thread reads.
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
  std::int64_t sent_ = 0;     // segments before this one are sent
  std::int64_t allowed_ = 0;  // segments before this one may be read; set by the rank's own thread
  std::int64_t done_ = 0;     // segments before this one are read
  std::exception_ptr failure_;
  mutable std::mutex mutex_;  // guards the three above
  std::condition_variable_any changed_;
  std::array<std::vector<char>, kSlots> buffers_;
  std::array<std::vector<MPI_Request>, kSlots> sends_;
  std::jthread thread_;  // ends before the members that it uses
};

std::vector<Segment> ShareSegments(const comm::Communicator& world,
                                   const std::vector<Segment>& all) {
  const std::vector<int> root = {0}, own = {world.Rank()};
  const bool reads = world.SplitNode().IsRoot();
  const std::vector<int> readers =
      Deliver(world, reads ? root : std::vector<int>{}, reads ? own : std::vector<int>{});
  std::vector<int> to;
  for (std::size_t i = 0; i < readers.size(); ++i) {
    const Part share = PartOf(std::ssize(all), static_cast<std::int64_t>(i), std::ssize(readers));
    to.insert(to.end(), static_cast<std::size_t>(share.Size()), readers[i]);
  }
  return Deliver(world, to, world.IsRoot() ? all : std::vector<Segment>{});
}

Exchange::Exchange(const comm::Communicator& world, const std::vector<Segment>& share,
                   const std::vector<Target>& targets, const ReadSegment& read,
                   std::int64_t round_bytes)
    : world_(world), share_(share), targets_(targets) {
  FindSet();
  const std::vector<Cut> needs = AskReaders();
  world.Together([&] {
    PlanRounds(round_bytes);
    CutSegments(needs);
  });
  rounds_count_ = static_cast<int>(world.Max(static_cast<std::int64_t>(rounds_.size())));
  std::vector<int> to;
  std::vector<Cut> told = cuts_;
  for (Cut& cut : told) to.push_back(std::exchange(cut.rank, world.Rank()));
  receives_ = checkpoint::Deliver(world, to, told);
  world.Together([&] {
    std::erase_if(receives_, [&](const Cut& cut) { return cut.rank == world.Rank(); });
    std::ranges::stable_sort(receives_, {}, &Cut::round);
    std::vector<std::size_t> counts(static_cast<std::size_t>(rounds_count_));
    for (const Cut& cut : receives_) ++counts[static_cast<std::size_t>(cut.round)];
    if (!counts.empty()) requests_.reserve(*std::ranges::max_element(counts));
    if (!share.empty()) reader_ = std::make_unique<Reader>(*this, read);
  });
}

Exchange::~Exchange() = default;

// Finds the ranks that need the same bytes: they have the same hash; then compares with the first.
void Exchange::FindSet() {
  std::string mine;
  std::uint64_t hash = 0;
  world_.Together([&] {
    for (const Target& target : targets_) {
      if (target.bytes == 0) continue;
      for (const std::int64_t number : {target.offset, target.bytes}) {
        mine.append(reinterpret_cast<const char*>(&number), sizeof number);
      }
    }
    hash = Hash(mine.data(), std::ssize(mine));
  });
  // A colour has 31 bits, which ranks with different hashes may share by chance: these split again.
  const auto color = static_cast<int>(hash & std::numeric_limits<int>::max());
  set_ = world_.Split(color, world_.Rank(), "same bytes");
  const auto number = static_cast<std::int64_t>(hash);
  if (set_.Min(number) != set_.Max(number)) {
    const std::vector<std::int64_t> hashes =
        comm::GatherAll(set_, std::vector<std::int64_t>{number});
    const auto first = std::ranges::find(hashes, number) - hashes.begin();
    set_ = set_.Split(static_cast<int>(first), set_.Rank(), "same bytes");
  }
  const std::string of_first = set_.Broadcast(mine);
  world_.Together([&] {
    if (of_first == mine) return;
    throw RunError("checkpoint: two different needs of bytes have one hash",
                   "This is a bug in Trireme.");
  });
}

// Collective. The first ranks of sets tell the readers which bytes they need; returns the bytes
// that are needed from this rank's share.
std::vector<Exchange::Cut> Exchange::AskReaders() const {
  struct Reading {
    std::int64_t begin = 0, end = 0;  // bytes of the file
    std::int64_t rank = 0;
  };
  std::vector<Reading> own;
  if (!share_.empty()) {
    own.push_back(
        {share_.front().offset, share_.back().offset + share_.back().length, world_.Rank()});
  }
  std::vector<Reading> readings = comm::GatherAll(world_, own);
  std::vector<Cut> needs;
  std::vector<int> to;
  world_.Together([&] {
    std::ranges::sort(readings, {}, &Reading::begin);
    for (const Target& target : targets_) {
      if (target.bytes == 0 || !Receives()) continue;
      const std::int64_t end = target.offset + target.bytes;
      for (auto from = std::ranges::upper_bound(readings, target.offset, {}, &Reading::end);
           from != readings.end() && from->begin < end; ++from) {
        const std::int64_t begin = std::max(from->begin, target.offset);
        needs.push_back({begin, std::min(from->end, end) - begin, 0, world_.Rank()});
        to.push_back(static_cast<int>(from->rank));
      }
    }
  });
  return checkpoint::Deliver(world_, to, needs);
}

// Splits this reader's share into rounds of about `round_bytes`.
void Exchange::PlanRounds(std::int64_t round_bytes) {
  std::int64_t bytes = round_bytes;
  for (std::int64_t i = 0; i < std::ssize(share_); ++i) {
    if (bytes >= round_bytes) {
      rounds_.push_back(i);
      bytes = 0;
    }
    bytes += share_[static_cast<std::size_t>(i)].length;
  }
}

// Splits the needed byte ranges at the boundaries of the share's segments.
void Exchange::CutSegments(const std::vector<Cut>& needs) {
  std::vector<std::pair<std::size_t, Cut>> cuts;  // with their segments' indices
  for (const Cut& need : needs) {
    const std::int64_t end = need.offset + need.bytes;
    auto segment = std::ranges::upper_bound(share_, need.offset, {}, &Segment::offset) - 1;
    for (; segment != share_.end() && segment->offset < end; ++segment) {
      const auto place = segment - share_.begin();
      const std::int64_t from = std::max(segment->offset, need.offset);
      const auto round = std::ranges::upper_bound(rounds_, place) - rounds_.begin() - 1;
      cuts.emplace_back(static_cast<std::size_t>(place),
                        Cut{from, std::min(end, segment->offset + segment->length) - from,
                            static_cast<int>(round), need.rank});
    }
  }
  std::ranges::stable_sort(cuts, {}, [](const auto& each) {
    return std::tuple(each.first, each.second.rank, each.second.offset);
  });
  first_cuts_.resize(share_.size() + 1);
  for (const auto& [segment, cut] : cuts) {
    cuts_.push_back(cut);
    first_cuts_[segment + 1] = cuts_.size();
  }
  for (std::size_t i = 1; i < first_cuts_.size(); ++i) {
    first_cuts_[i] = std::max(first_cuts_[i], first_cuts_[i - 1]);
  }
}

std::span<const Exchange::Cut> Exchange::CutsOf(std::size_t segment) const {
  return std::span(cuts_).subspan(first_cuts_[segment],
                                  first_cuts_[segment + 1] - first_cuts_[segment]);
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

void Exchange::Deliver(std::size_t segment, const char* data,
                       std::vector<MPI_Request>& sends) const {
  for (const Cut& cut : CutsOf(segment)) {
    const char* from = data + (cut.offset - share_[segment].offset);
    if (cut.rank != world_.Rank()) {
      MPI_Isend(from, static_cast<int>(cut.bytes), MPI_BYTE, cut.rank, kExchangeTag,
                world_.Handle(), &sends.emplace_back());
    } else if (char* const to = Here(cut.offset, cut.bytes); to != from) {
      std::memcpy(to, from, static_cast<std::size_t>(cut.bytes));
    }
  }
}

void Exchange::Run(int round) noexcept {
  const comm::Recorded recorded(world_, comm::Call::kExchange);
  const auto first = std::ranges::lower_bound(receives_, round, {}, &Cut::round);
  const auto last = std::ranges::upper_bound(receives_, round, {}, &Cut::round);
  for (auto each = first; each != last; ++each) {
    const Cut& cut = *each;
    MPI_Irecv(Here(cut.offset, cut.bytes), static_cast<int>(cut.bytes), MPI_BYTE, cut.rank,
              kExchangeTag, world_.Handle(), &requests_.emplace_back());
  }
  const auto next = static_cast<std::size_t>(round) + 1;
  if (reader_) reader_->SendUntil(next < rounds_.size() ? rounds_[next] : std::ssize(share_));
  WaitFor(requests_);
}

void Exchange::Check() const {
  if (reader_) reader_->Check();
}

void Exchange::PassOn(const std::vector<Target>& memory) const {
  if (set_.Size() == 1) return;
  for (const Target& piece : memory) set_.Broadcast(piece.data, piece.bytes);
}

// DeliverBytes: one message to each rank that gets items, none to the others.

namespace {

constexpr int kMeetingTag = 17;

using Letter = std::pair<int, std::vector<std::byte>>;  // sender, items

// Receives one letter if one has arrived; else returns false.
bool TakeLetter(MPI_Comm comm, MPI_Datatype item, std::int64_t bytes,
                std::vector<Letter>& letters) {
  int there = 0, count = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  MPI_Improbe(MPI_ANY_SOURCE, kMeetingTag, comm, &there, &message, &status);
  if (there == 0) return false;
  MPI_Get_count(&status, item, &count);
  Letter& letter = letters.emplace_back(status.MPI_SOURCE, std::vector<std::byte>{});
  letter.second.resize(static_cast<std::size_t>(count) * static_cast<std::size_t>(bytes));
  MPI_Mrecv(letter.second.data(), count, item, &message, MPI_STATUS_IGNORE);
  return true;
}

// Sends a letter to each rank in `to`, which `order` sorts. `sorted`: the items; outlives the
// sends.
std::vector<MPI_Request> StartLetters(MPI_Comm comm, MPI_Datatype item, std::int64_t bytes,
                                      const std::vector<int>& to,
                                      const std::vector<std::size_t>& order,
                                      const std::vector<std::byte>& sorted) {
  std::vector<MPI_Request> requests;
  for (std::size_t first = 0, last = 0; first < order.size(); first = last) {
    const int rank = to[order[first]];
    while (last < order.size() && to[order[last]] == rank) ++last;
    MPI_Issend(sorted.data() + first * static_cast<std::size_t>(bytes),
               static_cast<int>(last - first), item, rank, kMeetingTag, comm,
               &requests.emplace_back());
  }
  return requests;
}

}  // namespace

// A rank enters a barrier once its letters are received; once all ranks have entered, no letter is
// under way (Hoefler, Siebert and Lumsdaine 2010, "Scalable communication protocols for dynamic
// sparse data exchange", algorithm NBX).
std::vector<std::byte> DeliverBytes(const comm::Communicator& world, const std::vector<int>& to,
                                    const void* items, std::int64_t bytes) {
  constexpr std::chrono::microseconds kPause(20);
  const comm::Recorded recorded(world, comm::Call::kAllToAll,
                                static_cast<std::int64_t>(to.size()) * bytes);
  const auto size = static_cast<std::size_t>(bytes);
  MPI_Datatype item = MPI_DATATYPE_NULL;
  MPI_Type_contiguous(static_cast<int>(bytes), MPI_BYTE, &item);
  MPI_Type_commit(&item);
  std::vector<std::size_t> order(to.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return to[i]; });
  std::vector<std::byte> sorted(to.size() * size);
  for (std::size_t i = 0; i < order.size(); ++i) {
    std::memcpy(sorted.data() + i * size, static_cast<const std::byte*>(items) + order[i] * size,
                size);
  }
  std::vector<MPI_Request> requests = StartLetters(world.Handle(), item, bytes, to, order, sorted);
  std::vector<Letter> letters;
  MPI_Request barrier = MPI_REQUEST_NULL;
  bool entered = false;
  for (int all_received = 0; all_received == 0;) {
    while (TakeLetter(world.Handle(), item, bytes, letters)) {
    }
    if (!entered) {
      int received = 0;
      MPI_Testall(static_cast<int>(requests.size()), requests.data(), &received,
                  MPI_STATUSES_IGNORE);
      entered = received != 0;
      if (entered) MPI_Ibarrier(world.Handle(), &barrier);
    } else {
      MPI_Test(&barrier, &all_received, MPI_STATUS_IGNORE);
    }
    if (all_received == 0) std::this_thread::sleep_for(kPause);
  }
  MPI_Type_free(&item);
  MPI_Barrier(world.Handle());  // letters of a later call must not arrive in this one
  std::ranges::sort(letters, {}, &Letter::first);
  std::vector<std::byte> result;
  for (const Letter& letter : letters) {
    result.insert(result.end(), letter.second.begin(), letter.second.end());
  }
  return result;
}

}  // namespace trireme::checkpoint
