// Calibration: fills in a machine's description by timing steps and transfers on the ranks at hand.
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

// The ranks, and what they compute on. References must outlive the call.
struct Subject {
  const comm::Communicator& world;
  const comm::Communicator& node;
  const comm::Hosts& hosts;
  const deck::Schema& schema;  // schema of decks
  device::Stream stream;
  const device::Gpu* gpu = nullptr;
  device::Precision precision = device::Precision::kFp32;  // the job's
  // Makes a grid transfer GPU memory as the job does.
  std::function<void(comm::ProcessGrid&)> use_gpu = {};
};

struct Calibration {
  Machine machine;  // the same on all ranks
  // A step as measured and as computed from the description, s; text: "fp32, dim 256, ...".
  struct Step {
    std::string text;
    double measured = 0, computed = 0;
  };
  std::vector<Step> steps;
  double Worst() const;  // largest relative error of `computed`
};

enum class Effort {
  kWhole,  // all types of the device: up to a minute
  kShort   // the job's precision only: a second or two on a CPU
};

// Collective over the world. Each rank runs steps of small models, all ranks at the same time; then
// all-reduces and all-gathers run over each node and the world. The description is fitted to the
// steps by least squares of relative differences. Throws AgreedError as the grid and training do.
Calibration Calibrate(const Subject& subject, Effort effort);

}  // namespace trireme::predict
