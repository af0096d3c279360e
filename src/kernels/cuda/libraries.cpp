// State of a GPU's math libraries, and their names.
#include "cuda/libraries.hpp"

#include <cublasLt.h>
#include <fmt/format.h>

#include "attention.hpp"
#include "backends.hpp"
#include "trireme/base/error.hpp"

namespace trireme::kernels {

namespace cuda {

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

}  // namespace cuda

std::unique_ptr<Libraries> cuda::MakeLibraries(const device::Stream& stream, int sites) {
  return std::make_unique<GpuLibraries>(stream, sites);
}

std::string cuda::GpuMathLibraries() {
  const std::size_t version = cublasLtGetVersion();  // 120403 is 12.4.3
  constexpr std::size_t kMajor = 10000, kMinor = 100;
  const std::string cudnn = CudnnName();
  return fmt::format("cuBLASLt {}.{}.{}, {}", version / kMajor, version % kMajor / kMinor,
                     version % kMinor, cudnn.empty() ? "without cuDNN" : "attention with " + cudnn);
}

}  // namespace trireme::kernels
