// Where a kernel runs: every kernel launcher takes a stream. On the CPU a stream is a number of
// threads, and calls are complete when they return. On a GPU it is a queue, and calls return when
// their work is queued. On a planned device nothing runs, and work is counted.
#pragma once

#include <string>

namespace trireme::device {

enum class Kind { kCpu, kCuda, kPlanned };
const char* NameOf(Kind kind);  // "cpu", "cuda" (as in run.device), "planned"

struct GpuContext;  // device/gpu.hpp
class WorkLog;      // device/activities.hpp

// State that libraries keep between kernel calls: handles, chosen algorithms, scratch. Defined by
// the code that calls the library; owned by the job, destroyed before the device and MPI.
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
  WorkLog* log = nullptr;  // told of each kernel (on one thread then); null: no log
};

struct Stream {
  const GpuContext* gpu = nullptr;    // null: the CPU
  LibraryState* libraries = nullptr;  // null: none (CPU)
  OperationCount* planned = nullptr;  // not null: a planned device; `gpu` says whether CPU or GPU
  int threads = 1;                    // OpenMP threads of a CPU kernel
  // Matrix products in canonical form (run.canonical): each element is one fixed chain of
  // operations, independent of the threads and the rest of the matrix (doc/reference/numerics.md).
  bool canonical = false;
  // fp32 products round their operands to bf16 and add up in fp32 (run.precision = bf16): by
  // Bf16Instructions(), or with bf16_by_fp32 by fp32 products of the rounded operands.
  bool bf16 = false;
  bool bf16_by_fp32 = false;
  // On a GPU: products of linear layers use fp8 operands, with one scale per tensor.
  bool fp8 = false;

  Kind Where() const {
    if (Planned()) return Kind::kPlanned;
    return OnGpu() ? Kind::kCuda : Kind::kCpu;
  }
  // True for a planned GPU too: memory is laid out as on a GPU.
  bool OnGpu() const { return gpu != nullptr; }
  // Whether nothing is executed and no memory is touched.
  bool Planned() const { return planned != nullptr; }

  // The stream for one task among several: its kernels run on the calling thread alone.
  Stream Serial() const {
    Stream serial = *this;
    serial.threads = 1;
    return serial;
  }
};

// Returns `requested` or, if that is 0, OMP_NUM_THREADS; 0 if neither is set.
int RequestedThreads(int requested);
// Returns the threads of this rank: RequestedThreads or, if that is 0, `share` (the rank's share of
// the cores), at least 1. Sets the number of threads of OpenMP and the matrix library, and makes
// the process keep memory that libraries free.
int ConfigureThreads(int requested, int share);

std::string CpuName();           // "AMD EPYC 9004", from /proc/cpuinfo; "unknown CPU" elsewhere
std::string InstructionSet();    // the widest of this CPU: "AVX-512", "AVX2", "NEON", "baseline"
std::string Bf16Instructions();  // for bf16 products on this CPU: "AMX", "AVX512-BF16", or ""

}  // namespace trireme::device
