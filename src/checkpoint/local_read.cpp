// LocalCheckpoint: pieces of state from the ranks that have them to those that need them.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "local_find.hpp"
#include "rendezvous.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/positioned_file.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/comm/flight_recorder.hpp"

namespace trireme::checkpoint {

namespace {

constexpr int kRequestTag = 23, kAnswerTag = 24;
constexpr std::int64_t kAnswerBytes = std::int64_t{8} << 20;  // in memory of a rank that answers

struct Place {
  const LocalFile* file = nullptr;
  std::int64_t offset = 0;
};

// A piece, and the rank that has or wants it: `number` of its wishes.
struct Offer {
  LocalKey key;
  int rank = 0, host = 0;
  std::int64_t number = -1;  // -1: has it
};
struct LocalMatch {
  std::int64_t number = 0;
  int holder = -1;  // world rank; -1: nobody has it
  bool near = false;
};
struct Request {
  LocalKey key;
  std::int64_t offset = 0, bytes = 0;  // within the piece
};

// The holder for a rank: itself, one of its host, or one of all in turn.
LocalMatch Choose(const Offer& wish, const std::vector<Offer>& holders) {
  LocalMatch match{.number = wish.number};
  if (holders.empty()) return match;
  const Offer* best = &holders[static_cast<std::size_t>(wish.rank) % holders.size()];
  for (const Offer& one : holders) {
    if (one.host == wish.host && best->host != wish.host) best = &one;
    if (one.rank == wish.rank) best = &one;
  }
  match.holder = best->rank;
  match.near = best->host == wish.host;
  return match;
}

class Reading {
 public:
  Reading(const LocalNodes& nodes, const std::vector<LocalFile>& files, const char* file,
          const std::vector<kernels::StateBlock>& blocks)
      : world_(nodes.world), host_(nodes.hosts.Number(world_.Rank())) {
    for (const LocalFile& one : files) {
      const std::vector<std::int64_t> places = PlacesOf(one.header);
      for (std::size_t i = 0; i < one.header.stored.size(); ++i) {
        const auto number = static_cast<std::size_t>(one.header.stored[i]);
        have_[one.header.needs[number].key] = {&one, places[i]};
      }
    }
    for (const kernels::StateBlock& block : blocks) {
      if (block.begin == block.end) continue;
      const auto size = static_cast<std::int64_t>(SizeOf(block.dtype));
      wishes_.push_back({KeyOf(file, block), (block.end - block.begin) * size});
      to_.push_back(static_cast<std::byte*>(block.data));
    }
  }
  // Collective. Pieces that nobody has, of all ranks.
  std::int64_t Meet();
  // Collective. Fills the blocks. Returns this rank's bytes from other hosts.
  std::int64_t Fill();

 private:
  void ReadHere(const Request& request, void* to) const;
  void Ask(std::size_t wish, std::int64_t offset);
  void Answer();
  void TakeAnswer();

  const comm::Communicator& world_;
  const int host_;
  std::map<LocalKey, Place> have_;
  std::vector<LocalPiece> wishes_;
  std::vector<std::byte*> to_;       // [wishes]
  std::vector<LocalMatch> matches_;  // [wishes]

