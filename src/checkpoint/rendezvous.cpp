// DeliverBytes: counts first, then the items.
#include "rendezvous.hpp"

#include <mpi.h>

#include <cstring>

#include "trireme/comm/flight_recorder.hpp"

namespace trireme::checkpoint {

std::vector<std::byte> DeliverBytes(const comm::Communicator& world, const std::vector<int>& to,
                                    const void* items, std::int64_t bytes) {
  const auto ranks = static_cast<std::size_t>(world.Size());
  const auto size = static_cast<std::size_t>(bytes);
  std::vector<int> sent(ranks), received(ranks), send_at(ranks), receive_at(ranks);
  for (const int rank : to) ++sent[static_cast<std::size_t>(rank)];
  const comm::Recorded recorded(world, comm::Call::kAllToAll,
                                static_cast<std::int64_t>(to.size()) * bytes);
  MPI_Alltoall(sent.data(), 1, MPI_INT, received.data(), 1, MPI_INT, world.Handle());
  for (std::size_t rank = 1; rank < ranks; ++rank) {
    send_at[rank] = send_at[rank - 1] + sent[rank - 1];
    receive_at[rank] = receive_at[rank - 1] + received[rank - 1];
  }
  std::vector<std::byte> sorted(to.size() * size);
  std::vector<int> next = send_at;
  for (std::size_t i = 0; i < to.size(); ++i) {
    const auto place = static_cast<std::size_t>(next[static_cast<std::size_t>(to[i])]++);
    std::memcpy(sorted.data() + place * size, static_cast<const std::byte*>(items) + i * size,
                size);
  }
  std::vector<std::byte> result(static_cast<std::size_t>(receive_at.back() + received.back()) *
                                size);
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_Type_contiguous(static_cast<int>(bytes), MPI_BYTE, &type);
  MPI_Type_commit(&type);
  MPI_Alltoallv(sorted.data(), sent.data(), send_at.data(), type, result.data(), received.data(),
                receive_at.data(), type, world.Handle());
  MPI_Type_free(&type);
  return result;
}

}  // namespace trireme::checkpoint
