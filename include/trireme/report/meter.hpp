// The energy that a job's nodes take, by the counters that a user may read: pm_counters of Cray
// nodes, RAPL of the processors, NVML of the cards.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/communicator.hpp"

namespace trireme::report {

// Places of the counters; tests have some of their own.
struct Places {
  std::string root;                        // before /sys
  std::string nvml = "libnvidia-ml.so.1";  // library
  double probe_seconds = 0.25;             // for a counter of RAPL to move; 0: it need not
  double period_seconds = 1;               // between readings
};

struct Setup {
  Places places;
  std::string host;        // of this rank
  std::string card;        // of this rank, as device::GpuIds names it; empty: the CPU computes
  std::vector<int> cores;  // of the reading thread; empty: any
};

// Sums over the nodes of a job, of the time since the last ones.
struct Sums {
  double joules = 0;        // in the seconds below
  double node_seconds = 0;  // time with readings, summed over the nodes
  // Time in which a counter could not be read or made no sense; less than 0 if `node_seconds` have
  // some that was lost before.
  double lost_seconds = 0;
  double card_joules = 0;   // of the cards alone; part of `joules`
  double card_seconds = 0;  // time with readings of utilisation, summed over the cards
  double busy_seconds = 0;  // card_seconds x utilisation
  double card_bytes = 0;    // most memory in use on a card

  Sums& operator+=(const Sums& other);
  // Whether `joules` are those of all nodes in all the time since the last sums.
  bool Whole() const;
};

// One rank of each node reads, in a thread of its own, once a second: counters wrap around, and
// cards tell their utilisation of the last moment alone. Nothing that a counter does ends a run.
class Meter {
 public:
  // Collective over `world`. node: the ranks of `world` on this node.
  Meter(const comm::Communicator& world, const comm::Communicator& node, const Setup& setup);
  ~Meter();
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

  // The same on all ranks: empty, or why no energy can be told of this job.
  const std::string& WhyNot() const { return why_not_; }
  bool Available() const { return why_not_.empty(); }
  // "CPU packages, memory, GPUs": parts of the node whose energy is counted.
  const std::string& Covers() const { return covers_; }
  // Parts that cannot be counted on world rank 0's node, and why; may be empty.
  const std::string& LeavesOut() const { return leaves_out_; }
  double Nodes() const { return nodes_; }
  int Cards() const { return cards_; }  // of the job

  // Collective, unless !Available(): then nothing is sent. Zeros if there was no reading.
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
