// Products that the emulated cuBLASLt has no algorithm for, although they are supported, or none
// that repeats.
#ifndef TRIREME_TEST_EMULATOR_CUBLASLT_REFUSAL_HPP_
#define TRIREME_TEST_EMULATOR_CUBLASLT_REFUSAL_HPP_

#include <cstdint>

namespace emulator::cublaslt {

// Part of the products with an epilogue, in percent, that the heuristic refuses from here on;
// TRIREME_EMULATOR_CUBLASLT_REFUSE at the start, 0 by default.
void RefuseEpilogues(std::uint64_t percent);

// Whether bias gradients are summed in an order that changes from run to run:
// TRIREME_EMULATOR_CUBLASLT_VARY, 0 by default.
bool VariesSums();

// Whether a product with an epilogue is refused, by its hash and TRIREME_EMULATOR_SEED alone: the
// same on all ranks and each time.
bool IsRefused(std::uint64_t hash);

}  // namespace emulator::cublaslt

#endif  // TRIREME_TEST_EMULATOR_CUBLASLT_REFUSAL_HPP_
