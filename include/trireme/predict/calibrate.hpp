// Calibration: a machine's description, filled in from steps and transfers that the ranks at hand
// run for seconds.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/comm/hosts.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/deck/schema.hpp"
#include "trireme/device/options.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/predict/machine.hpp"

namespace trireme::predict {

// Ranks and what they compute on. All must outlive the call.
struct Subject {
  const comm::Communicator& world;
  const comm::Communicator& node;
  const comm::Hosts& hosts;
  const deck::Schema& schema;  // of decks
  device::Stream stream;
  const device::Gpu* gpu = nullptr;
  device::Precision precision = device::Precision::kFp32;  // of the job
  // Gives a grid the job's way of moving the memory of GPUs.
  std::function<void(comm::ProcessGrid&)> use_gpu = {};
};

struct Calibration {
  Machine machine;  // the same on all ranks
  // Steps that were measured and computed from the result: "dim 256, 128 tokens", seconds of both.
  struct Step {
    std::string text;
    double measured = 0, computed = 0;
  };
  std::vector<Step> steps;
  double Worst() const;  // largest relative difference of these
};

enum class Effort {
  kWhole,  // products of all types that training may use on the device: up to a minute
  kShort   // those of the job's precision: a second or two on a CPU
};

// Collective over the world. Runs steps of small models, each rank its own and all at the same
// time, and sums and gathers over the world; fits the description to them by least squares of
// relative differences. AgreedError as of the grid and of training.
Calibration Calibrate(const Subject& subject, Effort effort);

}  // namespace trireme::predict
