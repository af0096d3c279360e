// Counts what MPI is really given. A test program that has counted_mpi.cpp among its sources gets
// wrappers of the calls below (MPI's profiling interface), which count and forward. Other calls by
// which ranks could exchange something are counted together.
#pragma once

#include <mpi.h>

#include <cstdint>

namespace trireme::test::counted_mpi {

enum class Function {
  kAllreduce,
  kIallreduce,
  kReduceScatter,
  kIreduceScatter,
  kAllgatherv,
  kIallgatherv,
  kAlltoallv,
  kBcast,
  kIsend,
  kIrecv,
  kOther,  // every other call that talks to other ranks: calls alone, no bytes
};
inline constexpr int kFunctions = 11;

struct Count {
  std::int64_t calls = 0;
  std::int64_t bytes = 0;           // of the whole operand: all ranks' parts together
  const void* last_data = nullptr;  // of the last call: the memory that is sent from, or in place
};

// Since the last Reset, on this rank: over all communicators, or over one.
Count Of(Function function, MPI_Comm comm = MPI_COMM_NULL);
void Reset();
// false: calls of Allreduce and Bcast are counted but not forwarded, and touch no memory.
void Forward(bool forward);

}  // namespace trireme::test::counted_mpi
