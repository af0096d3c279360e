// Preflight: finds, on all ranks, what could spoil a job before it begins, and tells it once.
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

// Facts about one host, from Linux's files: network devices, file systems, limits, processors.

// Folders in which Linux describes the host; tests use folders of their own.
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
  std::string Text() const;  // lists at most a few names of each kind
};
Devices FindDevices(const Roots& roots);

// A warning if none of `cores` is on the NUMA node of the GPU at PCI address `address`, or if that
// node has a network card but `chosen` (UCX_NET_DEVICES: "mlx5_0:1,mlx5_1:1") names only cards on
// other nodes. Empty: all well, or not known.
std::string FarCard(const std::string& address, std::span<const int> cores, std::string_view chosen,
                    const Roots& roots);

// What MPI uses between hosts. library: from MPI_Get_library_version; objects: files of loaded
// shared objects, such as Open MPI's components (mca_pml_ob1.so); environment: as std::getenv.
struct Fabric {
  std::string library;     // "Open MPI 4.1.4", "MPICH 4.0.2"
  std::string transports;  // "pml ob1, btl self tcp", "ch4:ofi"; empty: not known
  bool tcp = false;        // nothing faster than TCP is used between hosts
};
using Lookup = const char* (*)(const char*);
Fabric FabricOf(const std::string& library, std::span<const std::string> objects,
                Lookup environment);
std::vector<std::string> LoadedObjects();  // names of their files; the program's own is empty

// The file system of a path or, if the path does not exist, of its nearest existing parent.
struct FileSystem {
  std::string type;      // "lustre", "nfs", "ext4"; "type 0x1234" if we have no name for it
  std::string striping;  // "4 stripes of 1 MiB"; empty: none, or not known
  bool shared = false;   // shared by many hosts, judging by its type
  bool network_file_system = false;  // NFS
  std::uint64_t identity = 0;        // identifies the folder; 0: shared, or not known
  std::string Text() const;
};
FileSystem FileSystemOf(const std::string& path);
// Describes the value of Lustre's attribute "lustre.lov"; empty if its format is not known.
std::string StripingOf(std::string_view attribute);

// Limits of this process and its node; -1: no limit.
struct Limits {
  std::int64_t locked_bytes = -1, open_files = -1, core_bytes = -1;
  std::int64_t shm_bytes = 0, shm_free = 0;  // size and free space of /dev/shm; 0: there is none
  std::string Text() const;
};
Limits ReadLimits();

// Hardware threads that a job on this host may use: those of its control group, else all.
std::vector<int> OnlineCores(const Roots& roots);

// Numbers as ranges: "0-3,8".
std::string RangesOf(std::span<const int> numbers);

// Tally: combines the reports of many ranks. Keeps each text once, with the number of ranks that
// gave it and the lowest of them.

class Tally {
 public:
  static constexpr std::size_t kMostTexts = 16;   // kept per topic; others are counted together
  static constexpr std::size_t kMostRanks = 8;    // listed per text
  static constexpr std::size_t kMostBytes = 400;  // per text

  struct Said {
    std::string text;        // empty: stands for all texts beyond kMostTexts
    std::int64_t count = 0;  // of ranks, or of nodes if only each node's first rank reports
    std::vector<int> ranks;  // the lowest ones, ascending
  };

  // Adds a text of `rank`. Control characters become spaces; a long text is cut.
  void Add(std::string_view topic, std::string_view text, int rank);
  void Merge(const Tally& other);

  const std::vector<Said>& Of(std::string_view topic) const;  // most frequent first
  // The topic's only text, or the most frequent one with "and 2 others"; empty: none.
  std::string Text(std::string_view topic) const;
  const std::map<std::string, std::vector<Said>, std::less<>>& Topics() const { return topics_; }

  std::string Pack() const;  // text that Unpack turns back into a tally
  static Tally Unpack(const std::string& packed);

 private:
  void Put(const std::string& topic, Said said);
  std::map<std::string, std::vector<Said>, std::less<>> topics_;
};

// Collective. Merges all ranks' tallies on rank 0 along a binomial tree: a rank receives at most
// log2(ranks) messages, rounded up, each of bounded size. Other ranks return a part of the whole.
Tally MergeOnRoot(const comm::Communicator& group, Tally mine);

// The ranks of the job, and those on this host.
struct Ranks {
  const comm::Communicator& world;
  const comm::Communicator& node;
  const comm::Hosts& hosts;
};

// What this rank is to inspect.
struct Subject {
  std::string output;             // run folder, which need not exist; empty: none is written
  std::vector<std::string> data;  // paths of token files; the first ones if there are many
  std::vector<int> cores;         // hardware threads that the launcher gave this rank
  int threads = 1;                // threads of this rank
  std::string card;               // PCI address of its GPU; empty: the CPU computes
  Roots roots = {};
};

struct Warning {
  std::string kind;  // "clock", "fabric", "limits", ...: a word for readers of the records
  std::string text;  // a sentence, with hosts if there are several
};

// Complete on rank 0; other ranks have only `seconds`.
struct Findings {
  // Name and text of a fact: ("MPI", "Open MPI 4.1.4, pml ob1, btl self tcp").
  std::vector<std::pair<std::string, std::string>> facts;
  std::vector<Warning> warnings;
  double seconds = 0;  // time that the inspection took
};

