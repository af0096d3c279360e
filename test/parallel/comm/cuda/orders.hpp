// Orders in which queues run: all that a test should try. An emulated GPU decides by a seed, a real
// one for itself.
#ifndef TRIREME_TEST_PARALLEL_COMM_CUDA_ORDERS_HPP_
#define TRIREME_TEST_PARALLEL_COMM_CUDA_ORDERS_HPP_

#ifdef TRIREME_EMULATED
#include <mpi.h>

#include "emulator/stream.hpp"
#endif

namespace trireme::test {

#ifdef TRIREME_EMULATED
inline int Orders() { return 6; }
// order: from 0; another on each rank.
inline void ChooseOrder(int order) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  constexpr unsigned long long kMostRanks = 1000;
  emulator::SetSeed(1 + static_cast<unsigned long long>(order) * kMostRanks +
                    static_cast<unsigned long long>(rank));
}
#else
inline int Orders() { return 1; }
inline void ChooseOrder(int) {}
#endif

}  // namespace trireme::test

#endif  // TRIREME_TEST_PARALLEL_COMM_CUDA_ORDERS_HPP_
