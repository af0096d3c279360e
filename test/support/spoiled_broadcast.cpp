// MPI_Bcast that spoils what arrives.
#include "spoiled_broadcast.hpp"

#include <mpi.h>

namespace trireme::test {

namespace {
long spoiled_above = 0;
}  // namespace

SpoiledBroadcast::SpoiledBroadcast(long least) { spoiled_above = least; }
SpoiledBroadcast::~SpoiledBroadcast() { spoiled_above = 0; }

}  // namespace trireme::test

extern "C" int MPI_Bcast(void* data, int count, MPI_Datatype type, int root, MPI_Comm group) {
  const int result = PMPI_Bcast(data, count, type, root, group);
  const bool spoils = trireme::test::spoiled_above > 0 && count > trireme::test::spoiled_above;
  if (spoils) static_cast<unsigned char*>(data)[count / 2] ^= 1;
  return result;
}
