// cuBLASLt's status codes as exceptions.
#include "cuda/products_library.hpp"

#include <fmt/format.h>

#include "trireme/base/error.hpp"

namespace trireme::kernels::cuda {

void Check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const bool memory = status == CUBLAS_STATUS_ALLOC_FAILED;
  throw RunError(fmt::format("{}: cuBLASLt says {} ({})", what, cublasLtGetStatusString(status),
                             static_cast<int>(status)),
                 memory
                     ? "The card or the host has no memory left: see the memory plan (-v)."
                     : "Where the message does not help, report it with the line of `--version`.");
}

}  // namespace trireme::kernels::cuda
