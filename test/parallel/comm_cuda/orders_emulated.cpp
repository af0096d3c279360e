// Orders of the emulator's queues, by its seed.
#include <mpi.h>

#include "emulator/stream.hpp"
#include "orders.hpp"

namespace trireme::test {

int Orders() { return 6; }

void ChooseOrder(int order) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  constexpr unsigned long long kMostRanks = 1000;
  emulator::SetSeed(1 + static_cast<unsigned long long>(order) * kMostRanks +
                    static_cast<unsigned long long>(rank));
}

}  // namespace trireme::test
