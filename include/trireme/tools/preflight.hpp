// Preflight: what could spoil a job before it begins, found on all ranks and told once.
#ifndef TRIREME_TOOLS_PREFLIGHT_HPP_
#define TRIREME_TOOLS_PREFLIGHT_HPP_

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/comm/hosts.hpp"
#include "trireme/tools/system.hpp"
#include "trireme/tools/tally.hpp"

namespace trireme::tools {

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

}  // namespace trireme::tools

#endif  // TRIREME_TOOLS_PREFLIGHT_HPP_
