// Shared by the benchmarks on GPUs: the ranks' cards, opened as the program opens them, without a
// deck's file.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "trireme/app/job.hpp"
#include "trireme/app/placement.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/program.hpp"
#include "trireme/device/options.hpp"
#include "trireme/model/plan.hpp"

namespace trireme::benchmark {

inline constexpr int kSkipped = 77;  // exit code where a rank sees no GPU

// main(): starts MPI and runs `body` on all ranks, whose exit code is returned. Where a rank sees
// no GPU: says "skipped: no CUDA device" and why, and returns kSkipped.
int OnGpus(int* argc, char*** argv, const std::function<void(const comm::Runtime&)>& body);

// Collective. A job on GPUs: one card a rank (run.share_device=yes: or fewer). deck: lines of the
// form key = value, of [run] first; overrides beat them. AgreedError (exit code 2). `schema` is
// tasks::DeclareAll's and outlives the job.
app::Job MakeGpuJob(const comm::Runtime& runtime, const deck::Schema& schema,
                    const std::string& deck, const std::vector<std::string>& overrides);

// Card, libraries and program, a line each. (The emulator's card says what it is.)
std::string DescribeGpu(const device::GpuContext& gpu);

// The middle one of several times.
double MedianOf(std::vector<double> values);

inline int OnGpus(int* argc, char*** argv, const std::function<void(const comm::Runtime&)>& body) {
  const comm::Runtime runtime(argc, argv);
  const comm::Communicator& world = runtime.World();
  const std::string why = device::WhyNoGpu();
  if (world.Min(std::int64_t{why.empty()}) == 0) {
    const std::string prefix = why.starts_with("no CUDA device") ? "" : "no CUDA device: ";
    if (world.IsRoot()) {
      fmt::print("skipped: {}{}\n", prefix, why.empty() ? "on another rank" : why);
    }
    return kSkipped;
  }
  return runtime.Guard([&] {
    body(runtime);
    return ExitCode::kDone;
  });
}

inline app::Job MakeGpuJob(const comm::Runtime& runtime, const deck::Schema& schema,
                           const std::string& deck, const std::vector<std::string>& overrides) {
  const comm::Communicator& world = runtime.World();
  app::Job job;
  job.request.begun = Seconds();
  job.ranks.runtime = &runtime;
  world.Together([&] {
    app::CommandLine& line = job.request.line;
    line.deck = "benchmark";
    line.overrides = overrides;
    job.request.deck = app::ParseDeck(schema, line, "[run]\ndevice = cuda\n" + deck);
    static_cast<app::DeckOptions&>(job.request) = app::ReadAll(job.request.deck);
  });
  const app::GpuChoice choice = app::ChooseGpu(runtime, job.request.machine, job.request.deck);
  world.Together([&] {
    if (!choice.use) throw InputError("run.device: this benchmark is about GPUs", "Leave it out.");
  });
  job.device.placement = app::PlaceThreads(runtime, job.request.machine, true);
  job.device.stream.threads = job.device.placement.threads;
  const device::Arithmetic arithmetic = device::ArithmeticOf(job.request.machine.precision, true);
  world.Together([&] {
    job.device.gpu = std::make_unique<device::Gpu>(choice.device);
    job.device.staged = choice.staged;
    job.device.stream.gpu = &job.device.gpu->Context();
    job.device.dtype = arithmetic.dtype;
    job.device.stream.bf16 = arithmetic.bf16_products;
    job.device.stream.fp8 = arithmetic.fp8_products;
    device::CheckPrecision(job.request.machine, job.device.stream, job.request.deck);
    const std::int64_t sites = model::kSitesABlock * job.request.model.layers;
    job.device.libraries = kernels::MakeLibraries(job.device.stream, static_cast<int>(sites));
    job.device.stream.libraries = job.device.libraries.get();
  });
  return job;
}

inline std::string DescribeGpu(const device::GpuContext& gpu) {
  constexpr double kGib = 1024.0 * 1024 * 1024;
  std::string text = fmt::format(
      "card      {}, compute capability {}.{}, {} multiprocessors, {:.1f} GiB\n", gpu.name,
      gpu.major, gpu.minor, gpu.multiprocessors, static_cast<double>(gpu.memory_bytes) / kGib);
  text += fmt::format("cards     {} seen by a rank\n", device::GpuIds().size());
  text += fmt::format("libraries {}; {}; {}\n", device::GpuLibraries(), kernels::GpuMathLibraries(),
                      comm::GpuTransferLibrary());
  text += fmt::format("trireme   {} ({}), {}\n", Version(), Commit(), Compiler());
  return text;
}

inline double MedianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

}  // namespace trireme::benchmark
