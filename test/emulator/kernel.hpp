// Launches, the threads of a block, and what the lanes of a warp do together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "cuda_runtime.h"

namespace emulator {

// Limits of a launch, and the memory that the threads of a block share.

// Most dynamic shared memory that the kernel may be launched with on the current card, in bytes.
std::size_t SharedAllowance(const void* kernel);
void SetSharedAllowance(const void* kernel, std::size_t bytes);

// Runs the threads of one block as fibers, in an order that the dice decide.

// Numbers the threads of a block of this shape, for the blocks that follow.
void ShapeBlock(unsigned across, unsigned down, unsigned deep);
// Runs `thread` once for each of them. Dies where they wait for each other for ever.
void RunBlock(const std::function<void()>& thread);

// Tensor cores and copies beside the thread: what the lanes of a warp do together, what a thread
// has under way, and bank conflicts.

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
