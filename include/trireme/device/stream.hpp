// Where a kernel runs: the handle that every kernel launcher takes. On the CPU a stream is a number
// of threads, and every call is complete when it returns; on a GPU it is a queue, and every call
// returns when its work is queued behind what was queued before.
#ifndef TRIREME_DEVICE_STREAM_HPP_
#define TRIREME_DEVICE_STREAM_HPP_

#include <string>

namespace trireme::kernels {
class Products;  // kernels/products.hpp
}

namespace trireme::device {

enum class Kind { kCpu, kCuda };

struct GpuContext;  // device/gpu.hpp

struct Stream {
  const GpuContext* gpu = nullptr;        // null: the CPU
  kernels::Products* products = nullptr;  // of a GPU: how its matrix products are computed
  int threads = 1;                        // OpenMP threads of a CPU kernel
  // Products whose every element is the same chain of operations whatever the number of threads and
  // the rest of the matrix: run.canonical (doc/numerics.md).
  bool canonical = false;
  // fp32 products round their operands to bf16 and add up in fp32: run.precision = bf16. Needs a
  // CPU with Bf16Instructions().
  bool bf16 = false;
  // On a GPU: products of linear layers take fp8 operands, scaled tensor by tensor.
  bool fp8 = false;

  Kind Where() const { return gpu == nullptr ? Kind::kCpu : Kind::kCuda; }
  bool OnGpu() const { return gpu != nullptr; }

  // The stream of one task among several: its kernels run on the calling thread.
  Stream Serial() const {
    Stream serial = *this;
    serial.threads = 1;
    return serial;
  }
};

// `requested`, or, where that is 0, what OMP_NUM_THREADS says; 0: nobody has decided.
int RequestedThreads(int requested);
// Threads of this rank: RequestedThreads, else `share`, this rank's share of the cores (at least
// 1). Sets the number of threads of OpenMP and of the matrix library, and keeps memory that
// libraries free in the process.
int ConfigureThreads(int requested, int share);

std::string CpuName();           // "AMD EPYC 9004" as /proc/cpuinfo has it, "unknown CPU" elsewhere
std::string InstructionSet();    // widest that this CPU has: "AVX-512", "AVX2", "NEON", "baseline"
std::string Bf16Instructions();  // what this CPU multiplies bf16 with: "AMX", "AVX512-BF16", or ""

}  // namespace trireme::device

#endif  // TRIREME_DEVICE_STREAM_HPP_
