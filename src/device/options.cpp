// The keys of [run] that say where and in which precision a job computes.
#include "trireme/device/options.hpp"

#include <fmt/format.h>
#include <limits>

#include "trireme/deck/keys.hpp"

namespace trireme::device {

namespace {
constexpr deck::Names<3> kDevices = {"auto", "cpu", "cuda"};
constexpr deck::Names<4> kPrecisions = {"fp32", "bf16", "fp8", "fp64"};
constexpr deck::Names<3> kAttentions = {"auto", "cudnn", "own"};
constexpr deck::Names<3> kShareDevices = {"no", "yes", "nccl"};
constexpr deck::Names<3> kPins = {"auto", "yes", "no"};
constexpr deck::Names<2> kGraphs = {"auto", "no"};

void Bind(deck::Keys keys, Options& o) {
  using deck::Between;
  constexpr double kLargestSeed = std::numeric_limits<std::uint32_t>::max();
  constexpr double kMostThreads = 4096;
  keys.Section("run", "How to compute.")
      .Choice("run.device", o.device, kDevices,
              "auto: GPUs where the program was built for them and every rank sees one, else the "
              "CPU. cuda: one GPU a rank, or an error that says what is missing.")
      .Choice("run.share_device", o.share_device, kShareDevices,
              "Whether several ranks may share a GPU, for trying out layouts, not for speed. yes: "
              "transfers between ranks then pass through the host. nccl: they go through NCCL, "
              "which takes NCCL 2.30 or newer.")
      .Choice("run.graphs", o.graphs, kGraphs,
              "auto: on a GPU, a step's gradients are recorded as a CUDA graph once and launched "
              "as one from then on, where the schedule is static: one pipeline stage, parameters "
              "and gradients not sharded, no shared GPU. Steps with other sizes (the last of an "
              "epoch) run as before. no: every kernel is launched by itself.")
      .Path("run.products", o.products,
            "On a GPU: the file that keeps which algorithm computes each matrix product. They are "
            "timed once for a card, library version and size; another choice would round "
            "otherwise. auto: below XDG_CACHE_HOME, else ~/.cache. Empty: nowhere; each new run "
            "times them, and may differ from the last in its last bits.")
      .Choice(
          "run.attention", o.attention, kAttentions,
          "On a GPU: what computes attention. auto: cuDNN where it serves a pass (bf16 and fp8, "
          "without dropout on the weights, padding or a cut of the sequences), else our own "
          "kernels, in bf16 on tensor cores too. cudnn: an error where it cannot serve the deck. "
          "own: never cuDNN.")
      .Switch(
          "run.deterministic", o.deterministic,
          "On a GPU: yes: every run of a deck on the same cards and libraries has the same bits. "
          "no: cuDNN may use its faster backward pass of attention, which adds up the gradient of "
          "the queries in no fixed order, so that runs differ in their last bits.")
      .Choice(
          "run.precision", o.precision, kPrecisions,
          "bf16: matrix products take bfloat16 operands and add up in fp32. On the CPU all that is "
          "stored stays fp32, and it takes a processor that multiplies bfloat16 (AVX512-BF16 or "
          "AMX); on a GPU activations and the weights that products read are stored in bfloat16, "
          "gradients, moments and the weights that are updated in fp32. Checkpoints are fp32. "
          "fp8: as bf16, with the linear layers' products in fp8 (e4m3 forward, e5m2 gradients), "
          "scaled tensor by tensor; GPUs from Hopper on. fp64 is for verification.")
      .Integer("run.seed", o.seed, Between(0, kLargestSeed), "",
               "Of initial weights, sample order, dropout.")
      .Integer(
          "run.threads", o.threads, Between(0, kMostThreads), "threads",
          "OpenMP threads a rank. 0: OMP_NUM_THREADS, else its share of the cores it is bound to.")
      .Choice("run.pin", o.pin, kPins,
              "Each OpenMP thread stays on a core of its own, those of a rank side by side. auto: "
              "where the job's threads fill the cores that it may use on a node, and computes on "
              "them; yes: wherever there are enough cores. OMP_PROC_BIND, OMP_PLACES and "
              "GOMP_CPU_AFFINITY win.")
      .Real("run.hang_timeout", o.hang_timeout, deck::AtLeast(0), "s",
            "A training job ends, with code 1 and the name of the rank that holds it up, when a "
            "rank has entered and left no transfer for so long. 0: 20 times the longest step so "
            "far, at least 300 s; validations and checkpoints by their own longest times. Set-up, "
            "the first two steps and the end have ten minutes, or this if it is more; a "
            "checkpoint at least three times what its bytes take.");
}

}  // namespace

const char* NameOf(Precision precision) {
  return kPrecisions.at(static_cast<std::size_t>(precision));
}

void Declare(deck::Schema& schema) { deck::Declare(schema, Bind); }

Options Read(const deck::Deck& deck) { return deck::Read(deck, Bind); }

// Precision: the arithmetic that run.precision means, and whether a device supports it.

Arithmetic ArithmeticOf(Precision precision, bool on_gpu) {
  if (precision == Precision::kFp64) return {.dtype = Dtype::kFloat64};
  if (precision == Precision::kFp32) return {};
  if (!on_gpu) return {.bf16_products = precision == Precision::kBf16};
  return {.dtype = Dtype::kBfloat16, .fp8_products = precision == Precision::kFp8};
}

void CheckPrecision(Precision precision, const device::Stream& stream, const deck::Deck& deck) {
  constexpr const char* kKey = "run.precision";
  constexpr int kFirstWithFp8 = 9;  // compute capability: Hopper
  if (precision == Precision::kFp8 && !stream.OnGpu()) {
    throw deck.Complain(kKey, "fp8 products are computed by GPUs only",
                        "Use run.precision = bf16 or fp32 on the CPU.");
  }
  if (stream.fp8 && stream.gpu->major < kFirstWithFp8) {
    throw deck.Complain(
        kKey,
        fmt::format("{} (compute capability {}.{}) has no fp8 products", stream.gpu->name,
                    stream.gpu->major, stream.gpu->minor),
        "fp8 takes Hopper (H100, H200, GH200) or newer: use run.precision = bf16 here.");
  }
  if (!stream.bf16 || !device::Bf16Instructions().empty()) return;
  throw deck.Complain(
      kKey,
      fmt::format(
          "this processor ({}, {}) does not multiply bfloat16: that takes AVX512-BF16 or AMX",
          device::CpuName(), device::InstructionSet()),
      "Use run.precision = fp32 here.");
}

}  // namespace trireme::device
