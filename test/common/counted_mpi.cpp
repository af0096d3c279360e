// Wrappers in front of PMPI. Counts are kept for each communicator, so that a test can look at one
// group of ranks alone.
#include "counted_mpi.hpp"

#include <map>
#include <numeric>
#include <utility>

namespace trireme::test::counted_mpi {

namespace {

struct State {
  std::map<std::pair<Function, MPI_Comm>, Count> counts;
  bool forward = true;
};

State& TheState() {
  static State state;
  return state;
}

void Add(Function function, MPI_Comm comm, std::int64_t elements, MPI_Datatype type,
         const void* data) {
  int size = 0;
  MPI_Type_size(type, &size);
  Count& count = TheState().counts[{function, comm}];
  ++count.calls;
  count.bytes += elements * size;
  count.last_data = data;
}

void AddOther(MPI_Comm comm) { ++TheState().counts[{Function::kOther, comm}].calls; }

std::int64_t Total(const int* counts, MPI_Comm comm) {
  int size = 0;
  MPI_Comm_size(comm, &size);
  return std::accumulate(counts, counts + size, std::int64_t{0});
}

const void* Operand(const void* from, const void* to) { return from == MPI_IN_PLACE ? to : from; }

}  // namespace

Count Of(Function function, MPI_Comm comm) {
  Count sum;
  for (const auto& [key, count] : TheState().counts) {
    if (key.first != function || (comm != MPI_COMM_NULL && key.second != comm)) continue;
    sum.calls += count.calls;
    sum.bytes += count.bytes;
    sum.last_data = count.last_data;
  }
  return sum;
}

void Reset() { TheState().counts.clear(); }
void Forward(bool forward) { TheState().forward = forward; }

}  // namespace trireme::test::counted_mpi

using trireme::test::counted_mpi::Add;
using trireme::test::counted_mpi::AddOther;
using trireme::test::counted_mpi::Function;
using trireme::test::counted_mpi::Operand;
using trireme::test::counted_mpi::TheState;
using trireme::test::counted_mpi::Total;

extern "C" {

int MPI_Allreduce(const void* from, void* to, int count, MPI_Datatype type, MPI_Op operation,
                  MPI_Comm comm) {
  Add(Function::kAllreduce, comm, count, type, Operand(from, to));
  if (!TheState().forward) return MPI_SUCCESS;
  return PMPI_Allreduce(from, to, count, type, operation, comm);
}

int MPI_Iallreduce(const void* from, void* to, int count, MPI_Datatype type, MPI_Op operation,
                   MPI_Comm comm, MPI_Request* request) {
  Add(Function::kIallreduce, comm, count, type, Operand(from, to));
  return PMPI_Iallreduce(from, to, count, type, operation, comm, request);
}

int MPI_Reduce_scatter(const void* from, void* to, const int counts[], MPI_Datatype type,
                       MPI_Op operation, MPI_Comm comm) {
  Add(Function::kReduceScatter, comm, Total(counts, comm), type, Operand(from, to));
  return PMPI_Reduce_scatter(from, to, counts, type, operation, comm);
}

int MPI_Ireduce_scatter(const void* from, void* to, const int counts[], MPI_Datatype type,
                        MPI_Op operation, MPI_Comm comm, MPI_Request* request) {
  Add(Function::kIreduceScatter, comm, Total(counts, comm), type, Operand(from, to));
  return PMPI_Ireduce_scatter(from, to, counts, type, operation, comm, request);
}

int MPI_Allgatherv(const void* from, int count, MPI_Datatype from_type, void* to,
                   const int counts[], const int starts[], MPI_Datatype type, MPI_Comm comm) {
  Add(Function::kAllgatherv, comm, Total(counts, comm), type, Operand(from, to));
  return PMPI_Allgatherv(from, count, from_type, to, counts, starts, type, comm);
}

int MPI_Iallgatherv(const void* from, int count, MPI_Datatype from_type, void* to,
                    const int counts[], const int starts[], MPI_Datatype type, MPI_Comm comm,
                    MPI_Request* request) {
  Add(Function::kIallgatherv, comm, Total(counts, comm), type, Operand(from, to));
  return PMPI_Iallgatherv(from, count, from_type, to, counts, starts, type, comm, request);
}

int MPI_Alltoallv(const void* from, const int counts[], const int starts[], MPI_Datatype from_type,
                  void* to, const int to_counts[], const int to_starts[], MPI_Datatype to_type,
                  MPI_Comm comm) {
  Add(Function::kAlltoallv, comm, Total(counts, comm), from_type, from);
  return PMPI_Alltoallv(from, counts, starts, from_type, to, to_counts, to_starts, to_type, comm);
}

int MPI_Bcast(void* data, int count, MPI_Datatype type, int root, MPI_Comm comm) {
  Add(Function::kBcast, comm, count, type, data);
  if (!TheState().forward) return MPI_SUCCESS;
  return PMPI_Bcast(data, count, type, root, comm);
}

int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request* request) {
  Add(Function::kIsend, comm, count, type, data);
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}

