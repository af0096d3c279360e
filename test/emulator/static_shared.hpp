// Static shared memory: addresses of the variables of all kernels, and filling those of one with
// NaN.
#ifndef TRIREME_TEST_EMULATOR_STATIC_SHARED_HPP_
#define TRIREME_TEST_EMULATOR_STATIC_SHARED_HPP_

#include <cstddef>
#include <unordered_map>
#include <vector>

namespace emulator {

// Learns which variables a kernel uses by looking at their contents after a block.
class StaticShared {
 public:
  static StaticShared& The();
  void Spoil(const void* kernel) const;  // before a block
  // Behind the first block of a launch; now and then, and when the kernel is new.
  void Learn(const void* kernel);

 private:
  struct Variable {
    unsigned char* data;
    std::size_t bytes;
  };
  StaticShared();
  std::vector<Variable> variables_;                                 // of the whole program
  std::unordered_map<const void*, std::vector<std::size_t>> used_;  // by kernel
};

}  // namespace emulator

#endif  // TRIREME_TEST_EMULATOR_STATIC_SHARED_HPP_
