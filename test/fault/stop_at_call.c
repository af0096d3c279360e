// Preloaded into the program under test: a rank stops or dies as it comes to a call of MPI.
//   TRIREME_STOP_RANK    rank of the world
//   TRIREME_STOP_NTH     its call, counted from 1; 0: none
//   TRIREME_STOP_SIGNAL  number of the signal that it gets there, before the call
//   TRIREME_STOP_LOG     file that gets a line at each of its calls, "NUMBER NAME"
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long calls;

static void Count(const char* name) {
  const char *rank = getenv("TRIREME_STOP_RANK"), *own = getenv("OMPI_COMM_WORLD_RANK");
  const char *nth = getenv("TRIREME_STOP_NTH"), *number = getenv("TRIREME_STOP_SIGNAL");
  const char* log = getenv("TRIREME_STOP_LOG");
  if (rank == NULL || own == NULL || strcmp(rank, own) != 0) return;
  ++calls;
  if (log != NULL) {
    FILE* file = fopen(log, "a");
    if (file == NULL) abort();
    fprintf(file, "%ld %s\n", calls, name);
    fclose(file);
  }
  if (nth != NULL && number != NULL && calls == atol(nth)) raise(atoi(number));
}

#define COUNTED(name, parameters, arguments) \
  int MPI_##name parameters {                \
    Count(#name);                            \
    return PMPI_##name arguments;            \
  }
COUNTED(Allreduce, (const void* from, void* to, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm),
        (from, to, n, type, op, comm))
COUNTED(Iallreduce,
        (const void* from, void* to, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
         MPI_Request* request),
        (from, to, n, type, op, comm, request))
COUNTED(Reduce,
        (const void* from, void* to, int n, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm),
        (from, to, n, type, op, root, comm))
COUNTED(Ireduce_scatter,
        (const void* from, void* to, const int* n, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
         MPI_Request* request),
        (from, to, n, type, op, comm, request))
COUNTED(Iallgatherv,
        (const void* from, int n, MPI_Datatype type, void* to, const int* counts, const int* begins,
         MPI_Datatype to_type, MPI_Comm comm, MPI_Request* request),
        (from, n, type, to, counts, begins, to_type, comm, request))
COUNTED(Ialltoallv,
        (const void* from, const int* out, const int* out_begins, MPI_Datatype type, void* to,
         const int* in, const int* in_begins, MPI_Datatype to_type, MPI_Comm comm,
         MPI_Request* request),
        (from, out, out_begins, type, to, in, in_begins, to_type, comm, request))
COUNTED(Bcast, (void* data, int n, MPI_Datatype type, int root, MPI_Comm comm),
        (data, n, type, root, comm))
COUNTED(Ibcast,
        (void* data, int n, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request* request),
        (data, n, type, root, comm, request))
COUNTED(Barrier, (MPI_Comm comm), (comm))
COUNTED(Ibarrier, (MPI_Comm comm, MPI_Request* request), (comm, request))
COUNTED(Isend,
        (const void* from, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm,
         MPI_Request* request),
        (from, n, type, to, tag, comm, request))
COUNTED(Irecv,
        (void* to, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm,
         MPI_Request* request),
        (to, n, type, from, tag, comm, request))
