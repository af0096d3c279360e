// One file of a local checkpoint: what a rank stores for its host ("part"), or its partner's copy
// of some of that ("copy").
//
// Layout, in the machine's byte order (little-endian):
//   data    the stored pieces, each at a multiple of 64 bytes; a copy holds the first of them
//   tables  needs: 128-bit key, bytes; stored: indices of needs; XXH3 of each 4 MiB of the data
//   text    JSON: run, session, step, rank, ranks, sequence, counts of the tables, run.json
//   end     "TRIRLOC1", bytes of the tables, bytes of the text, XXH3 of both
// The end is last because hashes are known only once the data is written.
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

// The places of ranks on hosts, and the partner that keeps the copy of a rank's local checkpoint.

// One rank's view. Hosts are numbered by first rank; the last host's partner is the first host.
struct LocalPlace {
  int host = 0, hosts = 1;  // number of the rank's host; number of hosts
  std::vector<int> ranks;   // world ranks of that host, ascending
  int partner = -1;         // world rank on the next host; -1: there is only one host
};

// hosts: name of each world rank's host. A rank's partner has the same index on the next host,
// modulo that host's number of ranks.
LocalPlace PlaceOf(const comm::Hosts& hosts, int rank);

// Shares of a local checkpoint: which rank of a host stores each piece, and which pieces no other
// host holds, so that a partner must keep a copy.

// A 128-bit name of a piece of state, the same on all ranks that hold the same elements.
struct LocalKey {
  std::uint64_t low = 0, high = 0;
  auto operator<=>(const LocalKey&) const = default;
  // The rank at which information on this piece comes together.
  int Meets(int ranks) const { return static_cast<int>(low % static_cast<std::uint64_t>(ranks)); }
};
// file: "model" or "optimizer".
LocalKey KeyOf(const char* file, const kernels::StateBlock& block);

struct LocalPiece {
  LocalKey key;
  std::int64_t bytes = 0;
};

struct LocalShares {
  std::vector<LocalPiece> needs;                   // all pieces that this rank holds, model first
  std::vector<const kernels::StateBlock*> blocks;  // the block of each piece in `needs`
  // Indices in `needs` of the pieces that this rank stores for its host; the first `copied` of them
  // are also stored by the partner.
  std::vector<std::size_t> stored;
  std::size_t copied = 0;
};

// Collective. host: the ranks of this rank's host, in order. On each host every piece is stored by
// one of the ranks that hold it, chosen to balance bytes. The state must outlive the result.
LocalShares ShareOut(const comm::Communicator& world, const comm::Communicator& host,
                     const LocalPlace& place, const State& state);

inline constexpr std::int64_t kLocalAlignment = 64;  // bytes, of the start of a piece

struct LocalHeader {
  std::string id;       // of the run
  std::string session;  // the session that wrote it
  std::int64_t step = 0;
  std::int64_t sequence = 0;  // of the last run-folder checkpoint before it
  int rank = 0, ranks = 1;    // world rank whose state it is; size of the world
  bool copy = false;          // true: the partner's copy
  nlohmann::json run;         // run.json
  std::vector<LocalPiece> needs;
  std::vector<std::int64_t> stored;  // indices in `needs`, in the order of the data
  std::vector<std::uint64_t> hashes;
};

// Start of each stored piece in the data, and the end of the last one: [stored + 1].
std::vector<std::int64_t> PlacesOf(const LocalHeader& header);

struct LocalName {
  std::int64_t step = 0;
  int rank = 0;
  bool copy = false;
};
std::string FileName(const LocalName& name);                      // "00000012.3.part"
std::optional<LocalName> ParseFileName(const std::string& name);  // nullopt for any other name
inline constexpr const char* kLocalTemporary = ".tmp";

// A run's folder below checkpoint.local: "trireme-0123456789abcdef".
std::string LocalFolder(const std::string& local, const std::string& id);
// Makes that folder, accessible to this user only. Throws RunError.
void MakeLocalFolder(const std::string& folder);
// Names in that folder, temporary files included; empty if it does not exist or belongs to another
// user.
std::vector<std::string> ListLocal(const std::string& folder);

// The bytes that follow the data: tables, text and end.
std::string EndOf(const LocalHeader& header);
// Throws InputError if the file is truncated, damaged, or not what its name says.
LocalHeader ReadLocalHeader(const std::string& folder, const LocalName& name);
// Reads the data and compares its hashes. Returns a sentence on the first difference; empty: there
// is none.
std::string WhyDamaged(const std::string& path, const LocalHeader& header);

}  // namespace trireme::checkpoint
