// Which libraries compute products and attention.
#include <cublasLt.h>
#include <fmt/format.h>

#include "attention.hpp"
#include "backends.hpp"

namespace trireme::kernels {

std::string cuda::GpuMathLibraries() {
  const std::size_t version = cublasLtGetVersion();  // 120403 is 12.4.3
  constexpr std::size_t kMajor = 10000, kMinor = 100;
  const std::string cudnn = CudnnName();
  return fmt::format("cuBLASLt {}.{}.{}, {}", version / kMajor, version % kMajor / kMinor,
                     version % kMinor, cudnn.empty() ? "without cuDNN" : "attention with " + cudnn);
}

}  // namespace trireme::kernels
