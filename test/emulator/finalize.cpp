// RefuseAfterFinalize: the end of MPI as the end of all work on cards.
#include <mpi.h>

#include <string>

#include "stream.hpp"

namespace emulator {

void RefuseAfterFinalize(const char* call) {
  int ended = 0;
  PMPI_Finalized(&ended);
  if (ended != 0) Die(std::string(call) + " after MPI_Finalize");
}

}  // namespace emulator
