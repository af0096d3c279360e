/* Preloaded into all ranks: counts what the program gives MPI until it exchanges the first gradients or activations (a
 * thousand numbers at once), and writes it into $TRIREME_COUNTS/RANKS_RANK at the end: calls, operands of broadcasts and reductions, bytes that come from all others, bytes at a root, messages from
 * one rank to another, communicators, openings of files by all. */
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static long long calls, operands, gathered, rooted, messages, message_bytes, groups, files;

static int over; /* set-up is over: step 1 has begun */
static void see(long long numbers, MPI_Datatype type) {
  if (numbers >= 1000 && type == MPI_FLOAT) over = 1;
}
static long long add(long long* counter, long long amount) { return over ? *counter : (*counter += amount); }

static long long size_of(MPI_Datatype type) {
  int size = 0;
  PMPI_Type_size(type, &size);
  return size;
}
static int ranks_of(MPI_Comm comm) {
  int size = 0;
  PMPI_Comm_size(comm, &size);
  return size;
}

int MPI_Allreduce(const void* from, void* to, int count, MPI_Datatype type, MPI_Op operation, MPI_Comm comm) {
  see(count, type);
  add(&calls, 1);
  add(&operands, count * size_of(type));
  return PMPI_Allreduce(from, to, count, type, operation, comm);
}
int MPI_Iallreduce(const void* from, void* to, int count, MPI_Datatype type, MPI_Op operation, MPI_Comm comm,
                   MPI_Request* request) {
  see(count, type);
  add(&calls, 1);
  return PMPI_Iallreduce(from, to, count, type, operation, comm, request);
}
int MPI_Ireduce_scatter(const void* from, void* to, const int counts[], MPI_Datatype type, MPI_Op operation,
                        MPI_Comm comm, MPI_Request* request) {
  long long sum = 0;
  for (int i = 0; i < ranks_of(comm); ++i) sum += counts[i];
  see(sum, type);
  add(&calls, 1);
  return PMPI_Ireduce_scatter(from, to, counts, type, operation, comm, request);
}
int MPI_Bcast(void* data, int count, MPI_Datatype type, int root, MPI_Comm comm) {
  add(&calls, 1);
  add(&operands, count * size_of(type));
  return PMPI_Bcast(data, count, type, root, comm);
}
int MPI_Barrier(MPI_Comm comm) {
  add(&calls, 1);
  return PMPI_Barrier(comm);
}
int MPI_Allgather(const void* from, int count, MPI_Datatype from_type, void* to, int to_count, MPI_Datatype type,
                  MPI_Comm comm) {
  add(&calls, 1);
  add(&gathered, to_count * size_of(type) * ranks_of(comm));
  return PMPI_Allgather(from, count, from_type, to, to_count, type, comm);
}
int MPI_Allgatherv(const void* from, int count, MPI_Datatype from_type, void* to, const int counts[],
                   const int starts[], MPI_Datatype type, MPI_Comm comm) {
  add(&calls, 1);
  for (int i = 0; i < ranks_of(comm); ++i) add(&gathered, counts[i] * size_of(type));
  return PMPI_Allgatherv(from, count, from_type, to, counts, starts, type, comm);
}
int MPI_Gather(const void* from, int count, MPI_Datatype from_type, void* to, int to_count, MPI_Datatype type,
               int root, MPI_Comm comm) {
  int rank = 0;
  PMPI_Comm_rank(comm, &rank);
  add(&calls, 1);
  if (rank == root) add(&rooted, to_count * size_of(type) * ranks_of(comm));
  return PMPI_Gather(from, count, from_type, to, to_count, type, root, comm);
}
int MPI_Alltoallv(const void* from, const int counts[], const int starts[], MPI_Datatype type, void* to,
                  const int to_counts[], const int to_starts[], MPI_Datatype to_type, MPI_Comm comm) {
  add(&calls, 1);
  for (int i = 0; i < ranks_of(comm); ++i) add(&gathered, to_counts[i] * size_of(to_type));
  return PMPI_Alltoallv(from, counts, starts, type, to, to_counts, to_starts, to_type, comm);
}
int MPI_Gatherv(const void* from, int count, MPI_Datatype from_type, void* to, const int counts[], const int starts[],
                MPI_Datatype type, int root, MPI_Comm comm) {
  int rank = 0;
  PMPI_Comm_rank(comm, &rank);
  add(&calls, 1);
  for (int i = 0; rank == root && i < ranks_of(comm); ++i) add(&rooted, counts[i] * size_of(type));
  return PMPI_Gatherv(from, count, from_type, to, counts, starts, type, root, comm);
}
int MPI_Alltoall(const void* from, int count, MPI_Datatype from_type, void* to, int to_count, MPI_Datatype type,
                 MPI_Comm comm) {
  add(&calls, 1);
  add(&gathered, to_count * size_of(type) * ranks_of(comm));
  return PMPI_Alltoall(from, count, from_type, to, to_count, type, comm);
}
int MPI_Send(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
  add(&messages, 1);
  add(&message_bytes, count * size_of(type));
  return PMPI_Send(data, count, type, to, tag, comm);
}
int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  add(&messages, 1);
  add(&message_bytes, count * size_of(type));
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}
int MPI_Recv(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Status* status) {
  add(&messages, 1);
  add(&message_bytes, count * size_of(type));
  return PMPI_Recv(data, count, type, from, tag, comm, status);
}
int MPI_Irecv(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request* request) {
  add(&messages, 1);
  add(&message_bytes, count * size_of(type));
  return PMPI_Irecv(data, count, type, from, tag, comm, request);
}
int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm* part) {
  add(&groups, 1);
  return PMPI_Comm_split(comm, color, key, part);
}
int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm* part) {
  add(&groups, 1);
  return PMPI_Comm_split_type(comm, type, key, info, part);
}
int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* copy) {
  add(&groups, 1);
  return PMPI_Comm_dup(comm, copy);
}
int MPI_File_open(MPI_Comm comm, const char* path, int mode, MPI_Info info, MPI_File* file) {
  add(&files, 1);
  return PMPI_File_open(comm, path, mode, info, file);
}

int MPI_Finalize(void) {
  int rank = 0, ranks = 0;
  const char* folder = getenv("TRIREME_COUNTS");
  char path[4096];
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  PMPI_Comm_size(MPI_COMM_WORLD, &ranks);
  snprintf(path, sizeof path, "%s/%d_%d", folder == NULL ? "." : folder, ranks, rank);
  FILE* file = fopen(path, "w");
  if (file != NULL) {
    fprintf(file, "%d %lld %lld %lld %lld %lld %lld %lld %lld\n", over, calls, operands, gathered, rooted, messages,
            message_bytes, groups, files);
    fclose(file);
  }
  return PMPI_Finalize();
}
