// Exchange: finds out who needs what, and sends it from the readers to the first rank of each set.
#include "exchange.hpp"

#include <mpi.h>
#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/comm/flight_recorder.hpp"
#include "worker.hpp"

namespace trireme::checkpoint {

namespace {

constexpr int kExchangeTag = 16;  // one tag for all messages, so they arrive in segment order

void WaitFor(std::vector<MPI_Request>& requests) {
  if (requests.empty()) return;
  MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
  requests.clear();
}

// DeliverBytes: one message to each rank that gets items, none to the others.

constexpr int kMeetingTag = 17;

using Letters = std::map<int, std::vector<std::byte>>;  // items, by receiver or sender

// Receives one letter if one has arrived; else returns false.
bool TakeLetter(MPI_Comm comm, MPI_Datatype item, std::size_t bytes, Letters& letters) {
  int there = 0, count = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  MPI_Improbe(MPI_ANY_SOURCE, kMeetingTag, comm, &there, &message, &status);
  if (there == 0) return false;
  MPI_Get_count(&status, item, &count);
  std::vector<std::byte>& letter = letters[status.MPI_SOURCE];
  letter.resize(static_cast<std::size_t>(count) * bytes);
  MPI_Mrecv(letter.data(), count, item, &message, MPI_STATUS_IGNORE);
  return true;
}

}  // namespace

// Reads this rank's share: a thread reads and checks a few segments ahead, each into a slot of a
// ring or directly into its place on this rank, while the rank's own thread sends. The constructor
// takes the memory, because a rank that fails alone afterwards would leave others waiting.
class Exchange::Reader {
 public:
  Reader(const Exchange& exchange, const ReadSegment& read)
      : exchange_(exchange), read_(read), end_(std::ssize(exchange.share_)), worker_({}) {
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
    worker_.Start();
    while (queued_ < std::min(kAhead, end_)) QueueNext();
  }

  // Sends the segments before `until`; all their messages have arrived when it returns.
  void SendUntil(std::int64_t until) noexcept {
    for (; sent_ < until; ++sent_) {
      while (queued_ - worker_.Unfinished() <= sent_) Progress();
      exchange_.Deliver(static_cast<std::size_t>(sent_), PlaceOf(sent_), sends_[Slot(sent_)]);
      if (queued_ == end_) continue;
      WaitFor(sends_[Slot(queued_)]);
      QueueNext();
    }
    for (std::vector<MPI_Request>& each : sends_) WaitFor(each);
  }
  void Check() { worker_.Finish(); }

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
  // After a failure the worker drops the remaining segments: they count as read.
  void QueueNext() {
    worker_.Queue([this, i = queued_++] { read_(SegmentAt(i), PlaceOf(i)); });
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
  std::int64_t sent_ = 0;    // segments before this one are sent
  std::int64_t queued_ = 0;  // segments before this one are read, or in the worker's list
  std::array<std::vector<char>, kSlots> buffers_;
  std::array<std::vector<MPI_Request>, kSlots> sends_;
  Worker worker_;  // ends before the members that its tasks use
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

// Finds the ranks that need the same bytes by a hash of the ranges, and checks against the first.
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
  const auto target = std::ranges::upper_bound(
      targets_, offset, {}, [](const Target& each) { return each.offset + each.bytes; });
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
  Letters sent, received;
  const auto* from = static_cast<const std::byte*>(items);
  for (const int rank : to) {
    sent[rank].insert(sent[rank].end(), from, from + size);
    from += size;
  }
  std::vector<MPI_Request> requests;
  for (const auto& [rank, letter] : sent) {
    MPI_Issend(letter.data(), static_cast<int>(letter.size() / size), item, rank, kMeetingTag,
               world.Handle(), &requests.emplace_back());
  }
  MPI_Request barrier = MPI_REQUEST_NULL;
  bool entered = false;
  for (int all_received = 0; all_received == 0;) {
    while (TakeLetter(world.Handle(), item, size, received)) {
    }
    if (!entered) {
      int arrived = 0;
      MPI_Testall(static_cast<int>(requests.size()), requests.data(), &arrived,
                  MPI_STATUSES_IGNORE);
      entered = arrived != 0;
      if (entered) MPI_Ibarrier(world.Handle(), &barrier);
    } else {
      MPI_Test(&barrier, &all_received, MPI_STATUS_IGNORE);
    }
    if (all_received == 0) std::this_thread::sleep_for(kPause);
  }
  MPI_Type_free(&item);
  MPI_Barrier(world.Handle());  // letters of a later call must not arrive in this one
  std::vector<std::byte> result;
  for (const auto& [rank, letter] : received) {
    result.insert(result.end(), letter.begin(), letter.end());
  }
  return result;
}

}  // namespace trireme::checkpoint
