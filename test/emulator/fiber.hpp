// Stacks to switch between within one OS thread, on Boost.Context's bare switch.
#ifndef TRIREME_TEST_EMULATOR_FIBER_HPP_
#define TRIREME_TEST_EMULATOR_FIBER_HPP_

#include <cstddef>

namespace emulator {

// State of an execution that does not run now.
struct Execution {
  void* context = nullptr;
  const void* bottom = nullptr;  // of its stack, for AddressSanitizer
  std::size_t stack_bytes = 0;
  void* fake_stack = nullptr;
};

// Goes on in `to`; returns when somebody switches to `from`.
void Switch(Execution& from, Execution& to);

// A new execution, which calls `main` when it is switched to for the first time. Its stack, with a
// guard, is never given back: at most kMaxFibers of them. `main` must not return.
inline constexpr int kMaxFibers = 1025;
Execution* MakeFiber(void (*main)());

}  // namespace emulator

#endif  // TRIREME_TEST_EMULATOR_FIBER_HPP_
