// Precision: which arithmetic run.precision asks for, and which a device lacks.
#include "trireme/device/precision.hpp"

#include <fmt/format.h>

#include "trireme/device/gpu.hpp"

namespace trireme::device {

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
