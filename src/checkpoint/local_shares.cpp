// ShareOut: holders on a host by a gathering there, holders on other hosts by a meeting.
#include "local_shares.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "rendezvous.hpp"

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
  std::string mine(needs.size() * sizeof(LocalPiece), '\0');
  std::memcpy(mine.data(), needs.data(), mine.size());
  std::map<LocalKey, Held> held;
  int rank = 0;
  for (const std::string& text : host.Gather(mine)) {
    std::vector<LocalPiece> pieces(text.size() / sizeof(LocalPiece));
    std::memcpy(static_cast<void*>(pieces.data()), text.data(), text.size());
    for (const LocalPiece& piece : pieces) {
      Held& one = held[piece.key];
      one.key = piece.key;
      one.bytes = piece.bytes;
      one.holders.push_back(rank);
    }
    ++rank;
  }
  std::vector<Held> list;
  for (auto& [key, one] : held) list.push_back(std::move(one));
  std::ranges::sort(list, [](const Held& a, const Held& b) {
    return std::tuple(b.bytes, a.key) < std::tuple(a.bytes, b.key);
  });
  return list;
}

// Pieces that this rank stores: each goes to the holder with the least so far.
std::map<LocalKey, bool> StoredHere(const comm::Communicator& host,
                                    const std::vector<LocalPiece>& needs) {
  std::vector<std::int64_t> loads(static_cast<std::size_t>(host.Size()));
  std::map<LocalKey, bool> stored;
  for (const Held& one : HeldOn(host, needs)) {
    const int storer = *std::ranges::min_element(
        one.holders, {}, [&](int rank) { return loads[static_cast<std::size_t>(rank)]; });
    loads[static_cast<std::size_t>(storer)] += one.bytes;
    if (storer == host.Rank()) stored[one.key] = true;
  }
  return stored;
}

struct News {
  LocalKey key;
  int host = 0, rank = 0;  // world rank of the sender
};

// Collective. Pieces among `stored` that no other host stores.
std::map<LocalKey, bool> AloneHere(const comm::Communicator& world, int host,
                                   const std::map<LocalKey, bool>& stored) {
  std::vector<News> news;
  std::vector<int> to;
  for (const auto& [key, yes] : stored) {
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
  std::map<LocalKey, bool> alone;
  for (const News& one : Deliver(world, to, news)) alone[one.key] = true;
  return alone;
}

}  // namespace

LocalKey KeyOf(const char* file, const tensor::StateBlock& block) {
  const std::string text =
      fmt::format("{} {} {} {} {} {}", file, block.name, fmt::join(block.shape, "x"),
                  static_cast<int>(block.dtype), block.begin, block.end);
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return {hash.low64, hash.high64};
}

LocalShares ShareOut(const comm::Communicator& world, const comm::Communicator& host,
                     const LocalPlace& place, const State& state) {
  LocalShares shares;
  for (const char* file : {"model", "optimizer"}) {
    const bool model = file[0] == 'm';
    for (const tensor::StateBlock& block : model ? state.model : state.optimizer) {
      if (block.begin == block.end) continue;
      const auto size = static_cast<std::int64_t>(SizeOf(block.dtype));
      shares.needs.push_back({KeyOf(file, block), (block.end - block.begin) * size});
      shares.blocks.push_back(&block);
    }
  }
  const std::map<LocalKey, bool> stored = StoredHere(host, shares.needs);
  std::map<LocalKey, bool> alone;
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
