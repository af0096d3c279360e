// Meter: the energy that a job's nodes use, from counters that a user may read: pm_counters of Cray
// nodes, RAPL for processors, NVML for cards.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/communicator.hpp"

namespace trireme::report {

// Where the counters are found, and when they are read; tests use their own values.
struct Places {
  std::string root;                        // prefix of /sys
  std::string nvml = "libnvidia-ml.so.1";  // name or path of NVML's library
  double probe_seconds = 0.25;             // a RAPL counter must change within it; 0: no check
  double period_seconds = 1;               // between readings
};

struct Setup {
  Places places;
  std::string host;        // this rank's host
  std::string card;        // this rank's card, as device::GpuIds names it; empty: none
  std::vector<int> cores;  // cores for the reading thread; empty: any
};

// Sums over the nodes of a job, since the previous call of Collect().
struct Sums {
  double joules = 0;        // energy used in node_seconds
  double node_seconds = 0;  // time with readings, summed over the nodes
  // Time without complete, plausible readings, summed over the nodes; negative if a later reading
  // made up for time that earlier sums reported as lost.
  double lost_seconds = 0;
  double card_joules = 0;   // energy of the cards; part of `joules`
  double card_seconds = 0;  // time with readings of utilisation, summed over the cards
  double busy_seconds = 0;  // card_seconds x utilisation
  double card_bytes = 0;    // largest memory in use on one card

  Sums& operator+=(const Sums& other);
  // True if `joules` covers all nodes for all the time since the last sums.
  bool Whole() const;
};

// One rank of each node reads its counters once a second in a thread of its own, because counters
// wrap around and cards report only their latest utilisation. A failing counter never ends a run.
class Meter {
 public:
  // Collective over `world`. node: the ranks of `world` on this node.
  Meter(const comm::Communicator& world, const comm::Communicator& node, const Setup& setup);
  ~Meter();
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

  // Why the energy of this job cannot be measured; empty if it can. The same on all ranks.
  const std::string& WhyNot() const { return why_not_; }
  bool Available() const { return why_not_.empty(); }
  // The parts of a node whose energy is counted: "CPU packages, memory, GPUs".
  const std::string& Covers() const { return covers_; }
  // The parts that are not counted on world rank 0's node, and why; may be empty.
  const std::string& LeavesOut() const { return leaves_out_; }
  double Nodes() const { return nodes_; }
  int Cards() const { return cards_; }  // in the whole job

  // Collective over `world`; if not Available(), returns zeros without communication.
  Sums Collect();

 private:
  class Reader;
  const comm::Communicator& world_;
  std::unique_ptr<Reader> reader_;  // on the first rank of each node, if Available()
  std::string why_not_, covers_, leaves_out_;
  double nodes_ = 0;
  int cards_ = 0;
};

}  // namespace trireme::report
