// One file of a local checkpoint: what a rank stores for its host ("part"), or what its partner
// keeps of that ("copy").
//
// Layout, in the machine's byte order (little-endian):
//   data    the stored pieces, each from a multiple of 64 bytes on; a copy holds the first ones
//   tables  needs: 128-bit key, bytes; stored: numbers of needs; XXH3 of each 4 MiB of the data
//   text    JSON: run, session, step, rank, ranks, sequence, counts of the tables, run.json
//   end     "TRIRLOC1", bytes of the tables, bytes of the text, XXH3 of both
// The end stands last, since hashes are known once the data is written.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/json.hpp"
#include "trireme/checkpoint/writer.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/comm/hosts.hpp"
#include "trireme/kernels/registry.hpp"

namespace trireme::checkpoint {

// Places of ranks on hosts, and partners: who keeps the copy of whose local checkpoint.

// One rank's view. Hosts are numbered by their first ranks; the last one's partner is the first.
struct LocalPlace {
  int host = 0, hosts = 1;  // number of the rank's host; their count
  std::vector<int> ranks;   // world ranks of that host, ascending
  int partner = -1;         // world rank on the next host; -1: there is one host alone
};

// hosts: name of each world rank's host. A rank's partner has the same place on the next host,
// modulo its number of ranks.
LocalPlace PlaceOf(const comm::Hosts& hosts, int rank);

// Shares of a local checkpoint: which rank of a host stores what its ranks hold, and what of that
// is held on no other host, so that a partner must keep a copy of it.

// Name of a piece of state, of 128 bits: the same on all ranks that hold the same elements.
struct LocalKey {
  std::uint64_t low = 0, high = 0;
  auto operator<=>(const LocalKey&) const = default;
  // The rank at which news of this piece meets.
  int Meets(int ranks) const { return static_cast<int>(low % static_cast<std::uint64_t>(ranks)); }
};
// file: "model" or "optimizer".
LocalKey KeyOf(const char* file, const kernels::StateBlock& block);

struct LocalPiece {
  LocalKey key;
  std::int64_t bytes = 0;
};

struct LocalShares {
  std::vector<LocalPiece> needs;                   // all that this rank holds, model first
  std::vector<const kernels::StateBlock*> blocks;  // of the state, as needs
  // Needs that this rank stores for its host, by number; the first `copied` of them for the partner
  // as well.
  std::vector<std::size_t> stored;
  std::size_t copied = 0;
};

// Collective. host: the ranks of this rank's host, in their order. Each piece is stored by one of
// its holders on each host, so that they have equal amounts. The state must outlive the result.
LocalShares ShareOut(const comm::Communicator& world, const comm::Communicator& host,
                     const LocalPlace& place, const State& state);

inline constexpr std::int64_t kLocalAlignment = 64;  // bytes, of a piece

struct LocalHeader {
  std::string id;             // of the run
  std::string session;        // writer's
  std::int64_t step = 0;      //
  std::int64_t sequence = 0;  // of the last checkpoint of the run folder before it
  int rank = 0, ranks = 1;    // owner of the state; size of the world
  bool copy = false;          // kept by the partner
  nlohmann::json run;         // run.json
  std::vector<LocalPiece> needs;
  std::vector<std::int64_t> stored;  // numbers of needs, in the order of the data
  std::vector<std::uint64_t> hashes;
};

// Starts of the stored pieces in the data, and the end of the last one: [stored + 1].
std::vector<std::int64_t> PlacesOf(const LocalHeader& header);

struct LocalName {
  std::int64_t step = 0;
  int rank = 0;
  bool copy = false;
};
std::string FileName(const LocalName& name);                      // "00000012.3.part"
std::optional<LocalName> ParseFileName(const std::string& name);  // exactly such a name
inline constexpr const char* kLocalTemporary = ".tmp";

// Folder of a run's files below checkpoint.local: "trireme-0123456789abcdef".
std::string LocalFolder(const std::string& local, const std::string& id);
// Makes that folder, for this user alone. Throws RunError.
void MakeLocalFolder(const std::string& folder);
// Names in it, those of temporary files too; none if there is no such folder, or it is another
// user's.
std::vector<std::string> ListLocal(const std::string& folder);

// All that follows the data.
std::string EndOf(const LocalHeader& header);
// Throws InputError for a file that is cut, damaged, or not what its name says.
LocalHeader ReadLocalHeader(const std::string& folder, const LocalName& name);
// Reads the data and compares its hashes: the first place that differs, in a sentence; empty: none
// does.
std::string WhyDamaged(const std::string& path, const LocalHeader& header);

}  // namespace trireme::checkpoint