// Collective. Inspects each rank's host and merges the findings along a tree; takes milliseconds.
// whole: true for the task preflight, which also inspects what a start does not need.
Findings LookAround(const Ranks& ranks, const Subject& subject, bool whole = false);

// How the ranks of a node are bound to cores.
struct Binding {
  std::string text;     // "2 ranks on cores 0-1 together, 1 thread each"
  std::string overlap;  // a warning if ranks share some of their cores but not all; else empty
  std::string crowded;  // a warning if there are more threads than cores; else empty
  std::string idle;     // a warning if ranks may use less than half of the cores; else empty
};
// cores, threads: [ranks of the node]; online: all cores of the node that the job may use.
Binding BindingOf(const std::vector<std::vector<int>>& cores, std::span<const int> threads,
                  std::span<const int> online);

// Collective. Seconds by which two wall clocks provably differ; 0 if none do. Every rank enters a
// barrier before any leaves it, so an entry dated after an exit proves a difference of at least
// that much. ahead, behind: the ranks with these clocks. now: this host's clock, in seconds.
struct ClockSkew {
  double seconds = 0;
  int ahead = 0, behind = 0;
};
ClockSkew CompareWallClocks(const comm::Communicator& world, double (*now)());

// Names of the ranks' hosts, each once: "a, b", "a, b, c, d and others".
std::string NameHosts(std::span<const int> ranks, const comm::Hosts& hosts);

// Collective over a node. Hash and size of the program's file: "1f0c… (8036200 bytes)"; empty if it
// cannot be read. If all ranks run the same file, only one of them reads it.
std::string ProgramFile(const comm::Communicator& node);

// Speeds of nodes, measured as training will use them: matrix products, memory, network.

enum Quantity : std::size_t {
  kProduct,   // FLOP/s of the node's slowest rank while all ranks compute
  kMemory,    // bytes/s of all ranks of the node at once
  kPairs,     // bytes/s in both directions with one other node at a time; median over partners
  kTogether,  // bytes/s in both directions; all ranks of all nodes at once, each with a rank half
              // the job away
  kQuantities
};
struct QuantityName {
  const char* name;   // in records: "product"
  const char* title;  // on the screen
  const char* unit;   // in which values are shown
  double scale;       // the shown unit in FLOP/s or bytes/s
};
inline constexpr std::array<QuantityName, kQuantities> kQuantityNames = {
    {{"product", "matrix product, a rank", "GFLOP/s", 1e9},
     {"memory", "memory", "GB/s", 1e9},
     {"pairs", "network in pairs", "GB/s", 1e9},
     {"together", "network, all together", "GB/s", 1e9}}};

// Measured values of one unit: a node or, if there is only one host, a rank. 0: not measured.
struct Unit {
  std::array<double, kQuantities> values{};
  double worst_pair = 0;            // slowest kPairs value, bytes/s
  std::int64_t rank = 0;            // world rank of its first rank
  std::int64_t slowest = 0;         // world rank whose product is slowest
  std::int64_t worst_partner = -1;  // index of the other unit of the worst pair
  std::int64_t wrong = 0;  // number of ranks whose product was not finite or differed when repeated
};

struct Measured {
  bool of_ranks = false;    // true: units are ranks of one host; false: nodes
  std::vector<Unit> units;  // on rank 0
  double all_reduce = 0;    // bytes/s of an all-reduce over all ranks; on rank 0
  double seconds = 0;       // time that measuring took
};

// Collective. Takes seconds for any number of nodes. If a first pass finds slow units, all are
// measured once more, and each unit's better value counts.
Measured Measure(const comm::Communicator& world, const comm::Communicator& node,
                 const device::Stream& stream, Dtype dtype);

// A unit is slow if it is more than this fraction below the median.
inline constexpr double kSlow = 0.05;
struct Slow {
  std::size_t unit = 0;
  Quantity quantity = kProduct;
  double value = 0, median = 0;
};
// Slow units of each quantity in turn, the slowest first. The median of two is the faster one.
std::vector<Slow> FindSlow(const std::vector<Unit>& units);
double Median(const std::vector<Unit>& units, Quantity quantity);

// A tournament in which each of `players` meets each other once, in rounds 0 to Rounds(players) -
// 1. Partner: whom `self` meets in a round; -1: it pauses.
int Rounds(int players);
int Partner(int self, int round, int players);
// The rounds to play: all, or a bounded number of them, evenly spread.
std::vector<int> ChosenRounds(int players);

// Report of the task preflight: a bounded number of lines for people, a JSON object for programs.

struct Report {
  std::string program;  // "Trireme 0.1.0 (3f2a9c1)"
  int ranks = 1;
  comm::Hosts hosts;
  Findings findings = {};
  Measured measured = {};  // without units: nothing was measured
};

// Lines for the screen: facts, extremes of the measured values, slow nodes, warnings. Their number
// does not grow with the number of nodes.
std::vector<std::string> LinesOf(const Report& report);

// Text of preflight.json. Lists values of each node if there are at most 1,024 nodes.
std::string JsonOf(const Report& report);

// At most `most` sentences on slow nodes and wrong products, worst first; then how many remain.
std::vector<std::string> SlowSentences(const Report& report, std::size_t most);

}  // namespace trireme::tools
