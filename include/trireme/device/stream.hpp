// Place where a kernel runs: the handle that every kernel launcher takes. On the CPU a stream is a
// number of threads, and every call is complete when it returns; on a GPU it is a queue, and every
// call returns when its work is queued; on a planned device nothing is executed, and work is
// counted.
#pragma once

#include <string>

namespace trireme::device {

enum class Kind { kCpu, kCuda, kPlanned };
const char* NameOf(Kind kind);  // "cpu", "cuda", as run.device names them; "planned"

struct GpuContext;  // device/gpu.hpp
class WorkLog;      // device/activities.hpp

// State that libraries keep between calls of kernels: handles, chosen algorithms, scratch. Defined
// by the callers of the libraries; owned by the job, destroyed before the device and MPI.
class LibraryState {
 public:
  LibraryState() = default;
  LibraryState(const LibraryState&) = delete;
  LibraryState& operator=(const LibraryState&) = delete;
  virtual ~LibraryState() = default;
};

// Work that kernels would have done on a planned device.
struct OperationCount {
  double flops = 0;        // floating-point operations of matrix products and attention
  WorkLog* log = nullptr;  // told of each kernel; null: of none. Then one thread runs kernels
};

struct Stream {
  const GpuContext* gpu = nullptr;    // null: the CPU
  LibraryState* libraries = nullptr;  // null: the CPU, which keeps none
  OperationCount* planned = nullptr;  // not null: a planned device, CPU or GPU by `gpu`
  int threads = 1;                    // OpenMP threads of a CPU kernel
  // Matrix products in canonical form: each element is one chain of operations, whatever the number
  // of threads and the rest of the matrix. run.canonical (doc/reference/numerics.md).
  bool canonical = false;
  // fp32 products round their operands to bf16 and add up in fp32: run.precision = bf16. Needs a
  // CPU with Bf16Instructions().
  bool bf16 = false;
  // On a GPU: products of linear layers take fp8 operands, scaled tensor by tensor.
  bool fp8 = false;

  Kind Where() const {
    if (Planned()) return Kind::kPlanned;
    return OnGpu() ? Kind::kCuda : Kind::kCpu;
  }
  // True for a planned GPU too: memory is laid out as on a GPU.
  bool OnGpu() const { return gpu != nullptr; }
  // Nothing is executed, and no memory is touched.
  bool Planned() const { return planned != nullptr; }

  // The stream of one task among several: its kernels run on the calling thread.
  Stream Serial() const {
    Stream serial = *this;
    serial.threads = 1;
    return serial;
  }
};

// `requested`; if that is 0, OMP_NUM_THREADS; 0 if neither is set.
int RequestedThreads(int requested);
// Threads of this rank: RequestedThreads, else `share`, the rank's share of the cores (at least 1).
// Sets the number of threads of OpenMP and of the matrix library, and keeps memory that libraries
// free within the process.
int ConfigureThreads(int requested, int share);

std::string CpuName();           // "AMD EPYC 9004", from /proc/cpuinfo; "unknown CPU" elsewhere
std::string InstructionSet();    // widest of this CPU: "AVX-512", "AVX2", "NEON", "baseline"
std::string Bf16Instructions();  // bf16 products of this CPU: "AMX", "AVX512-BF16", or ""

}  // namespace trireme::device
