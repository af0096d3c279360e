// Counts what a program's own code takes from the heap, and says who took it. A test that links
// allocations.cpp has its operator new replaced, and wrapped what its objects call of malloc's
// family (see trireme_count_allocations in test/CMakeLists.txt).
#pragma once

#include <cstdint>
#include <string>

namespace trireme::test {

// Counts from its construction to Stop(), on all threads. One at a time. An allocation is the
// program's own where its caller lies in the executable; the C++ library and the formatter work
// for theirs. What the shared libraries of MPI, HDF5, OpenMP and products take is their affair.
class AllocationCount {
 public:
  AllocationCount();
  ~AllocationCount() { Stop(); }
  AllocationCount(const AllocationCount&) = delete;
  AllocationCount& operator=(const AllocationCount&) = delete;

  void Stop();
  std::int64_t Count() const;
  // "    12 x Function at file:line < its caller < ...", the most frequent places first; in words
  // where addr2line is installed. After Stop().
  std::string Places() const;
};

}  // namespace trireme::test
