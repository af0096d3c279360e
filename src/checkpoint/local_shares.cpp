// ShareOut: holders on a host by a gathering there, holders on other hosts by a meeting.
#include "local_shares.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "rendezvous.hpp"
#include "trireme/comm/gather_all.hpp"

namespace trireme::checkpoint {

namespace {

// A piece, and the ranks of a host that hold it.
struct Held {
  LocalKey key;
  std::int64_t bytes = 0;
  std::vector<int> holders;  // ranks of the host
};

// Pieces that the ranks of a host hold, the largest first.
std::vector<Held> HeldOn(const comm::Communicator& host, const std::vector<LocalPiece>& needs) {
  struct Need {
    LocalPiece piece;
    int rank = 0;  // of the host
  };
  std::vector<Need> mine;
  for (const LocalPiece& piece : needs) mine.push_back({piece, host.Rank()});
  std::map<LocalKey, Held> held;
  for (const Need& need : comm::GatherAll(host, mine)) {
    Held& one = held[need.piece.key];
    one.key = need.piece.key;
    one.bytes = need.piece.bytes;
    one.holders.push_back(need.rank);
  }
  std::vector<Held> list;
  for (auto& [key, one] : held) list.push_back(std::move(one));
  std::ranges::sort(list, [](const Held& a, const Held& b) {
    return std::tuple(b.bytes, a.key) < std::tuple(a.bytes, b.key);
  });
  return list;
}

// Pieces that this rank stores: each goes to the holder with the least so far.
std::set<LocalKey> StoredHere(const comm::Communicator& host,
                              const std::vector<LocalPiece>& needs) {
  std::vector<std::int64_t> loads(static_cast<std::size_t>(host.Size()));
  std::set<LocalKey> stored;
  for (const Held& one : HeldOn(host, needs)) {
    const int storer = *std::ranges::min_element(
        one.holders, {}, [&](int rank) { return loads[static_cast<std::size_t>(rank)]; });
    loads[static_cast<std::size_t>(storer)] += one.bytes;
    if (storer == host.Rank()) stored.insert(one.key);
  }
  return stored;
}

struct News {
  LocalKey key;
  int host = 0, rank = 0;  // world rank of the sender
};

// Collective. Pieces among `stored` that no other host stores.
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
    if (all.size() > 1) continue;  // one rank of each host stores it
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
      const auto size = static_cast<std::int64_t>(SizeOf(block.dtype));
      shares.needs.push_back({KeyOf(file, block), (block.end - block.begin) * size});
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

}  // namespace trireme::checkpoint
