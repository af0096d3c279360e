// Progress of the emulated GPU while a process waits in MPI: before calls of MPI that wait for
// other ranks, the streams of this process go on until the others have come. Weak definitions, so
// that a test may count calls with its own.
#include <mpi.h>
#include <sched.h>

#include "queue.hpp"
#include "stream.hpp"

namespace emulator {
namespace {

template <typename Done>
void GoOnUntil(Done&& done) {
  while (!done()) {
    if (AllStreams().empty() || !RunALittle()) sched_yield();
  }
}

// Returns when all ranks have come: what follows waits for nobody's stream.
void Arrive(MPI_Comm comm) {
  int size = 0;
  PMPI_Comm_size(comm, &size);
  if (size == 1) return;
  MPI_Request all = MPI_REQUEST_NULL;
  PMPI_Ibarrier(comm, &all);
  GoOnUntil([&] {
    int done = 0;
    PMPI_Test(&all, &done, MPI_STATUS_IGNORE);
    return done != 0;
  });
}

}  // namespace
}  // namespace emulator

using emulator::Arrive;

extern "C" {

[[gnu::weak]] int MPI_Barrier(MPI_Comm comm) {
  Arrive(comm);
  return MPI_SUCCESS;
}

[[gnu::weak]] int MPI_Bcast(void* data, int count, MPI_Datatype type, int root, MPI_Comm comm) {
  Arrive(comm);
  return PMPI_Bcast(data, count, type, root, comm);
}

[[gnu::weak]] int MPI_Allreduce(const void* from, void* to, int count, MPI_Datatype type,
                                MPI_Op operation, MPI_Comm comm) {
  Arrive(comm);
  return PMPI_Allreduce(from, to, count, type, operation, comm);
}

[[gnu::weak]] int MPI_Reduce_scatter(const void* from, void* to, const int* counts,
                                     MPI_Datatype type, MPI_Op operation, MPI_Comm comm) {
  Arrive(comm);
  return PMPI_Reduce_scatter(from, to, counts, type, operation, comm);
}

[[gnu::weak]] int MPI_Allgather(const void* from, int sent, MPI_Datatype sent_type, void* to,
                                int taken, MPI_Datatype taken_type, MPI_Comm comm) {
  Arrive(comm);
  return PMPI_Allgather(from, sent, sent_type, to, taken, taken_type, comm);
}

[[gnu::weak]] int MPI_Allgatherv(const void* from, int sent, MPI_Datatype sent_type, void* to,
                                 const int* taken, const int* places, MPI_Datatype taken_type,
                                 MPI_Comm comm) {
  Arrive(comm);
  return PMPI_Allgatherv(from, sent, sent_type, to, taken, places, taken_type, comm);
}

[[gnu::weak]] int MPI_Alltoallv(const void* from, const int* sent, const int* sent_places,
                                MPI_Datatype sent_type, void* to, const int* taken,
                                const int* taken_places, MPI_Datatype taken_type, MPI_Comm comm) {
  Arrive(comm);
  return PMPI_Alltoallv(from, sent, sent_places, sent_type, to, taken, taken_places, taken_type,
                        comm);
}

[[gnu::weak]] int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm* part) {
  Arrive(comm);
  return PMPI_Comm_split(comm, color, key, part);
}

[[gnu::weak]] int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* other) {
  Arrive(comm);
  return PMPI_Comm_dup(comm, other);
}

[[gnu::weak]] int MPI_Wait(MPI_Request* request, MPI_Status* status) {
  emulator::GoOnUntil([&] {
    int done = 0;
    PMPI_Test(request, &done, status);
    return done != 0;
  });
  return MPI_SUCCESS;
}

}  // extern "C"
