// The [run] section: device, threads and arithmetic.
#pragma once

#include <cstdint>
#include <string>

#include "trireme/base/dtype.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/device/stream.hpp"

namespace trireme::device {

enum class Device { kAuto, kCpu, kCuda };  // kAuto: GPUs if every rank sees one
inline bool MayTakeGpu(Device device) { return device == Device::kAuto || device == Device::kCuda; }
enum class Precision { kFp32, kBf16, kFp8, kFp64 };
const char* NameOf(Precision precision);      // as in the deck
enum class ShareDevice { kNo, kYes, kNccl };  // kYes: transfers via the host; kNccl: by NCCL
enum class Graphs { kAuto, kNo };
enum class Pin { kAuto, kYes, kNo };
// How a CPU computes products in bf16: by its own instructions, or as fp32 products of rounded
// operands.
enum class Bf16Products { kAuto, kNative, kFp32 };

struct Options {
  Device device = Device::kAuto;
  ShareDevice share_device = ShareDevice::kNo;  // whether several ranks may share a GPU
  Graphs graphs = Graphs::kAuto;  // on a GPU: record steps as CUDA graphs where possible
  std::string products = "auto";  // file of the chosen matrix products; "auto": in the user's cache
                                  // folder; empty: no file
  device::AttentionKernels attention = device::AttentionKernels::kAuto;  // on a GPU
  bool deterministic = true;  // on a GPU: the same bits in every run
  Precision precision = Precision::kFp32;
  Bf16Products bf16_products = Bf16Products::kAuto;
  std::uint32_t seed = 1;   // for initial weights, sample order and dropout
  int threads = 0;          // OpenMP threads per rank; 0: OMP_NUM_THREADS or the rank's share
  Pin pin = Pin::kAuto;     // whether to bind threads to cores
  double hang_timeout = 0;  // seconds without progress; 0: follows from measured times
};

void Declare(deck::Schema& schema);  // [run], without the keys of parallel/options.hpp

Options Read(const deck::Deck& deck);

// run.precision: which types and products it means on a device, and whether the device supports it.

struct Arithmetic {
  Dtype dtype = Dtype::kFloat32;  // of values and activations; on a GPU bf16 for both bf16 and fp8
  bool bf16_products = false;     // on the CPU: products round their operands to bf16
  bool fp8_products = false;      // on a GPU
};
Arithmetic ArithmeticOf(Precision precision, bool on_gpu);

// Throws an InputError that names the deck's line if the stream's device does not support the
// precision, or bf16 products in the way that the deck asks for.
void CheckPrecision(const Options& options, const device::Stream& stream, const deck::Deck& deck);

}  // namespace trireme::device
