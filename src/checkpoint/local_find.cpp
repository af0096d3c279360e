// FindLocal: what lies on the nodes, and whether it makes up a whole state.
#include "local_find.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "lines.hpp"
#include "rendezvous.hpp"
#include "trireme/base/error.hpp"

namespace trireme::checkpoint {

namespace {

constexpr std::int64_t kNone = -1;

// A session's name as a number below 2^63, for reductions.
std::int64_t NumberOf(const std::string& session) {
  std::uint64_t number = 0;
  std::from_chars(session.data(), session.data() + session.size(), number, 16);
  return static_cast<std::int64_t>(number >> 1U);
}

// A piece that a rank needs, or that a file has.
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
  LocalSearch Run();

 private:
  void TakeFiles(const comm::Communicator& host, const LocalPlace& place);
  bool Newer(const LocalHeader& header) const;
  // The next candidate's files among this rank's; none on any rank: empty on all.
  std::vector<LocalFile> TakeNewest();
  std::string Examine(std::vector<LocalFile>& files);
  void Verify(std::vector<LocalFile>& files, bool copies);
  std::string MissingRanks(const std::vector<LocalFile>& files) const;
  std::int64_t MissingPieces(const std::vector<LocalFile>& files) const;
  std::string TakeDamage();

  const comm::Communicator& world_;
  const LocalRun run_;
  const RunFolderCheckpoint newest_;
  std::vector<LocalFile> files_;     // newer than the run folder's checkpoint
  std::vector<std::string> damage_;  // of this rank's files
  std::int64_t step_ = kNone;        // of the candidate
};

// Each file of a host is read by one of its ranks: by the one whose state it is, if it is there.
void Search::TakeFiles(const comm::Communicator& host, const LocalPlace& place) {
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

// In the order of writing. A session that copies one to the run folder beside its steps publishes
// it after local ones of later steps.
bool Search::Newer(const LocalHeader& header) const {
  if (header.session == newest_.session) return header.step > newest_.step;
  return header.sequence >= newest_.sequence;
}

std::vector<LocalFile> Search::TakeNewest() {
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

// Hashes of own parts, or of copies as well.
void Search::Verify(std::vector<LocalFile>& files, bool copies) {
  for (LocalFile& file : files) {
    if (file.good || file.header.copy != copies) continue;
    const std::string why = WhyDamaged(file.path, file.header);
    file.good = why.empty();
    if (!why.empty()) damage_.push_back(why);
  }
}

// Every rank hears whether some file tells of its state; from a damaged one too, whose end is good.
std::string Search::MissingRanks(const std::vector<LocalFile>& files) const {
  std::vector<int> to;
  for (const LocalFile& file : files) to.push_back(file.header.rank);
  const bool known = !Deliver(world_, to, to).empty();
  const std::int64_t missing = world_.Sum(known ? std::int64_t{0} : 1);
  if (missing == 0) return {};
  const std::int64_t first =
      world_.Min(known ? std::numeric_limits<std::int64_t>::max() : std::int64_t{world_.Rank()});
  return fmt::format("the {} of rank {}{} on none of these hosts", missing == 1 ? "part" : "parts",
                     first, missing == 1 ? " is" : fmt::format(" and {} more are", missing - 1));
}

// Pieces that some rank needs and no good file has, where they meet.
std::int64_t Search::MissingPieces(const std::vector<LocalFile>& files) const {
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
  std::map<LocalKey, bool> met;  // whether it is there
  for (const Piece& piece : Deliver(world_, to, pieces)) {
    bool& there = met[piece.key];
    there = there || !piece.needed;
  }
  std::int64_t missing = 0;
  for (const auto& [key, there] : met) missing += there ? 0 : 1;
  return world_.Sum(missing);
}

// Collective. The first damaged file's reason, of the lowest rank that has one; each file is told
// once.
std::string Search::TakeDamage() {
  std::int64_t count = std::ssize(damage_);
  const std::int64_t lowest =
      world_.Min(count > 0 ? std::int64_t{world_.Rank()} : std::int64_t{world_.Size()});
  count = world_.Sum(count);
  if (count == 0) return {};
  const std::string first =
      world_.Broadcast(damage_.empty() ? "" : damage_.front(), static_cast<int>(lowest));
  damage_.clear();
  return fmt::format("{} damaged: {}", count == 1 ? "one file is" : fmt::format("{} are", count),
                     first);
}

// Reason for which the files of all ranks are no whole state of this world; empty: they are.
std::string Search::Examine(std::vector<LocalFile>& files) {
  std::int64_t ranks = 0;
  for (const LocalFile& file : files) ranks = std::max(ranks, std::int64_t{file.header.ranks});
  ranks = world_.Max(ranks);
  if (ranks != world_.Size()) return fmt::format("{} ranks wrote it, {} run", ranks, world_.Size());
  if (std::string why = MissingRanks(files); !why.empty()) return why;
  std::int64_t missing = 0;
  for (const bool copies : {false, true}) {
    Verify(files, copies);
    missing = MissingPieces(files);
    if (missing == 0) return {};
  }
  return fmt::format("{} of the state {} on none of these hosts",
                     missing == 1 ? "one piece" : fmt::format("{} pieces", missing),
                     missing == 1 ? "is" : "are");
}

LocalSearch Search::Run() {
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
      search.passed_over.emplace_back(0,
                                      fmt::format("local files, which others replace: {}", damage));
    }
    const std::int64_t teller =
        world_.Min(files.empty() ? std::int64_t{world_.Size()} : std::int64_t{world_.Rank()});
    const std::string run = world_.Broadcast(files.empty() ? "" : files.front().header.run.dump(),
                                             static_cast<int>(teller));
    std::erase_if(files, [](const LocalFile& file) { return !file.good; });
    auto list = std::make_unique<LocalCheckpoint::Files>();
    list->list = std::move(files);
    search.found =
        std::make_shared<const LocalCheckpoint>(step_, nlohmann::json::parse(run), std::move(list));
    return search;
  }
  if (search.passed_over.empty()) {
    if (const std::string damage = TakeDamage(); !damage.empty()) {
      search.passed_over.emplace_back(0, fmt::format("local files: {}", damage));
    }
  }
  return search;
}

}  // namespace

LocalSearch FindLocal(const LocalNodes& nodes, const LocalRun& run,
                      const RunFolderCheckpoint& newest) {
  return Search(nodes, run, newest).Run();
}

}  // namespace trireme::checkpoint
