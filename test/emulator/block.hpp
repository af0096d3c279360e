// Runs the threads of one block as fibers, in an order that the dice decide.
#ifndef TRIREME_TEST_EMULATOR_BLOCK_HPP_
#define TRIREME_TEST_EMULATOR_BLOCK_HPP_

#include <cstddef>
#include <functional>

namespace emulator {

// Numbers the threads of a block of this shape, for the blocks that follow.
void ShapeBlock(unsigned across, unsigned down, unsigned deep);
// Runs `thread` once for each of them. Dies where they wait for each other for ever.
void RunBlock(const std::function<void()>& thread);

}  // namespace emulator

#endif  // TRIREME_TEST_EMULATOR_BLOCK_HPP_
