// The ranks' cards, opened as the program opens them (app::MakeJob), without a deck's file.
#include "gpu_job.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/app/placement.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/program.hpp"
#include "trireme/device/options.hpp"
#include "trireme/model/plan.hpp"

namespace trireme::benchmark {

int OnGpus(int* argc, char*** argv, const std::function<void(const comm::Runtime&)>& body) {
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

app::Job MakeGpuJob(const comm::Runtime& runtime, const deck::Schema& schema,
                    const std::string& deck, const std::vector<std::string>& overrides) {
  const comm::Communicator& world = runtime.World();
  app::Job job;
  job.start_seconds = Seconds();
  job.runtime = &runtime;
  world.Together([&] {
    app::CommandLine line;
    line.deck = "benchmark";
    line.overrides = overrides;
    job.deck = app::ParseDeck(schema, line, "[run]\ndevice = cuda\n" + deck);
    job.options = app::ReadAll(job.deck);
  });
  const app::GpuChoice choice = app::ChooseGpu(runtime, job.options.machine, job.deck);
  world.Together([&] {
    if (!choice.use) throw InputError("run.device: this benchmark is about GPUs", "Leave it out.");
  });
  job.placement = app::PlaceThreads(runtime, job.options.machine, true);
  job.stream.threads = job.placement.threads;
  const device::Arithmetic arithmetic = device::ArithmeticOf(job.options.machine.precision, true);
  world.Together([&] {
    job.gpu = std::make_unique<device::Gpu>(choice.device);
    job.gpu_staged = choice.staged;
    job.stream.gpu = &job.gpu->Context();
    job.dtype = arithmetic.dtype;
    job.stream.bf16 = arithmetic.bf16_products;
    job.stream.fp8 = arithmetic.fp8_products;
    device::CheckPrecision(job.options.machine.precision, job.stream, job.deck);
    const std::int64_t sites = model::kSitesABlock * job.options.model.layers;
    job.libraries = kernels::MakeLibraries(job.stream, static_cast<int>(sites));
    job.stream.libraries = job.libraries.get();
  });
  return job;
}

std::string DescribeGpu(const device::GpuContext& gpu) {
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

double MedianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

}  // namespace trireme::benchmark
