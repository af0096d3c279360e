// Common parts of the runtime's API.
#ifndef TRIREME_TEST_EMULATOR_API_HPP_
#define TRIREME_TEST_EMULATOR_API_HPP_

#include <mutex>

#include "cuda_runtime.h"

namespace emulator {

// One call at a time, from whatever OS thread: kernels run within a call.
class Entry {
 public:
  Entry() : lock_(Mutex()) {}

 private:
  static std::recursive_mutex& Mutex();
  std::lock_guard<std::recursive_mutex> lock_;
};

// Keeps the code as the last error, without a word on stderr.
cudaError_t Fail(cudaError_t code);

}  // namespace emulator

#endif  // TRIREME_TEST_EMULATOR_API_HPP_
