// Attention on a GPU, by cuDNN or by our own kernels, and the state of a GPU's math libraries.
#include <cublasLt.h>
#include <fmt/format.h>
#include <algorithm>

#include "attention.hpp"
#include "backends.hpp"
#include "cudnn_plan.hpp"
#include "libraries.hpp"
#include "trireme/base/error.hpp"
#include "trireme/device/gpu.hpp"

namespace trireme::kernels::cuda {

// Choice of attention's kernels: cuDNN if the build has it, it can compute the shape and it pays,
// else our own. It depends on shapes, types and strides alone, so that runs repeat.

namespace {

constexpr bool kCudnn = TRIREME_CUDNN != 0;

// Whether the build has cuDNN, and the library is loaded.
bool HasCudnn() {
  if constexpr (kCudnn) return CudnnIsThere();
  return false;
}

// Up to this length a sequence is one tile of our own kernels, with a backward pass in one launch.
constexpr std::int64_t kLongestOwn = 64;

bool Pays(const device::Stream& stream, std::int64_t length) {
  return length > kLongestOwn || stream.gpu->attention == device::AttentionKernels::kCudnn;
}

// cuDNN needs a head_dim that is a multiple of 8; its dropout differs from ours, and padding is not
// described to it.
bool MayServe(const device::Stream& stream, const AttentionShape& shape, Dtype dtype,
              bool dropout) {
  return HasCudnn() && stream.gpu->attention != device::AttentionKernels::kOwn &&
         shape.sequences > 0 && Pays(stream, shape.length) && shape.head_dim % 8 == 0 &&
         shape.head_dim <= 256 && dtype == Dtype::kBfloat16 && !dropout &&
         shape.key_lengths == nullptr && (shape.begins == nullptr || shape.causal);
}

}  // namespace

std::string WhyNoCudnn() { return HasCudnn() ? "" : "this program was built without cuDNN"; }

std::string WhyNoFixedOrder(const device::Stream& stream, std::int64_t length) {
  if constexpr (kCudnn) {
    if (HasCudnn() && Pays(stream, length)) return WhyNoFixedOrderOfCudnn(stream);
  }
  return "";
}

std::string CudnnName() {
  if constexpr (kCudnn) {
    if (CudnnIsThere()) return CudnnVersions();
  }
  return "";
}

bool CudnnServes(const device::Stream& stream, const AttentionShape& shape, Dtype dtype,
                 bool backward) {
  if constexpr (kCudnn) {
    return MayServe(stream, shape, dtype, false) && CudnnHasPlan(stream, shape, backward);
  }
  return false;
}

std::int64_t AttentionScratch(const device::Stream& stream, const AttentionShape& shape,
                              Dtype dtype, bool dropout) {
  const std::int64_t own = gpu::AttentionScratch(stream, shape, dtype, dropout);
  if constexpr (kCudnn) {
    // An evaluation has no dropout and no backward pass, so cuDNN may serve it in any case.
    if (MayServe(stream, shape, dtype, false)) {
      return CudnnAttentionScratch(stream, shape, own, !dropout);
    }
  }
  return own;
}

std::int64_t AttentionPartScratch(const device::Stream& stream, const AttentionShape& shape,
                                  std::int64_t most_keys, Dtype dtype, bool dropout) {
  const std::int64_t own = gpu::AttentionPartScratch(stream, shape, most_keys, dtype, dropout);
  if constexpr (kCudnn) {
    if (shape.begins == nullptr && MayServe(stream, shape, dtype, false)) {
      return CudnnPartScratch(stream, shape, own, !dropout);
    }
  }
  return own;
}

void Attend(const AttentionPass& pass) {
  if constexpr (kCudnn) {
    const bool documents = pass.shape.begins != nullptr;
    if (MayServe(pass.stream, pass.shape, pass.qkv.dtype, pass.dropout.Active())) {
      if (pass.whole && documents) {
        const std::int32_t* const served = CudnnDocuments(pass);
        return OwnAttentionOfRest(pass, served);
      }
      // cuDNN cannot cut parts of sequences into documents.
      if (!documents && (pass.whole ? CudnnAttention(pass) : CudnnPart(pass))) return;
    }
  }
  OwnAttention(pass);
}

void Check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const bool memory = status == CUBLAS_STATUS_ALLOC_FAILED;
  throw RunError(fmt::format("{}: cuBLASLt says {} ({})", what, cublasLtGetStatusString(status),
                             static_cast<int>(status)),
                 memory
                     ? "The card or the host has no memory left: see the memory plan (-v)."
                     : "Where the message does not help, report it with the line of `--version`.");
}

// State of a GPU's math libraries, and their names.

GpuLibraries::GpuLibraries(const device::Stream& stream, int sites)
    : algorithms_(*stream.gpu), fp8_(stream, stream.fp8 ? sites : 0) {}

GpuLibraries& GpuLibrariesOf(const device::Stream& stream) {
  if (stream.libraries == nullptr) {
    throw RunError("a matrix product on a GPU's stream that has no libraries",
                   "This is a bug in Trireme.");
  }
  return *static_cast<GpuLibraries*>(stream.libraries);
}

void Multiply(const device::Stream& stream, const Product& product) {
  if (GpuLibrariesOf(stream).Run(stream, product)) return;
  throw RunError(fmt::format("cuBLASLt has no algorithm for the matrix product {} on {}",
                             ProductKey(product).Text(), stream.gpu->name),
                 "This is a bug in Trireme.");
}

std::unique_ptr<Libraries> MakeLibraries(const device::Stream& stream, int sites) {
  return std::make_unique<GpuLibraries>(stream, sites);
}

std::string GpuMathLibraries() {
  const std::size_t version = cublasLtGetVersion();  // 120403 is 12.4.3
  constexpr std::size_t kMajor = 10000, kMinor = 100;
  const std::string cudnn = CudnnName();
  return fmt::format("cuBLASLt {}.{}.{}, {}", version / kMajor, version % kMajor / kMinor,
                     version % kMinor, cudnn.empty() ? "without cuDNN" : "attention with " + cudnn);
}

}  // namespace trireme::kernels::cuda
