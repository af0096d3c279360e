// How fast the parts of a training step are on a GPU. One rank: its memory-bound kernels against a
// copy in the card's memory, and attention. Several ranks, one GPU each: NCCL's transfers.
// usage: trireme_gpu_kernels_benchmark [tiny] [only=TEXT] [section.key=value ...]
//   tiny: small sizes, for the emulator; only: the kernels with TEXT in the first words of their
//   lines ("kernel gpt2_124m bf16 norm", "attention jsc fp32 own"). Keys: run.threads ...
#include <fmt/format.h>

#include <cstdio>
#include <string>

#include "gpu_cases.hpp"
#include "gpu_job.hpp"
#include "kernels/cuda/attention.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/tasks/tasks.hpp"

namespace {

using namespace trireme;
using benchmark::Sizes;

const std::vector<Sizes>& KernelSizes(bool tiny) {
  static const std::vector<Sizes> large = {
      {"gpt2_124m", 16, 1024, 768, 12, 12, 3072, 50257, 124439808, false},
      {"llama_8b", 2, 4096, 4096, 32, 8, 14336, 128256, std::int64_t{1} << 28, true}};
  static const std::vector<Sizes> small = {{"tiny_gpt", 2, 20, 32, 2, 2, 64, 97, 4099, false},
                                           {"tiny_llama", 2, 20, 32, 2, 1, 64, 97, 4099, true}};
  return tiny ? small : large;
}
const std::vector<Sizes>& AttentionSizes(bool tiny) {
  static const std::vector<Sizes> large = {
      {"jsc", 512, 32, 128, 4, 4},
      {"gpt2_124m", 16, 1024, 768, 12, 12},
      {"gpt2_1558m", 8, 1024, 1600, 25, 25},
      {"llama_8b", 2, 4096, 4096, 32, 8},
  };
  static const std::vector<Sizes> small = {{"tiny", 2, 70, 32, 2, 1}};
  return tiny ? small : large;
}

// Whether TEXT of only=TEXT is in a line's words.
bool Asked(const std::string& only, const std::string& words) {
  return words.find(only) != std::string::npos;
}

void TimeKernels(const device::Stream& stream, bool tiny, const std::string& only) {
  const double copy = benchmark::CopySpeed(stream, tiny);
  fmt::print("copy within the card's memory: GB/s {:.1f}\n", copy * 1e-9);
  for (const Sizes& sizes : KernelSizes(tiny)) {
    for (const Dtype dtype : {Dtype::kBfloat16, Dtype::kFloat32}) {
      for (const benchmark::Case& one : benchmark::KernelCases(stream, sizes, dtype)) {
        const std::string words =
            fmt::format("kernel {} {} {}", sizes.name, NameOf(dtype), one.name);
        if (!Asked(only, words)) continue;
        const double seconds = benchmark::SecondsCold(stream, one.bytes, one.make, tiny);
        fmt::print("kernel {:10} {} {:34} us {:9.2f} MB {:8.1f} GB/s {:7.1f} of_copy {:.3f}\n",
                   sizes.name, NameOf(dtype), one.name, seconds * 1e6, one.bytes * 1e-6,
                   one.bytes / seconds * 1e-9, one.bytes / seconds / copy);
        std::fflush(stdout);
      }
    }
  }
}

// Both passes.
bool ServedByCudnn(const device::Stream& stream, const Sizes& sizes, Dtype dtype) {
  const auto serves = [&](bool backward) {
    return kernels::cuda::CudnnServes(stream, sizes.Attention(), dtype, backward);
  };
  return serves(false) && serves(true);
}

void TimeAttention(const device::Stream& stream, bool tiny, const std::string& only) {
  struct Way : benchmark::AttentionWay {
    const char* name;
  };
  constexpr double kDropout = 0.1;
  std::vector<Way> ways = {{{Dtype::kBfloat16, true, 0}, "own"},
                           {{Dtype::kBfloat16, true, kDropout}, "own+dropout"},
                           {{Dtype::kFloat32, true, 0}, "own"}};
  if (!kernels::cuda::CudnnName().empty()) {
    ways.push_back({{Dtype::kBfloat16, false, 0}, "cuDNN"});
  } else {
    fmt::print("attention by cuDNN: not built in\n");
  }
  constexpr double kEnough = 1e12;  // bytes: one set of operands, caches do not matter
  for (const Sizes& sizes : AttentionSizes(tiny)) {
    for (const Way& way : ways) {
      const std::string words =
          fmt::format("attention {} {} {}", sizes.name, NameOf(way.dtype), way.name);
      if (!Asked(only, words)) continue;
      if (!way.own && !ServedByCudnn(stream, sizes, way.dtype)) {
        fmt::print("{}: not served, see own\n", words);
        continue;
      }
      const auto one = benchmark::MakeAttentionCase(stream, sizes, way);
      const double forward = benchmark::SecondsCold(stream, kEnough, one.forward, tiny);
      const double backward = benchmark::SecondsCold(stream, kEnough, one.backward, tiny);
      fmt::print(
          "attention {:10} {} {:11} forward_us {:9.1f} TFLOP/s {:7.2f} backward_us {:9.1f} "
          "TFLOP/s {:7.2f}\n",
          sizes.name, NameOf(way.dtype), way.name, forward * 1e6,
          one.forward_flops / forward * 1e-12, backward * 1e6,
          one.backward_flops / backward * 1e-12);
      std::fflush(stdout);
    }
  }
}

// Bus bandwidth as nccl-tests defines it (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md), of S
// bytes on n ranks in t seconds: 2 (n - 1) / n S / t of an all-reduce, (n - 1) / n S / t of a
// reduce-scatter or an all-gather, whose S is the whole.
void TimeTransfers(const comm::ProcessGrid& grid, const device::Stream& stream, bool tiny) {
  const comm::Communicator& world = grid.World();
  const comm::Collectives ranks = grid.Over(comm::Group::kData);
  const int n = ranks.Size();
  constexpr std::int64_t kLeast = 1 << 20, kMost = 1 << 30, kTiny = 1 << 16, kFactor = 4;
  constexpr int kRepetitions = 20;
  const std::int64_t most = tiny ? kTiny : kMost;
  benchmark::Operands operands(stream);
  // Zeros: their sums stay so.
  void* const whole = operands.Zeros(most);
  void* const other = operands.Zeros(most);
  device::Event begin(stream, true), end(stream, true);
  const auto time = [&](const char* name, std::int64_t bytes, double share, const auto& call) {
    const int repetitions = tiny ? 2 : kRepetitions;
    for (int warm_up = 0; warm_up < 2; ++warm_up) call();
    device::Synchronise(stream);
    world.Barrier();
    begin.Record(stream.gpu->queue);
    for (int i = 0; i < repetitions; ++i) call();
    end.Record(stream.gpu->queue);
    grid.Await(end);
    const double seconds = world.Max(end.SecondsSince(begin) / repetitions);
    if (!world.IsRoot()) return;
    const double bus = share * (n - 1) / n * static_cast<double>(bytes) / seconds;
    fmt::print("transfer {:14} ranks {} bytes {:10} us {:10.1f} bus_GB/s {:.2f}\n", name, n, bytes,
               seconds * 1e6, bus * 1e-9);
    std::fflush(stdout);
  };
  for (std::int64_t bytes = tiny ? kTiny : kLeast; bytes <= most; bytes *= kFactor) {
    const std::int64_t count = bytes / n / std::int64_t{sizeof(float)} * n;
    const comm::Counts counts = comm::Counts::Cut(count);
    time("all_reduce", bytes, 2, [&] { ranks.AllReduce(Dtype::kFloat32, whole, count); });
    time("reduce_scatter", bytes, 1,
         [&] { ranks.ReduceScatter(Dtype::kFloat32, whole, other, counts); });
    time("all_gather", bytes, 1, [&] { ranks.AllGather(Dtype::kFloat32, other, whole, counts); });
  }
  device::Synchronise(stream);
}

void Run(const comm::Runtime& runtime, bool tiny, const std::string& only,
         const std::vector<std::string>& overrides) {
  const deck::Schema schema = tasks::DeclareAll();
  const app::Job job = benchmark::MakeGpuJob(runtime, schema, "", overrides);
  const comm::Communicator& world = runtime.World();
  if (world.IsRoot()) fmt::print("{}", benchmark::DescribeGpu(job.gpu->Context()));
  if (world.Size() == 1) {
    TimeKernels(job.stream, tiny, only);
    TimeAttention(job.stream, tiny, only);
    return;
  }
  comm::ProcessGrid grid(world, comm::GridShape{.data = world.Size()});
  grid.UseGpu(job.stream, job.gpu_staged, 1);
  TimeTransfers(grid, job.stream, tiny);
}

}  // namespace

int main(int argc, char** argv) {
  return benchmark::OnGpus(&argc, &argv, [&](const comm::Runtime& runtime) {
    bool tiny = false;
    std::string only;
    std::vector<std::string> overrides;
    for (const std::string& word : std::vector<std::string>(argv + 1, argv + argc)) {
      if (word == "tiny") {
        tiny = true;
      } else if (word.starts_with("only=")) {
        only = word.substr(5);
      } else {
        overrides.push_back(word);
      }
    }
    Run(runtime, tiny, only, overrides);
  });
}