  comm::Communicator line_;  // the world, for these messages
  std::vector<std::byte> answer_;
  std::vector<std::size_t> far_;  // wishes that other ranks grant, one after the other
  std::size_t next_ = 0;
  std::int64_t offset_ = 0, asked_ = 0;  // of that wish: bytes there, bytes under way
  MPI_Request arrival_ = MPI_REQUEST_NULL;
  std::exception_ptr failure_;
};

std::int64_t Reading::Meet() {
  std::vector<Offer> offers;
  std::vector<int> to;
  const auto add = [&](const LocalKey& key, std::int64_t number) {
    offers.push_back({key, world_.Rank(), host_, number});
    to.push_back(key.Meets(world_.Size()));
  };
  for (const auto& [key, place] : have_) add(key, -1);
  for (std::size_t i = 0; i < wishes_.size(); ++i) {
    add(wishes_[i].key, static_cast<std::int64_t>(i));
  }
  std::map<LocalKey, std::pair<std::vector<Offer>, std::vector<Offer>>> met;  // holders, wishes
  for (const Offer& offer : Deliver(world_, to, offers)) {
    auto& [holders, wishes] = met[offer.key];
    (offer.number < 0 ? holders : wishes).push_back(offer);
  }
  std::vector<LocalMatch> answers;
  to.clear();
  for (const auto& [key, both] : met) {
    for (const Offer& wish : both.second) {
      answers.push_back(Choose(wish, both.first));
      to.push_back(wish.rank);
    }
  }
  matches_.resize(wishes_.size());
  std::int64_t missing = 0;
  for (const LocalMatch& match : Deliver(world_, to, answers)) {
    matches_[static_cast<std::size_t>(match.number)] = match;
    missing += match.holder < 0 ? 1 : 0;
  }
  return world_.Sum(missing);
}

void Reading::ReadHere(const Request& request, void* to) const {
  const Place& place = have_.at(request.key);
  PositionedFile(place.file->path, PositionedFile::Access::kRead, ExitCode::kBadInput)
      .Read(to, request.bytes, place.offset + request.offset);
}

// Asks for the next bytes of a wish. The room for them is there before they are asked for.
void Reading::Ask(std::size_t wish, std::int64_t offset) {
  const std::int64_t bytes = std::min(kAnswerBytes, wishes_[wish].bytes - offset);
  const Request request{wishes_[wish].key, offset, bytes};
  const int holder = matches_[wish].holder;
  MPI_Irecv(to_[wish] + offset, static_cast<int>(bytes), MPI_BYTE, holder, kAnswerTag,
            line_.Handle(), &arrival_);
  MPI_Send(&request, sizeof request, MPI_BYTE, holder, kRequestTag, line_.Handle());
  asked_ = bytes;
}

// One request, if there is one. A failure answers with anything, so that nobody waits.
void Reading::Answer() {
  int waiting = 0;
  MPI_Status status;
  MPI_Iprobe(MPI_ANY_SOURCE, kRequestTag, line_.Handle(), &waiting, &status);
  if (waiting == 0) return;
  Request request;
  MPI_Recv(&request, sizeof request, MPI_BYTE, status.MPI_SOURCE, kRequestTag, line_.Handle(),
           MPI_STATUS_IGNORE);
  try {
    ReadHere(request, answer_.data());
  } catch (...) {
    failure_ = std::current_exception();
  }
  MPI_Send(answer_.data(), static_cast<int>(request.bytes), MPI_BYTE, status.MPI_SOURCE, kAnswerTag,
           line_.Handle());
}

void Reading::TakeAnswer() {
  int arrived = 0;
  MPI_Test(&arrival_, &arrived, MPI_STATUS_IGNORE);
  if (arrived == 0) return;
  offset_ += asked_;
  if (offset_ == wishes_[far_[next_]].bytes) {
    ++next_;
    offset_ = 0;
  }
  if (next_ < far_.size()) Ask(far_[next_], offset_);
}

std::int64_t Reading::Fill() {
  std::int64_t from_afar = 0;
  line_ = world_.Duplicate();
  world_.Together([&] {
    answer_.resize(static_cast<std::size_t>(kAnswerBytes));
    for (std::size_t i = 0; i < wishes_.size(); ++i) {
      if (!matches_[i].near) from_afar += wishes_[i].bytes;
      if (matches_[i].holder != world_.Rank()) {
        far_.push_back(i);
      } else {
        ReadHere({wishes_[i].key, 0, wishes_[i].bytes}, to_[i]);
      }
    }
  });
  const comm::Recorded recorded(world_, comm::Call::kExchange, from_afar);
  if (!far_.empty()) Ask(far_.front(), 0);
  // Ends when all ranks have what they asked for.
  MPI_Request all_done = MPI_REQUEST_NULL;
  bool entered = false;
  for (int ended = 0; ended == 0;) {
    Answer();
    if (next_ < far_.size()) {
      TakeAnswer();
    } else if (!entered) {
      MPI_Ibarrier(line_.Handle(), &all_done);
      entered = true;
    } else {
      MPI_Test(&all_done, &ended, MPI_STATUS_IGNORE);
    }
  }
  world_.Together([&] {
    if (failure_) std::rethrow_exception(failure_);
  });
  return from_afar;
}

}  // namespace

LocalCheckpoint::LocalCheckpoint(std::int64_t step, nlohmann::json run,
                                 std::unique_ptr<Files> files)
    : step_(step), run_(std::move(run)), files_(std::move(files)) {}
LocalCheckpoint::~LocalCheckpoint() = default;

std::int64_t LocalCheckpoint::Read(const LocalNodes& nodes, const char* file,
                                   const std::vector<kernels::StateBlock>& blocks) const {
  const comm::Communicator& world = nodes.world;
  Reading reading(nodes, files_->list, file, blocks);
  const std::int64_t missing = reading.Meet();
  if (missing > 0) {
    throw DamagedError(ExitCode::kBadInput,
                       fmt::format("the local checkpoint of step {}: it was written by another "
                                   "layout, which held other pieces of the state",
                                   step_));
  }
  try {
    return world.Sum(reading.Fill());
  } catch (const AgreedError& error) {
    throw DamagedError(error.Code(),
                       fmt::format("the local checkpoint of step {}: {}", step_, error.what()));
  }
}

}  // namespace trireme::checkpoint
