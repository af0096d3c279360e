// Preflight: what could spoil a job before it begins, found on all ranks and told once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/base/dtype.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/comm/hosts.hpp"
#include "trireme/device/stream.hpp"

namespace trireme::tools {

// Facts of one host, from Linux's files: network devices, file systems, limits, processors.

// Folders in which Linux describes the host; tests have their own.
struct Roots {
  std::string sys = "/sys";
  std::string proc = "/proc";
};

// Network devices that are up.
struct Devices {
  std::vector<std::string> infiniband;  // "mlx5_0 InfiniBand 200 Gb/sec (4X HDR)"; RoCE too
  std::vector<std::string> slingshot;   // "cxi0"
  std::vector<std::string> ethernet;    // "eth0 10 Gbit/s"
  bool Fast() const { return !infiniband.empty() || !slingshot.empty(); }
  std::string Text() const;  // at most a few names of each kind
};
Devices FindDevices(const Roots& roots);

// A sentence if the card on PCI address `address` hangs on another NUMA node than all of `cores`,
// or if the network cards that `chosen` names (UCX_NET_DEVICES: "mlx5_0:1,mlx5_1:1") hang on others
// while one of the card's own is there; empty: all well, or not known.
std::string FarCard(const std::string& address, std::span<const int> cores, std::string_view chosen,
                    const Roots& roots);

// Ways of MPI between hosts. library: MPI_Get_library_version; objects: file names of the loaded
// shared objects, among which Open MPI's components are (mca_pml_ob1.so); environment: a lookup.
struct Fabric {
  std::string library;     // "Open MPI 4.1.4", "MPICH 4.0.2"
  std::string transports;  // "pml ob1, btl self tcp vader", "ch4:ofi"; empty: not known
  bool tcp = false;        // between hosts, and nothing faster
};
using Lookup = const char* (*)(const char*);
Fabric FabricOf(const std::string& library, std::span<const std::string> objects,
                Lookup environment);
std::vector<std::string> LoadedObjects();  // file names without folders

// File system of a path, or of the nearest folder above it that exists.
struct FileSystem {
  std::string type;      // "lustre", "nfs", "ext4"; "type 0x1234" if it has no name here
  std::string striping;  // "4 stripes of 1 MiB"; empty: none, or not known
  bool shared = false;   // by many hosts, as its type says
  bool network_file_system = false;  // NFS
  std::uint64_t identity = 0;        // of the very place, for local types
  std::string Text() const;
};
FileSystem FileSystemOf(const std::string& path);
// Text of Lustre's attribute "lustre.lov"; empty if its form is not known.
std::string StripingOf(std::string_view attribute);

// Limits of this process and its node; -1: none.
struct Limits {
  std::int64_t locked_bytes = -1, open_files = -1, core_bytes = -1;
  std::int64_t shm_bytes = 0, shm_free = 0;  // of /dev/shm; 0: there is none
  std::string Text() const;
};
Limits ReadLimits();

// Numbers of the hardware threads that a job on this host may use: of its control group, else all.
std::vector<int> OnlineCores(const Roots& roots);

// "0-3,8"
std::string RangesOf(std::span<const int> numbers);

// Tally: what many ranks found, told compactly: each text once, with how many said it and the first
// of them.

class Tally {
 public:
  static constexpr std::size_t kMostTexts = 16;   // of a topic; the others are counted together
  static constexpr std::size_t kMostRanks = 8;    // named for a text
  static constexpr std::size_t kMostBytes = 400;  // of a text

  struct Said {
    std::string text;        // empty: all texts beyond kMostTexts
    std::int64_t count = 0;  // of ranks, or of nodes if only their first ranks speak
    std::vector<int> ranks;  // the lowest, rising
  };

  // Control characters of the text become spaces; a long one is cut.
  void Add(std::string_view topic, std::string_view text, int rank);
  void Merge(const Tally& other);

  const std::vector<Said>& Of(std::string_view topic) const;  // the most frequent first
  // Texts of the topic: the only one, or the most frequent with "and 2 others"; empty: none.
  std::string Text(std::string_view topic) const;
  const std::map<std::string, std::vector<Said>, std::less<>>& Topics() const { return topics_; }

  std::string Pack() const;  // for Unpack
  static Tally Unpack(const std::string& packed);

