// Files of local checkpoints: who stores what, file names, and the tables at the end of a file.
#include "local_file.hpp"

#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <system_error>
#include <utility>

#include "exchange.hpp"
#include "safetensors.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/checkpoint/local.hpp"
#include "trireme/deck/json_text.hpp"

namespace trireme::checkpoint {

LocalPlace PlaceOf(const comm::Hosts& hosts, int rank) {
  std::vector<std::vector<int>> ranks(hosts.Names().size());
  for (int other = 0; other < hosts.Ranks(); ++other) {
    ranks[static_cast<std::size_t>(hosts.Number(other))].push_back(other);
  }
  const auto own = static_cast<std::size_t>(hosts.Number(rank));
  LocalPlace place;
  place.host = static_cast<int>(own);
  place.hosts = static_cast<int>(ranks.size());
  place.ranks = ranks[own];
  if (ranks.size() == 1) return place;
  std::size_t at = 0;  // index of `rank` on its host
  while (place.ranks[at] != rank) ++at;
  const std::vector<int>& next = ranks[(own + 1) % ranks.size()];
  place.partner = next[at % next.size()];
  return place;
}

namespace fs = std::filesystem;

namespace {

constexpr std::array<char, 8> kMagic = {'T', 'R', 'I', 'R', 'L', 'O', 'C', '1'};
constexpr std::int64_t kMostEndBytes = std::int64_t{1} << 30;  // limit of tables and of text
constexpr mode_t kOwnFolder = 0700;

struct End {
  std::array<char, 8> magic = kMagic;
  std::int64_t table_bytes = 0, text_bytes = 0;
  std::uint64_t hash = 0;
};
static_assert(sizeof(End) == 32);

template <typename Item>
void Append(std::string& text, const std::vector<Item>& items) {
  text.append(reinterpret_cast<const char*>(items.data()), items.size() * sizeof(Item));
}

template <typename Item>
std::vector<Item> Take(const std::string& text, std::size_t& at, std::int64_t count) {
  std::vector<Item> items(static_cast<std::size_t>(count));
  std::memcpy(static_cast<void*>(items.data()), text.data() + at, items.size() * sizeof(Item));
  at += items.size() * sizeof(Item);
  return items;
}

template <typename Number>
bool ParseNumber(std::string_view& text, char end, Number& number) {
  const auto [after, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || after == text.data() + text.size() || *after != end) return false;
  text.remove_prefix(static_cast<std::size_t>(after - text.data()) + 1);
  return number >= 0;
}

Error Damaged(const std::string& path, const std::string& why) {
  return InputError(fmt::format("{}: {}", path, why));
}

bool IsOwnFolder(const std::string& folder) {
  struct stat status = {};
  return ::lstat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == ::geteuid();
}

// Parses the text's members, and the tables with the counts that the text gives.
LocalHeader Parse(const std::string& path, const std::string& tables, const std::string& text) {
  const nlohmann::json json = deck::ParseJson(text, path, kMostEndBytes);
  const deck::JsonObject members(json, path);
  LocalHeader header;
  header.id = members.Text("run");
  header.session = members.Text("session");
  header.step = members.Integer("step");
  header.sequence = members.Integer("sequence");
  constexpr std::int64_t kMostRanks = std::int64_t{1} << 30;
  header.rank = static_cast<int>(members.Integer("rank", 0, kMostRanks));
  header.ranks = static_cast<int>(members.Integer("ranks", 1, kMostRanks));
  header.copy = members.Truth("copy");
  header.run = json.at("run_json");
  const std::int64_t most = kMostEndBytes / 8;
  const std::int64_t needs = members.Integer("needs", 0, most);
  const std::int64_t stored = members.Integer("stored", 0, most);
  const std::int64_t hashes = members.Integer("hashes", 0, most);
  const std::int64_t bytes = needs * static_cast<std::int64_t>(sizeof(LocalPiece)) +
                             (stored + hashes) * static_cast<std::int64_t>(sizeof(std::int64_t));
  if (bytes != std::ssize(tables)) throw Damaged(path, "its tables have another length");
  std::size_t at = 0;
  header.needs = Take<LocalPiece>(tables, at, needs);
  header.stored = Take<std::int64_t>(tables, at, stored);
  header.hashes = Take<std::uint64_t>(tables, at, hashes);
  for (const std::int64_t number : header.stored) {
    if (number < 0 || number >= needs) throw Damaged(path, "it stores what it does not name");
  }
  return header;
}

// ShareOut: the ranks of a host gather what they hold; a meeting rank per piece compares hosts.

// Pieces that this rank stores: the largest first, each goes to the holder with the fewest bytes.
std::set<LocalKey> StoredHere(const comm::Communicator& host,
                              const std::vector<LocalPiece>& needs) {
  struct Need {
    LocalPiece piece;
    int rank = 0;  // within the host
  };
  std::vector<Need> mine;
  for (const LocalPiece& piece : needs) mine.push_back({piece, host.Rank()});
  std::map<std::pair<std::int64_t, LocalKey>, std::vector<int>> holders;  // by bytes, negated
  for (const Need& need : comm::GatherAll(host, mine)) {
    holders[{-need.piece.bytes, need.piece.key}].push_back(need.rank);
  }
  std::vector<std::int64_t> loads(static_cast<std::size_t>(host.Size()));
  std::set<LocalKey> stored;
  for (const auto& [piece, ranks] : holders) {
    const int storer = *std::ranges::min_element(
        ranks, {}, [&](int rank) { return loads[static_cast<std::size_t>(rank)]; });
    loads[static_cast<std::size_t>(storer)] -= piece.first;
    if (storer == host.Rank()) stored.insert(piece.second);
  }
  return stored;
}

struct News {
  LocalKey key;
  int host = 0, rank = 0;  // rank: world rank of the sender
};

// Collective. The pieces in `stored` that no other host stores.
std::set<LocalKey> AloneHere(const comm::Communicator& world, int host,
                             const std::set<LocalKey>& stored) {
  std::vector<News> news;
  std::vector<int> to;
  for (const LocalKey& key : stored) {
    news.push_back({key, host, world.Rank()});
    to.push_back(key.Meets(world.Size()));
  }
  std::map<LocalKey, std::vector<News>> met;
  for (const News& one : Deliver(world, to, news)) met[one.key].push_back(one);
  news.clear();
  to.clear();
  for (const auto& [key, all] : met) {
    if (all.size() > 1) continue;  // on each host just one rank stores it
    news.push_back(all.front());
    to.push_back(all.front().rank);
  }
  std::set<LocalKey> alone;
  for (const News& one : Deliver(world, to, news)) alone.insert(one.key);
  return alone;
}

}  // namespace

LocalKey KeyOf(const char* file, const kernels::StateBlock& block) {
  const std::string text =
      fmt::format("{} {} {} {} {} {}", file, block.name, fmt::join(block.shape, "x"),
                  static_cast<int>(block.dtype), block.begin, block.end);
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return {hash.low64, hash.high64};
}

LocalShares ShareOut(const comm::Communicator& world, const comm::Communicator& host,
                     const LocalPlace& place, const State& state) {
  LocalShares shares;
  for (const auto& [file, blocks] :
       {std::pair{"model", &state.model}, std::pair{"optimizer", &state.optimizer}}) {
    for (const kernels::StateBlock& block : *blocks) {
      if (block.begin == block.end) continue;
      shares.needs.push_back({KeyOf(file, block), BytesOf(block.dtype, block.end - block.begin)});
      shares.blocks.push_back(&block);
    }
  }
  const std::set<LocalKey> stored = StoredHere(host, shares.needs);
  std::set<LocalKey> alone;
  if (place.hosts > 1) alone = AloneHere(world, place.host, stored);
  for (const bool copied : {true, false}) {
    for (std::size_t i = 0; i < shares.needs.size(); ++i) {
      const LocalKey& key = shares.needs[i].key;
      if (stored.contains(key) && alone.contains(key) == copied) shares.stored.push_back(i);
    }
    if (copied) shares.copied = shares.stored.size();
  }
  return shares;
}

std::vector<std::int64_t> PlacesOf(const LocalHeader& header) {
  std::vector<std::int64_t> places;
  std::int64_t at = 0, end = 0;
  for (const std::int64_t number : header.stored) {
    places.push_back(at);
    end = at + header.needs[static_cast<std::size_t>(number)].bytes;
    at = RoundUp(end, kLocalAlignment);
  }
  places.push_back(end);
  return places;
}

std::string NewLocalName() {
  std::random_device device;
  const auto half = [&] { return static_cast<std::uint64_t>(device()) & 0xffffffffU; };
  return fmt::format("{:08x}{:08x}", half(), half());
}

std::string FileName(const LocalName& name) {
  return fmt::format("{:08}.{}.{}", name.step, name.rank, name.copy ? "copy" : "part");
}

std::optional<LocalName> ParseFileName(const std::string& name) {
  LocalName parsed;
  std::string_view text = name;
  if (!ParseNumber(text, '.', parsed.step) || !ParseNumber(text, '.', parsed.rank)) {
    return std::nullopt;
  }
  parsed.copy = text == "copy";
  if (FileName(parsed) != name) return std::nullopt;
  return parsed;
}

std::string LocalFolder(const std::string& local, const std::string& id) {
  return local + "/trireme-" + id;
}

void MakeLocalFolder(const std::string& folder) {
  std::error_code ignored;
  fs::create_directories(fs::path(folder).parent_path(), ignored);
  if (::mkdir(folder.c_str(), kOwnFolder) != 0 && errno != EEXIST) {
    throw RunError(fmt::format("{}: cannot be created: {}", folder, ErrorText(errno)));
  }
  if (!IsOwnFolder(folder)) throw RunError(fmt::format("{}: is not a folder of this user", folder));
}

std::vector<std::string> ListLocal(const std::string& folder) {
  if (!IsOwnFolder(folder)) return {};
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator item(folder, error), end; !error && item != end;
       item.increment(error)) {
    names.push_back(item->path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

std::string EndOf(const LocalHeader& header) {
  std::string text;
  Append(text, header.needs);
  Append(text, header.stored);
  Append(text, header.hashes);
  End end;
  end.table_bytes = std::ssize(text);
  const nlohmann::json json = {{"run", header.id},
                               {"session", header.session},
                               {"step", header.step},
                               {"sequence", header.sequence},
                               {"rank", header.rank},
                               {"ranks", header.ranks},
                               {"copy", header.copy},
                               {"needs", header.needs.size()},
                               {"stored", header.stored.size()},
                               {"hashes", header.hashes.size()},
                               {"run_json", header.run}};
  text += json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  end.text_bytes = std::ssize(text) - end.table_bytes;
  end.hash = Hash(text.data(), std::ssize(text));
  text.append(reinterpret_cast<const char*>(&end), sizeof end);
  return text;
}

LocalHeader ReadLocalHeader(const std::string& folder, const LocalName& name) {
  const std::string path = folder + "/" + FileName(name);
  const PositionedFile file(path);
  const auto size = file.Size(), end_bytes = static_cast<std::int64_t>(sizeof(End));
  End end;
  if (size < end_bytes) throw Damaged(path, "it is cut off");
  file.Read(&end, end_bytes, size - end_bytes);
  const bool ours = end.magic == kMagic && end.table_bytes >= 0 && end.text_bytes >= 0 &&
                    end.table_bytes < kMostEndBytes && end.text_bytes < kMostEndBytes &&
                    end.table_bytes + end.text_bytes + end_bytes <= size;
  if (!ours) throw Damaged(path, "its end is damaged");
  const std::int64_t begin = size - end_bytes - end.table_bytes - end.text_bytes;
  std::string tables(static_cast<std::size_t>(end.table_bytes + end.text_bytes), '\0');
  file.Read(tables.data(), std::ssize(tables), begin);
  if (Hash(tables.data(), std::ssize(tables)) != end.hash) {
    throw Damaged(path, "the hash of its tables differs");
  }
  const std::string text = tables.substr(static_cast<std::size_t>(end.table_bytes));
  tables.resize(static_cast<std::size_t>(end.table_bytes));
  LocalHeader header = Parse(path, tables, text);
  if (header.step != name.step || header.rank != name.rank || header.copy != name.copy) {
    throw Damaged(path, "it is not the file that its name says");
  }
  const std::int64_t data = PlacesOf(header).back();
  if (data != begin || std::ssize(header.hashes) != CeilDivide(data, kSegmentBytes)) {
    throw Damaged(path, "its data has another length");
  }
  return header;
}

std::string WhyDamaged(const std::string& path, const LocalHeader& header) {
  try {
    const PositionedFile file(path);
    const std::int64_t data = PlacesOf(header).back();
    std::vector<char> buffer(static_cast<std::size_t>(std::min(data, kSegmentBytes)));
    for (std::size_t i = 0; i < header.hashes.size(); ++i) {
      const std::int64_t offset = static_cast<std::int64_t>(i) * kSegmentBytes;
      const std::int64_t bytes = std::min(kSegmentBytes, data - offset);
      file.Read(buffer.data(), bytes, offset);
      if (Hash(buffer.data(), bytes) != header.hashes[i]) {
        return fmt::format("{}: the hash at byte {} differs", path, offset);
      }
    }
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace trireme::checkpoint
