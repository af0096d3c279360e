// Stand-in for CUDA's runtime without its device part; here the same.
#ifndef TRIREME_TEST_EMULATOR_CUDA_RUNTIME_API_H_
#define TRIREME_TEST_EMULATOR_CUDA_RUNTIME_API_H_

#include "cuda_runtime.h"

#endif  // TRIREME_TEST_EMULATOR_CUDA_RUNTIME_API_H_
