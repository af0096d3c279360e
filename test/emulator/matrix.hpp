// Tensor cores and copies beside the thread: what the lanes of a warp do together, what a thread
// has under way, and bank conflicts.
#ifndef TRIREME_TEST_EMULATOR_MATRIX_HPP_
#define TRIREME_TEST_EMULATOR_MATRIX_HPP_

#include <cstdint>

namespace emulator {

// Does what the 32 lanes of a warp ask for: addresses of their MatrixRequests.
void DoForLanes(const std::uint64_t (&requests)[32]);

// The thread ends: dies where copies of it are still under way.
void EndCopies(int thread);

// Loads of matrices since the program's start, and how many more turns they took than without
// conflicts: a turn serves each of the 32 banks once.
struct MatrixLoads {
  std::int64_t turns = 0, more = 0;
};
MatrixLoads CountedMatrixLoads();

}  // namespace emulator

#endif  // TRIREME_TEST_EMULATOR_MATRIX_HPP_