int MPI_Irecv(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
              MPI_Request* request) {
  Add(Function::kIrecv, comm, count, type, data);
  return PMPI_Irecv(data, count, type, from, tag, comm, request);
}

// Calls that Trireme makes elsewhere, or might one day: none of them belongs into a training step.
int MPI_Barrier(MPI_Comm comm) {
  AddOther(comm);
  return PMPI_Barrier(comm);
}

int MPI_Allgather(const void* from, int count, MPI_Datatype from_type, void* to, int to_count,
                  MPI_Datatype to_type, MPI_Comm comm) {
  AddOther(comm);
  return PMPI_Allgather(from, count, from_type, to, to_count, to_type, comm);
}

int MPI_Gather(const void* from, int count, MPI_Datatype from_type, void* to, int to_count,
               MPI_Datatype to_type, int root, MPI_Comm comm) {
  AddOther(comm);
  return PMPI_Gather(from, count, from_type, to, to_count, to_type, root, comm);
}

int MPI_Scatter(const void* from, int count, MPI_Datatype from_type, void* to, int to_count,
                MPI_Datatype to_type, int root, MPI_Comm comm) {
  AddOther(comm);
  return PMPI_Scatter(from, count, from_type, to, to_count, to_type, root, comm);
}

int MPI_Alltoall(const void* from, int count, MPI_Datatype from_type, void* to, int to_count,
                 MPI_Datatype to_type, MPI_Comm comm) {
  AddOther(comm);
  return PMPI_Alltoall(from, count, from_type, to, to_count, to_type, comm);
}

int MPI_Reduce(const void* from, void* to, int count, MPI_Datatype type, MPI_Op operation, int root,
               MPI_Comm comm) {
  AddOther(comm);
  return PMPI_Reduce(from, to, count, type, operation, root, comm);
}

int MPI_Reduce_scatter_block(const void* from, void* to, int count, MPI_Datatype type,
                             MPI_Op operation, MPI_Comm comm) {
  AddOther(comm);
  return PMPI_Reduce_scatter_block(from, to, count, type, operation, comm);
}

int MPI_Scan(const void* from, void* to, int count, MPI_Datatype type, MPI_Op operation,
             MPI_Comm comm) {
  AddOther(comm);
  return PMPI_Scan(from, to, count, type, operation, comm);
}

int MPI_Exscan(const void* from, void* to, int count, MPI_Datatype type, MPI_Op operation,
               MPI_Comm comm) {
  AddOther(comm);
  return PMPI_Exscan(from, to, count, type, operation, comm);
}

int MPI_Ibcast(void* data, int count, MPI_Datatype type, int root, MPI_Comm comm,
               MPI_Request* request) {
  AddOther(comm);
  return PMPI_Ibcast(data, count, type, root, comm, request);
}

int MPI_Ibarrier(MPI_Comm comm, MPI_Request* request) {
  AddOther(comm);
  return PMPI_Ibarrier(comm, request);
}

int MPI_Send(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
  AddOther(comm);
  return PMPI_Send(data, count, type, to, tag, comm);
}

int MPI_Ssend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
  AddOther(comm);
  return PMPI_Ssend(data, count, type, to, tag, comm);
}

int MPI_Issend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
               MPI_Request* request) {
  AddOther(comm);
  return PMPI_Issend(data, count, type, to, tag, comm, request);
}

int MPI_Recv(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
             MPI_Status* status) {
  AddOther(comm);
  return PMPI_Recv(data, count, type, from, tag, comm, status);
}

int MPI_Sendrecv(const void* data, int count, MPI_Datatype type, int to, int tag, void* into,
                 int into_count, MPI_Datatype into_type, int from, int from_tag, MPI_Comm comm,
                 MPI_Status* status) {
  AddOther(comm);
  return PMPI_Sendrecv(data, count, type, to, tag, into, into_count, into_type, from, from_tag,
                       comm, status);
}

int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm* part) {
  AddOther(comm);
  return PMPI_Comm_split(comm, color, key, part);
}

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* copy) {
  AddOther(comm);
  return PMPI_Comm_dup(comm, copy);
}

}  // extern "C"
