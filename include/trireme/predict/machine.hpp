// Machine: what a prediction knows about a computer, from input/machines/ or a calibration.
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
  double peak = 0;        // FLOP/s; 0: the machine lacks this type
  double efficiency = 0;  // share of the peak that large products reach
  double half = 0;        // elements
};

// A rank's link to others of its node, or to other nodes, in one direction.
struct Link {
  double bandwidth = 0;  // bytes/s per rank
  double reduction = 0;  // bytes/s of sums; 0: as bandwidth
  double latency = 0;    // s per step of an algorithm
};

struct Machine {
  std::string name;           // stem of the file; calibrated: title
  std::string title, source;  // for people to read
  bool gpu = false;
  int nodes = 0;           // how many nodes exist; 0: not stated
  int ranks_per_node = 1;  // on a GPU machine, one GPU per rank
  int threads = 1;         // per rank, on a CPU
  // Memory of a card, or a rank's share of its node's.
  std::int64_t memory_bytes = 0;
  int capability = 0;  // compute capability, major * 10 + minor
  int multiprocessors = 0;
  Products fp64, fp32, bf16, fp8;
  double attention = 0;       // share of the type's peak that attention reaches
  double memory = 0;          // bytes/s, of passes over memory
  double kernel_seconds = 0;  // s, overhead per kernel
  Link node, network;
  bool background = true;                // transfers progress while the rank computes
  double interference = 0;               // share of its speed that computation loses to them
  double step_seconds = 0;               // s, overhead of a step besides kernels and transfers
  double file_bandwidth = 0;             // bytes/s, all ranks together; 0: not stated
  double watts_rank = 0;                 // power of a computing rank, W; 0: not stated
  double watts_node = 0;                 // power of a node besides its ranks, W
  std::vector<std::string> assumptions;  // sentences about numbers that were not measured

  const Products& Of(Dtype type, bool fp8_products) const;
  // The card as a plan needs it (device::Gpu).
  device::GpuContext Card() const;
};

deck::Schema MachineSchema();

// Reads a description. name: a path, or the name of a file in input/machines/ of `shared`
// (SharedFolder), without ".in". Throws InputError that names the line, or the descriptions that
// exist.
Machine ReadMachine(const std::string& name, const std::string& shared);
// The description for a run on this device. name: as in ReadMachine, which may throw; kAutoMachine:
// the GPU's description in `shared`. If there is none, or it is for another kind of device or lacks
// the run's type of products, `why_none` says so in a sentence.
inline constexpr const char* kAutoMachine = "auto";
struct Described {
  std::optional<Machine> machine;
  std::string why_none;
};
Described DescribeRun(const std::string& name, const train::MachineFacts& facts,
                      const std::string& shared);
// Names of the descriptions in `shared`, sorted.
std::vector<std::string> MachineNames(const std::string& shared);
// The description as text that ReadMachine reads back to the same numbers. heading: first comment.
std::string Write(const Machine& machine, const std::string& heading);

}  // namespace trireme::predict
