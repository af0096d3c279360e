// Cost of recording a step: trireme_metrics_benchmark FOLDER [STEP_SECONDS]. Takes a million steps
// through the monitor, with and without a run folder, and finds and cuts the records afterwards.
// With the seconds of a training step it prints the share that the records take of it.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "trireme/base/clock.hpp"
#include "trireme/report/monitor.hpp"

namespace {

using namespace trireme;

constexpr std::int64_t kSteps = 1'000'000;

// Values with all their digits, as a run has them.
report::Record RecordOf(std::int64_t step) {
  const double x = 1 / static_cast<double>(step);
  report::Record record;
  record.step = step;
  record.epoch = static_cast<double>(step) / 127;
  record.tokens = step * 16384;
  record.loss = 3 + x;
  record.learning_rate = 1e-3 * x;
  record.grad_norm = 0.7 + x / 3;
  record.step_seconds = 0.1 + x / 7;
  record.tokens_per_second = 16384 / record.step_seconds;
  record.flops_per_second = 1e12 / record.step_seconds;
  record.roof_fraction = 0.8 - x / 9;
  record.seconds_compute = 0.09 + x / 11;
  record.seconds_exposed_communication = 0.01 * x;
  record.seconds_data = 0.001 + x / 13;
  record.memory_bytes = 123456789;
  return record;
}

// Seconds of a step, with records in `folder`, or without any.
double SecondsAStep(const std::string& folder) {
  report::Monitor monitor(
      {.root = true, .folder = folder, .every_steps = 50, .total_steps = kSteps});
  const double start = Seconds();
  for (std::int64_t step = 1; step <= kSteps; ++step) monitor.Step(RecordOf(step));
  monitor.SyncRecords();
  return (Seconds() - start) / static_cast<double>(kSteps);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: trireme_metrics_benchmark FOLDER [STEP_SECONDS]\n");
    return 2;
  }
  const std::string folder = argv[1];
  std::filesystem::create_directories(folder);
  // Lines of the screen are no part of the question.
  const int screen = dup(STDOUT_FILENO);
  std::FILE* out = fdopen(screen, "w");
  if (out == nullptr || std::freopen("/dev/null", "w", stdout) == nullptr) return 1;

  const double without = SecondsAStep({});
  const double with = SecondsAStep(folder);
  fmt::print(out, "a step: {:.2f} us with records, {:.2f} us without\n", 1e6 * with, 1e6 * without);
  if (argc > 2) {
    const double seconds = std::atof(argv[2]);
    fmt::print(out, "records: {:.5f}% of a step of {:.4f} s\n", 100 * (with - without) / seconds,
               seconds);
  }
  const auto bytes = std::filesystem::file_size(folder + "/metrics.jsonl");
  fmt::print(out, "metrics.jsonl: {:.1f} bytes a step\n",
             static_cast<double>(bytes) / static_cast<double>(kSteps));
  double start = Seconds();
  const bool ended = report::HasEnded(folder);
  fmt::print(out, "the end: {}, after {:.3f} s\n", ended ? "found" : "not there",
             Seconds() - start);
  start = Seconds();
  const report::Monitor resumed({.root = true,
                                 .folder = folder,
                                 .total_steps = kSteps,
                                 .resumed = true,
                                 .resume_step = kSteps / 2});
  fmt::print(out, "resumed in the middle: {:.3f} s\n", Seconds() - start);
  return 0;
}
