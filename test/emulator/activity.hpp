// Kinds and times of operations, told to a stand-in of CUPTI that the program has loaded
// (support/stub_cupti.c). Only if TRIREME_CUPTI names that library.
#ifndef TRIREME_TEST_EMULATOR_ACTIVITY_HPP_
#define TRIREME_TEST_EMULATOR_ACTIVITY_HPP_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "cuda_runtime.h"

namespace emulator {

struct Label {
  enum class Kind { kNone, kKernel, kCopy, kFill, kGraph };
  Kind kind = Kind::kNone;
  const void* kernel = nullptr;  // kKernel: its function; null: has
  const char* name = nullptr;    // name of the kernel
  std::size_t bytes = 0;         // kCopy, kFill
};

// The step, which tells of itself when it is done. captured: it is a node of a graph, whose launch
// is the call that it belongs to.
std::function<bool()> Told(std::function<bool()> step, const Label& label, cudaStream_t stream,
                           bool captured);

// The symbol of a function of this program, mangled; "" if there is none.
std::string SymbolOf(const void* function);

}  // namespace emulator

#endif  // TRIREME_TEST_EMULATOR_ACTIVITY_HPP_