 private:
  void Put(const std::string& topic, Said said);
  std::map<std::string, std::vector<Said>, std::less<>> topics_;
};

// Collective. The tallies of all ranks on rank 0, along a binomial tree: no rank receives more than
// log2(ranks) messages, of a size that does not grow with the number of ranks. Elsewhere a part.
Tally MergeOnRoot(const comm::Communicator& group, Tally mine);

// Ranks of the job, and those that share this host.
struct Ranks {
  const comm::Communicator& world;
  const comm::Communicator& node;
  const comm::Hosts& hosts;
};

// Things that this rank is to look at.
struct Subject {
  std::string output;             // run folder; need not exist; empty: none is written
  std::vector<std::string> data;  // token files; the first ones
  std::vector<int> cores;         // hardware threads that the launcher gave this rank
  int threads = 1;                // of this rank
  std::string card;               // PCI address of its GPU; empty: the CPU computes
  Roots roots = {};
};

struct Warning {
  std::string kind;  // "clock", "fabric", "limits", ...: a word for readers of the records
  std::string text;  // a sentence, with hosts if there are several
};

// Complete on rank 0; elsewhere only the seconds.
struct Findings {
  // Facts by name: ("MPI", "Open MPI 4.1.4, pml ob1, btl self tcp vader").
  std::vector<std::pair<std::string, std::string>> facts;
  std::vector<Warning> warnings;
  double seconds = 0;  // taken by the look
};

// Collective. Takes milliseconds: each rank looks at its own host, and the findings meet on a tree.
// whole: also what a start does not need, for the task preflight.
Findings LookAround(const Ranks& ranks, const Subject& subject, bool whole = false);

// Cores of a node's ranks.
struct Binding {
  std::string text;     // "2 ranks on cores 0-1 together"
  std::string overlap;  // a sentence if ranks share some of their cores but not all; else empty
  std::string crowded;  // a sentence if there are more threads than cores
  std::string idle;     // a sentence if the ranks may use less than half of the node's cores
};
// cores, threads: [ranks of the node]; online: cores of the node that the job may use at all.
Binding BindingOf(const std::vector<std::vector<int>>& cores, std::span<const int> threads,
                  std::span<const int> online);

// Collective. Seconds by which some two clocks provably differ; 0 if none do. Every rank enters a
// barrier before any leaves it: an entry dated after an exit proves a difference of at least that
// much. ahead, behind: ranks of such clocks. now: the wall clock of this host, in seconds.
struct ClockSkew {
  double seconds = 0;
  int ahead = 0, behind = 0;
};
ClockSkew CompareWallClocks(const comm::Communicator& world, double (*now)());

// Names of the hosts of these ranks, each once: "a, b", "a, b, c, d and others".
std::string NameHosts(std::span<const int> ranks, const comm::Hosts& hosts);

// Hash of the program's file, and its size: "1f0c… (8,036,200 bytes)"; empty if it cannot be read.
// Collective over a node, whose ranks read the file once if it is the same.
std::string ProgramFile(const comm::Communicator& node);

// Speeds of nodes, measured as training will use them: matrix products, memory, network.

enum Quantity : std::size_t {
  kProduct,   // of the node's slowest rank, all ranks at work, FLOP/s
  kMemory,    // of all ranks of the node at once, bytes/s
  kPairs,     // both ways with one other node at a time, the median over partners, bytes/s
  kTogether,  // both ways, all ranks of all nodes at once across the middle of the job, bytes/s
  kQuantities
};
struct QuantityName {
  const char* name;   // in records: "product"
  const char* title;  // on the screen
  const char* unit;   // of what is shown
  double scale;       // a shown unit
};
inline constexpr std::array<QuantityName, kQuantities> kQuantityNames = {
    {{"product", "matrix product, a rank", "GFLOP/s", 1e9},
     {"memory", "memory", "GB/s", 1e9},
     {"pairs", "network in pairs", "GB/s", 1e9},
     {"together", "network, all together", "GB/s", 1e9}}};

// Measured values of one unit: a node or, on a single host, a rank. 0: not measured.
struct Unit {
  std::array<double, kQuantities> values{};
  double worst_pair = 0;            // bytes/s
  std::int64_t rank = 0;            // world rank of its first rank
  std::int64_t slowest = 0;         // world rank with the slowest product
  std::int64_t worst_partner = -1;  // number of the unit at the other end of the worst pair
  std::int64_t wrong = 0;           // ranks whose product was not finite or not the same twice
};

struct Measured {
  bool of_ranks = false;    // units are ranks of one host
  std::vector<Unit> units;  // on rank 0
  double all_reduce = 0;    // bytes/s that each rank gets summed over all ranks; on rank 0
  double seconds = 0;       // taken by measuring
};

// Collective. Takes seconds, whatever the number of nodes. Units that a first pass finds slow are
// measured once more, and the better value counts.
Measured Measure(const comm::Communicator& world, const comm::Communicator& node,
                 const device::Stream& stream, Dtype dtype);

// A unit that is more than kSlow slower than the median.
inline constexpr double kSlow = 0.05;
struct Slow {
  std::size_t unit = 0;
  Quantity quantity = kProduct;
  double value = 0, median = 0;
};
// Slow units, the slowest first, for each quantity in turn. The median of two is the faster.
std::vector<Slow> FindSlow(const std::vector<Unit>& units);
double Median(const std::vector<Unit>& units, Quantity quantity);

// Partner of `self` in a round of a tournament of `players`, in which each meets each other once;
// -1: it pauses. Rounds are numbered from 0 to Rounds(players) - 1.
int Rounds(int players);
int Partner(int self, int round, int players);
// The rounds that are played: all, or a bounded number spread over them.
std::vector<int> ChosenRounds(int players);

// Report of the task preflight: a bounded number of lines for people, an object for programs.

struct Report {
  std::string program;  // "Trireme 0.1.0 (3f2a9c1)"
  int ranks = 1;
  comm::Hosts hosts;
  Findings findings = {};
  Measured measured = {};  // no units: nothing was measured
};

// Lines for the screen: facts, extremes of what was measured, slow nodes, warnings. Their number
// does not grow with that of the nodes.
std::vector<std::string> LinesOf(const Report& report);

// preflight.json. Values of each node as long as there are no more than 1,024.
std::string JsonOf(const Report& report);

// Sentences on slow nodes and wrong products, the worst first, at most `most`; then their number.
std::vector<std::string> SlowSentences(const Report& report, std::size_t most);

}  // namespace trireme::tools
