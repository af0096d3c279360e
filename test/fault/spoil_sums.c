// Preloaded into the program under test: one sum of fp32 numbers goes wrong on one rank.
//   TRIREME_SPOIL_RANK   rank of the world
//   TRIREME_SPOIL_NTH    the sum, counted from 1 among those of at least TRIREME_SPOIL_LEAST
//   numbers TRIREME_SPOIL_LEAST  1 unless stated TRIREME_SPOIL_COUNT  so many sums from that one
//   on; 1 unless stated
#include <math.h>
#include <mpi.h>
#include <stdlib.h>

static long Number(const char* name, long otherwise) {
  const char* text = getenv(name);
  return text == NULL ? otherwise : atol(text);
}

// Spoils sums that are not in place.
static void Spoil(const void* from, void* to, int count, MPI_Datatype type) {
  static long sums;
  if (from != MPI_IN_PLACE || type != MPI_FLOAT || count < Number("TRIREME_SPOIL_LEAST", 1)) return;
  int rank = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const long first = Number("TRIREME_SPOIL_NTH", 0);
  ++sums;
  if (rank != Number("TRIREME_SPOIL_RANK", -1) || sums < first) return;
  if (sums < first + Number("TRIREME_SPOIL_COUNT", 1)) *(float*)to = NAN;
}

int MPI_Allreduce(const void* from, void* to, int count, MPI_Datatype type, MPI_Op op,
                  MPI_Comm group) {
  Spoil(from, to, count, type);
  return PMPI_Allreduce(from, to, count, type, op, group);
}

int MPI_Iallreduce(const void* from, void* to, int count, MPI_Datatype type, MPI_Op op,
                   MPI_Comm group, MPI_Request* request) {
  Spoil(from, to, count, type);
  return PMPI_Iallreduce(from, to, count, type, op, group, request);
}
