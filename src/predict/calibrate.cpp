// Calibrate: steps, their fit, links, and the facts of the node.
#include "trireme/predict/calibrate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "fit.hpp"
#include "links.hpp"
#include "steps.hpp"
#include "trireme/comm/node_memory.hpp"
#include "trireme/device/precision.hpp"
#include "trireme/kernels/roof.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::predict {

namespace {

using device::Precision;

// Precisions to measure: on a CPU both of its own types, on a GPU those of training.
std::vector<Precision> PrecisionsOf(const Subject& subject, Effort effort) {
  const Precision own = subject.precision;
  if (effort == Effort::kShort) return {own == Precision::kFp8 ? Precision::kBf16 : own};
  if (subject.gpu != nullptr) return {Precision::kFp32, Precision::kBf16};
  return {Precision::kFp32, Precision::kFp64};
}

Products& ProductsOf(Machine& machine, Dtype type) {
  if (type == Dtype::kBfloat16) return machine.bf16;
  return type == Dtype::kFloat64 ? machine.fp64 : machine.fp32;
}

// Facts of a rank and its node.
void Describe(const Subject& subject, Machine& machine) {
  const comm::Communicator& world = subject.world;
  machine.ranks_per_node = static_cast<int>(world.Max(std::int64_t{subject.node.Size()}));
  machine.threads = subject.stream.threads;
  machine.gpu = subject.gpu != nullptr;
  if (machine.gpu) {
    const device::GpuContext& card = subject.gpu->Context();
    machine.title = card.name;
    machine.memory_bytes = world.Min(card.memory_bytes);
    machine.capability = card.major * 10 + card.minor;
    machine.multiprocessors = card.multiprocessors;
    machine.background = true;
    machine.assumptions.emplace_back(
        "transfers take nothing from the computation beside them, for want of a measurement");
  } else {
    machine.title = subject.hosts.First();
    const std::int64_t bytes = comm::AvailableMemory().bytes / subject.node.Size();
    machine.memory_bytes = world.Min(bytes);
    machine.background = false;  // MPI moves bytes while a rank waits for it
  }
  machine.title = world.Broadcast(machine.title);
  machine.name = machine.title;
  machine.source =
      fmt::format("trireme --calibrate, {} of {}, {}", report::Counted(world.Size(), "rank"),
                  report::Counted(machine.threads, "thread"), report::UtcNow());
}

}  // namespace

double Calibration::Worst() const {
  double worst = 0;
  for (const Step& step : steps) {
    worst = std::max(worst, std::abs(step.computed / step.measured - 1));
  }
  return worst;
}

Calibration Calibrate(const Subject& subject, Effort effort) {
  const comm::Communicator& world = subject.world;
  Calibration result;
  Machine& machine = result.machine;
  Describe(subject, machine);
  std::vector<MeasuredStep> steps;
  for (const Precision precision : PrecisionsOf(subject, effort)) {
    const device::Arithmetic arithmetic = device::ArithmeticOf(precision, subject.gpu != nullptr);
    device::Stream stream = subject.stream;
    stream.bf16 = arithmetic.bf16_products;
    world.Barrier();
    const double roof = kernels::MeasureRoof(stream, arithmetic.dtype);
    ProductsOf(machine, arithmetic.dtype).peak = world.Sum(roof) / world.Size();
    MeasureSteps(subject, precision, effort, steps);
  }
  std::vector<Observation> observations;
  for (const MeasuredStep& step : steps) observations.push_back(step.observation);
  Fit(observations, machine);
  MeasureLinks(subject, machine);
  for (const MeasuredStep& step : steps) {
    const Observation& each = step.observation;
    result.steps.push_back({step.text, each.seconds, SecondsOf(each.work, machine)});
  }
  return result;
}

}  // namespace trireme::predict
