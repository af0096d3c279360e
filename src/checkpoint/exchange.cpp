// Exchange: who needs what, and the messages from readers to the first ranks of sets.
#include "exchange.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <iterator>

#include "trireme/base/error.hpp"

namespace trireme::checkpoint {

namespace {

constexpr int kTag = 16;             // of all messages: they arrive in the order of the segments
constexpr std::size_t kBuffers = 4;  // segments on their way at once, per reader

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
  set_ = world.Split(static_cast<int>(first), world.Rank());
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

void Exchange::Run(const std::function<void(const Segment& segment, char* to)>& read) const {
  std::vector<MPI_Request> receives;
  PostReceives(receives);
  std::exception_ptr failure;
  std::array<std::vector<char>, kBuffers> buffers;
  std::array<std::vector<MPI_Request>, kBuffers> sends;
  const auto reader = std::find(readers_.begin(), readers_.end(), world_.Rank());
  const Part share = reader == readers_.end()
                         ? Part{}
                         : ShareOf(static_cast<std::size_t>(reader - readers_.begin()));
  for (std::int64_t i = share.begin; i < share.end; ++i) {
    const Segment& segment = segments_[static_cast<std::size_t>(i)];
    const std::size_t slot = static_cast<std::size_t>(i) % kBuffers;
    WaitFor(sends[slot]);
    char* to = Here(segment.offset, segment.length);
    if (to == nullptr) {
      buffers[slot].resize(
          std::max(buffers[slot].size(), static_cast<std::size_t>(segment.length)));
      to = buffers[slot].data();
    }
    try {
      if (!failure) read(segment, to);
    } catch (...) {
      failure = std::current_exception();
    }
    Deliver(segment, to, sends[slot]);
  }
  for (std::vector<MPI_Request>& each : sends) WaitFor(each);
  WaitFor(receives);
  if (failure) std::rethrow_exception(failure);
}

void Exchange::PassOn(const std::vector<Target>& memory) const {
  if (set_.Size() == 1) return;
  for (const Target& piece : memory) set_.Broadcast(piece.data, piece.bytes);
}

}  // namespace trireme::checkpoint
