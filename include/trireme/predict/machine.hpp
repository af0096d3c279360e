// Machine: what a prediction knows of a computer, from a description in input/machines/ or from a
// calibration.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/dtype.hpp"
#include "trireme/deck/schema.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/train/plan.hpp"

namespace trireme::predict {

// Matrix products of one type on one rank. A product of m x n x k runs at peak * efficiency times
// d / (d + half) for each of d = m, n, k, so that `half` is the size at which one dimension costs
// half of the speed (Hockney's n_1/2).
struct Products {
  double peak = 0;        // FLOP/s; 0: the machine has none of this type
  double efficiency = 0;  // share of the peak that large products reach
  double half = 0;        // elements
};

// One direction of what a rank sends to others of its node, or to other nodes.
struct Link {
  double bandwidth = 0;  // bytes/s of a rank
  double reduction = 0;  // the same for sums; 0: as bandwidth
  double latency = 0;    // s a step of an algorithm
};

struct Machine {
  std::string name;           // of the description
  std::string title, source;  // for people
  bool gpu = false;
  int nodes = 0;           // that there are; 0: not stated
  int ranks_per_node = 1;  // a GPU each, or as many as share a node
  int threads = 1;         // of a rank on a CPU
  // A card, or a rank's part of a node.
  std::int64_t memory_bytes = 0;
  int capability = 0;  // compute capability, major * 10 + minor
  int multiprocessors = 0;
  Products fp64, fp32, bf16, fp8;
  double attention = 0;       // share of the type's peak that attention reaches
  double memory = 0;          // bytes/s of passes over memory
  double kernel_seconds = 0;  // of a kernel that has nothing to do
  Link node, network;
  bool background = true;                // transfers go on while the rank computes
  double interference = 0;               // share of its speed that computation loses meanwhile
  double step_seconds = 0;               // of a step besides its kernels and transfers
  double file_bandwidth = 0;             // bytes/s of all ranks together; 0: not stated
  double watts_rank = 0;                 // of a rank that computes; 0: not stated
  double watts_node = 0;                 // of a node besides its ranks
  std::vector<std::string> assumptions;  // sentences on numbers that are nobody's measurement

  const Products& Of(Dtype type, bool fp8_products) const;
  // Facts of the card for a plan (device::Gpu).
  device::GpuContext Card() const;
};

deck::Schema MachineSchema();

// Reads a description. name: of a file of input/machines/ in `shared` (SharedFolder), without
// ".in", or a path. InputError that names the file, its line and, for a name, those that there are.
Machine ReadMachine(const std::string& name, const std::string& shared);
// Description for the steps of a run on this device. name: as of ReadMachine, which may throw;
// kAutoMachine: that of the GPU's card, if it is in `shared`. Without one, or with one of another
// kind of device or without the run's products, `why_none` is a sentence.
inline constexpr const char* kAutoMachine = "auto";
struct Described {
  std::optional<Machine> machine;
  std::string why_none;
};
Described DescribeRun(const std::string& name, const train::MachineFacts& facts,
                      const std::string& shared);
// Names of the descriptions in `shared`, sorted.
std::vector<std::string> MachineNames(const std::string& shared);
// A description as text that ReadMachine reads back to the same numbers. heading: a comment.
std::string Write(const Machine& machine, const std::string& heading);

}  // namespace trireme::predict
