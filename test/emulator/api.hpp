// Common parts of the runtime's API.
#ifndef TRIREME_TEST_EMULATOR_API_HPP_
#define TRIREME_TEST_EMULATOR_API_HPP_

#include <mutex>

#include "cuda_runtime.h"
#include "stream.hpp"

namespace emulator {

// One call at a time, from whatever OS thread: kernels run within a call. None after MPI_Finalize.
class Entry {
 public:
  explicit Entry(const char* call = __builtin_FUNCTION()) : lock_(Mutex()) {
    RefuseAfterFinalize(call);
  }

 private:
  static std::recursive_mutex& Mutex();
  std::lock_guard<std::recursive_mutex> lock_;
};

// Keeps the code as the last error, without a word on stderr.
cudaError_t Fail(cudaError_t code);

}  // namespace emulator

#endif  // TRIREME_TEST_EMULATOR_API_HPP_
