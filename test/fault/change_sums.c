// Preloaded into the program under test: an MPI that adds in another order in some groups, or gives
// wrong bits to some ranks.
//   TRIREME_SUMS_GROUP   world ranks "4,5,6,7": sums of floating-point numbers in groups of three
//   or
//                        more of these alone are made from the last rank to the first
//   TRIREME_SUMS_WRONG   world rank that gets a wrong bit (one that no rounding hides) of the first
//                        number that is not zero
//   TRIREME_SUMS_NTH     from which of its sums of 32 or more numbers on, counted from 1
//   TRIREME_SUMS_COUNT   how many sums are wrong; all from there on if unset
//   TRIREME_SUMS_LOG     file that gets a line at the first sum that is changed
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kMostRanks = 64, kFewNumbers = 32, kWrongBit = 1 << 16 };

static long sums;

static int Number(const char* name, int otherwise) {
  const char* text = getenv(name);
  return text == NULL || *text == '\0' ? otherwise : atoi(text);
}

static void Log(const char* what) {
  static int logged;
  const char* path = getenv("TRIREME_SUMS_LOG");
  if (path == NULL || logged) return;
  logged = 1;
  FILE* file = fopen(path, "a");
  if (file == NULL) abort();
  fprintf(file, "%s\n", what);
  fclose(file);
}

static int Listed(int rank) {
  const char* list = getenv("TRIREME_SUMS_GROUP");
  if (list == NULL) return 0;
  for (const char* at = list; *at != '\0'; at += *at == ',') {
    char* end;
    if (strtol(at, &end, 10) == rank) return 1;
    if (end == at) return 0;
    at = end;
  }
  return 0;
}

// Whether all ranks of the communicator are listed.
static int Chosen(MPI_Comm comm) {
  int size, all[kMostRanks], world[kMostRanks];
  MPI_Comm_size(comm, &size);
  if (size < 3 || size > kMostRanks) return 0;
  MPI_Group group, whole;
  MPI_Comm_group(comm, &group);
  MPI_Comm_group(MPI_COMM_WORLD, &whole);
  for (int rank = 0; rank < size; ++rank) all[rank] = rank;
  MPI_Group_translate_ranks(group, size, all, whole, world);
  MPI_Group_free(&group);
  MPI_Group_free(&whole);
  for (int rank = 0; rank < size; ++rank) {
    if (!Listed(world[rank])) return 0;
  }
  return 1;
}

static void AddBackwards(void* data, int count, MPI_Datatype type, MPI_Comm comm) {
  int size, width;
  MPI_Comm_size(comm, &size);
  MPI_Type_size(type, &width);
  char* all = malloc((size_t)size * (size_t)count * (size_t)width + 1);
  if (all == NULL) abort();
  PMPI_Allgather(data, count, type, all, count, type, comm);
  for (int i = 0; i < count; ++i) {
    if (type == MPI_FLOAT) {
      float sum = ((float*)all)[(size - 1) * count + i];
      for (int rank = size - 1; rank-- > 0;) sum += ((float*)all)[rank * count + i];
      ((float*)data)[i] = sum;
    } else {
      double sum = ((double*)all)[(size - 1) * count + i];
      for (int rank = size - 1; rank-- > 0;) sum += ((double*)all)[rank * count + i];
      ((double*)data)[i] = sum;
    }
  }
  free(all);
  Log("another order");
}

static void Spoil(void* data, int count, MPI_Datatype type) {
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank != Number("TRIREME_SUMS_WRONG", -1) || count < kFewNumbers || type != MPI_FLOAT) return;
  const long nth = Number("TRIREME_SUMS_NTH", 1), most = Number("TRIREME_SUMS_COUNT", 1 << 30);
  ++sums;
  if (sums < nth || sums >= nth + most) return;
  uint32_t* bits = data;
  for (int i = 0; i < count; ++i) {
    if ((bits[i] & 0x7FFFFFFF) == 0) continue;
    bits[i] ^= kWrongBit;
    return Log("a wrong bit");
  }
}

int MPI_Allreduce(const void* from, void* to, int count, MPI_Datatype type, MPI_Op op,
                  MPI_Comm comm) {
  const int adds = op == MPI_SUM && (type == MPI_FLOAT || type == MPI_DOUBLE);
  if (!adds || from != MPI_IN_PLACE) return PMPI_Allreduce(from, to, count, type, op, comm);
  int code = MPI_SUCCESS;
  if (Chosen(comm)) {
    AddBackwards(to, count, type, comm);
  } else {
    code = PMPI_Allreduce(from, to, count, type, op, comm);
  }
  Spoil(to, count, type);
  return code;
}

// Also a reduce-scatter in place: the part of this rank comes to the front.
int MPI_Ireduce_scatter(const void* from, void* to, const int* counts, MPI_Datatype type, MPI_Op op,
                        MPI_Comm comm, MPI_Request* request) {
  if (op != MPI_SUM || from != MPI_IN_PLACE || !Chosen(comm)) {
    return PMPI_Ireduce_scatter(from, to, counts, type, op, comm, request);
  }
  int size, rank, width, before = 0, total = 0;
  MPI_Comm_size(comm, &size);
  MPI_Comm_rank(comm, &rank);
  MPI_Type_size(type, &width);
  for (int other = 0; other < size; ++other) {
    if (other == rank) before = total;
    total += counts[other];
  }
  AddBackwards(to, total, type, comm);
  memmove(to, (char*)to + (size_t)before * (size_t)width, (size_t)counts[rank] * (size_t)width);
  *request = MPI_REQUEST_NULL;
  return MPI_SUCCESS;
}

// Complete when it returns.
int MPI_Iallreduce(const void* from, void* to, int count, MPI_Datatype type, MPI_Op op,
                   MPI_Comm comm, MPI_Request* request) {
  *request = MPI_REQUEST_NULL;
  return MPI_Allreduce(from, to, count, type, op, comm);
}
