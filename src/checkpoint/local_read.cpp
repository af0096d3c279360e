// LocalCheckpoint: brings pieces of state from the ranks that have them to those that need them.
#include <fmt/format.h>
#include <mpi.h>
#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "exchange.hpp"
#include "folder.hpp"
#include "local_file.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/checkpoint/local.hpp"
#include "trireme/comm/flight_recorder.hpp"

namespace trireme::checkpoint {

// The files of a local checkpoint that this rank reads for all ranks.

struct LocalFile {
  std::string path;
  LocalHeader header;
  bool good = false;  // its hashes are correct
};

struct LocalCheckpoint::Files {
  std::vector<LocalFile> list;
};

namespace {

constexpr int kRequestTag = 23, kAnswerTag = 24;
constexpr std::int64_t kAnswerBytes = std::int64_t{8} << 20;  // buffer of a rank that answers

struct Place {
  const LocalFile* file = nullptr;
  std::int64_t offset = 0;
};

// Says that a rank has a piece, or wants it as its wish `number`.
struct Offer {
  LocalKey key;
  int rank = 0, host = 0;
  std::int64_t number = -1;  // -1: the rank has the piece
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

// Chooses the holder for a rank: itself, else one on its host, else the holders take turns.
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
      wishes_.push_back({KeyOf(file, block), BytesOf(block.dtype, block.end - block.begin)});
      to_.push_back(static_cast<std::byte*>(block.data));
    }
  }
  // Collective. Finds a holder for each wish; returns how many have none, summed over all ranks.
  std::int64_t Meet() {
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
    std::map<LocalKey, std::pair<std::vector<Offer>, std::vector<Offer>>> met;  // {holders, wishes}
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

  // Collective. Fills the blocks. Returns how many bytes this rank read from other hosts.
  std::int64_t Fill() {
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
    // The loop ends when all ranks have what they asked for.
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

 private:
  void ReadHere(const Request& request, void* to) const {
    const Place& place = have_.at(request.key);
    PositionedFile(place.file->path).Read(to, request.bytes, place.offset + request.offset);
  }
  // Asks for the next bytes of a wish, after it has posted the receive for them.
  void Ask(std::size_t wish, std::int64_t offset) {
    const std::int64_t bytes = std::min(kAnswerBytes, wishes_[wish].bytes - offset);
    const Request request{wishes_[wish].key, offset, bytes};
    const int holder = matches_[wish].holder;
    MPI_Irecv(to_[wish] + offset, static_cast<int>(bytes), MPI_BYTE, holder, kAnswerTag,
              line_.Handle(), &arrival_);
    MPI_Send(&request, sizeof request, MPI_BYTE, holder, kRequestTag, line_.Handle());
    asked_ = bytes;
  }

  // Answers one request, if any. After a failure it sends arbitrary bytes, so that no rank waits.
  void Answer() {
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
    MPI_Send(answer_.data(), static_cast<int>(request.bytes), MPI_BYTE, status.MPI_SOURCE,
             kAnswerTag, line_.Handle());
  }

  void TakeAnswer() {
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

  const comm::Communicator& world_;
  const int host_;
  std::map<LocalKey, Place> have_;
  std::vector<LocalPiece> wishes_;
  std::vector<std::byte*> to_;       // [wishes]
  std::vector<LocalMatch> matches_;  // [wishes]

  comm::Communicator line_;  // a duplicate of the world for these messages
  std::vector<std::byte> answer_;
  std::vector<std::size_t> far_;  // wishes that other ranks grant, one after another
  std::size_t next_ = 0;
  std::int64_t offset_ = 0, asked_ = 0;  // of the current wish: bytes received, bytes requested
  MPI_Request arrival_ = MPI_REQUEST_NULL;
  std::exception_ptr failure_;
};

// FindLocal: looks which files are on the nodes, and whether they make up a complete state.

constexpr std::int64_t kNone = -1;

// A session's name as a number below 2^63, for reductions.
std::int64_t NumberOf(const std::string& session) {
  std::uint64_t number = 0;
  std::from_chars(session.data(), session.data() + session.size(), number, 16);
  return static_cast<std::int64_t>(number >> 1U);
}

// A piece that a rank needs (needed) or that a file contains.
struct Piece {
  LocalKey key;
  bool needed = false;
};

class Search {
 public:
  Search(const LocalNodes& nodes, const LocalRun& run, const RunFolderCheckpoint& newest)
      : world_(nodes.world), run_(run), newest_(newest) {
    const LocalPlace place = PlaceOf(nodes.hosts, world_.Rank());
    const comm::Communicator host = world_.Split(place.host, world_.Rank(), "host");
    TakeFiles(host, place);
  }
  LocalSearch Run() {
    LocalSearch search;
    while (true) {
      std::vector<LocalFile> files = TakeNewest();
      if (step_ == kNone) break;
      const std::string why = Examine(files);
      const std::string damage = TakeDamage();
      if (!why.empty()) {
        search.passed_over.emplace_back(
            step_, fmt::format("the local checkpoint of step {}: {}{}{}", step_, why,
                               damage.empty() ? "" : "; ", damage));
        continue;
      }
      if (!damage.empty()) {
        search.passed_over.emplace_back(
            0, fmt::format("local files, which others replace: {}", damage));
      }
      const std::string run =
          world_.FirstText(files.empty() ? "" : files.front().header.run.dump());
      std::erase_if(files, [](const LocalFile& file) { return !file.good; });
      search.found = std::make_shared<const LocalCheckpoint>(
          step_, nlohmann::json::parse(run),
          std::make_unique<LocalCheckpoint::Files>(LocalCheckpoint::Files{std::move(files)}));
      return search;
    }
    if (search.passed_over.empty()) {
      if (const std::string damage = TakeDamage(); !damage.empty()) {
        search.passed_over.emplace_back(0, fmt::format("local files: {}", damage));
      }
    }
    return search;
  }

 private:
  // Reads each file of the host on one of its ranks: the rank whose state it is, if it runs here.
  void TakeFiles(const comm::Communicator& host, const LocalPlace& place) {
    const std::string folder = LocalFolder(run_.folder, run_.id);
    const std::vector<std::string> names =
        ShareLines(host, host.IsRoot() ? ListLocal(folder) : std::vector<std::string>{});
    for (std::size_t number = 0; number < names.size(); ++number) {
      const std::optional<LocalName> name = ParseFileName(names[number]);
      if (!name) continue;
      const auto here = std::ranges::find(place.ranks, name->rank);
      const auto reader = here != place.ranks.end()
                              ? here - place.ranks.begin()
                              : static_cast<std::ptrdiff_t>(number) % host.Size();
      if (reader != host.Rank()) continue;
      try {
        LocalHeader header = ReadLocalHeader(folder, *name);
        if (header.id != run_.id || !Newer(header)) continue;
        files_.push_back({folder + "/" + FileName(*name), std::move(header)});
      } catch (const std::exception& error) {
        damage_.emplace_back(error.what());
      }
    }
  }

  // Compares in the order of writing. Within a session steps decide: an asynchronous checkpoint of
  // the run folder may be published after local ones of later steps.
  bool Newer(const LocalHeader& header) const {
    if (header.session == newest_.session) return header.step > newest_.step;
    return header.sequence >= newest_.sequence;
  }

  // This rank's files of the next candidate; empty on every rank if there is no candidate.
  std::vector<LocalFile> TakeNewest() {
    std::int64_t newest = kNone;
    for (const LocalFile& file : files_) newest = std::max(newest, file.header.step);
    step_ = world_.Max(newest);
    std::int64_t session = kNone;
    for (const LocalFile& file : files_) {
      if (file.header.step == step_) session = std::max(session, NumberOf(file.header.session));
    }
    session = world_.Max(session);
    const auto first =
        std::stable_partition(files_.begin(), files_.end(), [&](const LocalFile& file) {
          return file.header.step != step_ || NumberOf(file.header.session) != session;
        });
    std::vector<LocalFile> taken(std::make_move_iterator(first),
                                 std::make_move_iterator(files_.end()));
    files_.erase(first, files_.end());
    return taken;
  }

  // Why the files of all ranks together are not a complete state of this world; empty: they are.
  std::string Examine(std::vector<LocalFile>& files) {
    std::int64_t ranks = 0;
    for (const LocalFile& file : files) ranks = std::max(ranks, std::int64_t{file.header.ranks});
    ranks = world_.Max(ranks);
    if (ranks != world_.Size())
      return fmt::format("{} ranks wrote it, {} run", ranks, world_.Size());
    if (std::string why = MissingRanks(files); !why.empty()) return why;
    std::int64_t missing = 0;
    for (const bool copies : {false, true}) {
      for (LocalFile& file : files) {  // checks the hashes of own parts, then those of copies
        if (file.good || file.header.copy != copies) continue;
        const std::string why = WhyDamaged(file.path, file.header);
        file.good = why.empty();
        if (!why.empty()) damage_.push_back(why);
      }
      missing = MissingPieces(files);
      if (missing == 0) return {};
    }
    return fmt::format("{} of the state {} on none of these hosts",
                       missing == 1 ? "one piece" : fmt::format("{} pieces", missing),
                       missing == 1 ? "is" : "are");
  }

  // Names ranks whose state no file describes. A damaged file counts too if its end is intact.
  std::string MissingRanks(const std::vector<LocalFile>& files) const {
    std::vector<int> to;
    for (const LocalFile& file : files) to.push_back(file.header.rank);
    const bool known = !Deliver(world_, to, to).empty();
    const std::int64_t missing = world_.Sum(known ? std::int64_t{0} : 1);
    if (missing == 0) return {};
    const std::int64_t first =
        world_.Min(known ? std::numeric_limits<std::int64_t>::max() : std::int64_t{world_.Rank()});
    return fmt::format("the {} of rank {}{} on none of these hosts",
                       missing == 1 ? "part" : "parts", first,
                       missing == 1 ? " is" : fmt::format(" and {} more are", missing - 1));
  }

  // Collective. Number of pieces that some rank needs and no good file contains.
  std::int64_t MissingPieces(const std::vector<LocalFile>& files) const {
    std::vector<Piece> pieces;
    std::vector<int> to;
    const auto add = [&](const LocalKey& key, bool needed) {
      pieces.push_back({key, needed});
      to.push_back(key.Meets(world_.Size()));
    };
    for (const LocalFile& file : files) {
      for (const LocalPiece& need : file.header.needs) add(need.key, true);
      if (!file.good) continue;
      for (const std::int64_t number : file.header.stored) {
        add(file.header.needs[static_cast<std::size_t>(number)].key, false);
      }
    }
    std::map<LocalKey, bool> met;  // whether a good file contains it
    for (const Piece& piece : Deliver(world_, to, pieces)) {
      bool& there = met[piece.key];
      there = there || !piece.needed;
    }
    std::int64_t missing = 0;
    for (const auto& [key, there] : met) missing += there ? 0 : 1;
    return world_.Sum(missing);
  }

  // Collective. A sentence with the number of damaged files and the first reason, from the lowest
  // rank that has one; empty: none. Each file is reported once.
  std::string TakeDamage() {
    const std::int64_t count = world_.Sum(std::ssize(damage_));
    if (count == 0) return {};
    const std::string first = world_.FirstText(damage_.empty() ? "" : damage_.front());
    damage_.clear();
    return fmt::format("{} damaged: {}", count == 1 ? "one file is" : fmt::format("{} are", count),
                       first);
  }

  const comm::Communicator& world_;
  const LocalRun run_;
  const RunFolderCheckpoint newest_;
  std::vector<LocalFile> files_;     // newer than the run folder's checkpoint
  std::vector<std::string> damage_;  // reasons, of this rank's files
  std::int64_t step_ = kNone;        // of the current candidate; kNone: none
};

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

LocalSearch FindLocal(const LocalNodes& nodes, const LocalRun& run,
                      const RunFolderCheckpoint& newest) {
  return Search(nodes, run, newest).Run();
}

}  // namespace trireme::checkpoint
