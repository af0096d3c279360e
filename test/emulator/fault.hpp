// Ends the process with a message if an emulated program does what fails on a GPU.
#ifndef TRIREME_TEST_EMULATOR_FAULT_HPP_
#define TRIREME_TEST_EMULATOR_FAULT_HPP_

#include <cstdint>

#include "cuda_runtime.h"

namespace emulator {

// Catches invalid accesses from now on; again where another library took the signal over.
void WatchFaults();
// A fault in these addresses means that a kernel `did` ("overflowed a thread's stack").
void NoteGuarded(std::uintptr_t begin, std::uintptr_t end, const char* did);

// Operation that runs now, for messages.
struct Running {
  const char* what = nullptr;  // "kernel", "copy", ...; null: host code
  std::uint64_t number = 0;    // of the operation since the start
};
extern Running running;

}  // namespace emulator

#endif  // TRIREME_TEST_EMULATOR_FAULT_HPP_
