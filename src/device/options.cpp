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
constexpr deck::Names<3> kBf16Products = {"auto", "native", "fp32"};
constexpr const char* kBf16Key = "run.bf16_products";
constexpr double kLargestSeed = std::numeric_limits<std::uint32_t>::max();
constexpr double kMostThreads = 4096;

void Bind(deck::Keys keys, Options& o) {
  using deck::Between;
  keys.Section("run", "How to compute.")
      .Choice("run.device", o.device, kDevices,
              "auto: GPUs if the program was built for them and every rank sees one, else the CPU. "
              "cpu: the CPU. cuda: one GPU per rank, or an error that says what is missing.")
      .Choice("run.share_device", o.share_device, kShareDevices,
              "Whether several ranks may share a GPU: for trying out layouts, not for speed. no: "
              "an error. yes: transfers between ranks pass through the host. nccl: they go through "
              "NCCL, version 2.30 or newer.")
      .Choice("run.graphs", o.graphs, kGraphs,
              "auto: on a GPU, a step's gradients are recorded as a CUDA graph once and launched "
              "as one from then on, where the schedule is static: one pipeline stage, parameters "
              "and gradients not sharded, no shared GPU. Steps with other sizes (the last of an "
              "epoch) run as before. no: every kernel is launched by itself.")
      .Path("run.products", o.products,
            "On a GPU: the file that remembers which algorithm computes each matrix product. "
            "Algorithms are timed once per card, library version and size; another choice would "
            "round differently. auto: a file below $XDG_CACHE_HOME, else ~/.cache. Empty: no file; "
            "each new run times them, and may differ from the last one in its last bits.")
      .Choice("run.attention", o.attention, kAttentions,
              "On a GPU: what computes attention. auto: cuDNN where it can (bf16 and fp8; head_dim "
              "a multiple of 8 up to 256; no attention dropout, no pairs; with grid.context, equal "
              "blocks and no document mask), else our own kernels, which use tensor cores in bf16 "
              "too. cudnn: an error where it cannot. own: never cuDNN.")
      .Switch("run.deterministic", o.deterministic,
              "On a GPU. yes: every run of a deck on the same cards and libraries gives the same "
              "bits. no: cuDNN may use its faster backward pass of attention, which sums the "
              "gradient of the queries in no fixed order, so that runs differ in their last bits.")
      .Choice(
          "run.precision", o.precision, kPrecisions,
          "bf16: matrix products take bfloat16 operands and add up in fp32. On the CPU everything "
          "else stays fp32; on a GPU activations and the weights that products read are stored in "
          "bfloat16, but gradients, moments and the weights that are updated in fp32. Checkpoints "
          "are fp32. fp8: as bf16, with the linear layers' products in fp8 (e4m3 forward, e5m2 "
          "gradients), scaled tensor by tensor; needs a Hopper GPU or newer. fp64: for "
          "verification.")
      .Choice(
          kBf16Key, o.bf16_products, kBf16Products,
          "In bf16 on a CPU. native: by its own instructions (AVX512-BF16 or AMX). fp32: by fp32 "
          "products of the rounded operands, on any CPU, in another order of sums. auto: native, "
          "unless that is missing or, measured at the start, slower; the banner then says so, and "
          "-r keeps fp32.")
      .Integer("run.seed", o.seed, Between(0, kLargestSeed), "",
               "Seed of the initial weights, the sample order and dropout.")
      .Integer("run.threads", o.threads, Between(0, kMostThreads), "threads",
               "OpenMP threads per rank. 0: OMP_NUM_THREADS if it is set, else the rank's share of "
               "the cores it is bound to.")
      .Choice("run.pin", o.pin, kPins,
              "Keeps each OpenMP thread on a core of its own, those of a rank side by side. auto: "
              "if the job computes on CPUs and its threads use all the cores it has on a node; "
              "yes: wherever there are enough cores; no: never. OMP_PROC_BIND, OMP_PLACES and "
              "GOMP_CPU_AFFINITY take precedence.")
      .Real("run.hang_timeout", o.hang_timeout, deck::AtLeast(0), "s",
            "A training job ends, with code 1 and the name of the rank that holds it up, when a "
            "rank has neither entered nor left a transfer for this long. 0: 20 times the longest "
            "step so far, at least 300 s; validations and checkpoints by their own longest times. "
            "Set-up, the first two steps and the end have ten minutes, or this if it is longer; a "
            "checkpoint at least three times what its bytes take.");
}

}  // namespace

const char* NameOf(Precision precision) {
  return kPrecisions.at(static_cast<std::size_t>(precision));
}

void Declare(deck::Schema& schema) { deck::Declare(schema, Bind); }

Options Read(const deck::Deck& deck) {
  const Options options = deck::Read(deck, Bind);
  deck.RefuseUnused(options.precision != Precision::kBf16, kBf16Key,
                    "belongs to run.precision = bf16", "Leave it out, or choose that precision.");
  return options;
}

// Precision: the arithmetic that run.precision means, and whether a device supports it.

Arithmetic ArithmeticOf(Precision precision, bool on_gpu) {
  if (precision == Precision::kFp64) return {.dtype = Dtype::kFloat64};
  if (precision == Precision::kFp32) return {};
  if (!on_gpu) return {.bf16_products = precision == Precision::kBf16};
  return {.dtype = Dtype::kBfloat16, .fp8_products = precision == Precision::kFp8};
}

void CheckPrecision(const Options& options, const device::Stream& stream, const deck::Deck& deck) {
  constexpr const char* kKey = "run.precision";
  constexpr int kFirstWithFp8 = 9;  // compute capability: Hopper
  if (options.precision == Precision::kFp8 && !stream.OnGpu()) {
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
  if (stream.OnGpu() && options.bf16_products != Bf16Products::kAuto) {
    throw deck.Complain(kBf16Key, "is about CPUs, but GPUs compute here", "Leave it out.");
  }
  if (options.bf16_products != Bf16Products::kNative || !Bf16Instructions().empty()) return;
  throw deck.Complain(
      kBf16Key,
      fmt::format(
          "this processor ({}, {}) does not multiply bfloat16: that takes AVX512-BF16 or AMX",
          CpuName(), InstructionSet()),
      "Use run.bf16_products = fp32 or auto here.");
}

}  // namespace trireme::device
