// DeliverBytes: one message to each receiver, none to the others.
#include "rendezvous.hpp"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>
#include <utility>

#include "trireme/comm/flight_recorder.hpp"

namespace trireme::checkpoint {

namespace {

constexpr int kMeetingTag = 17;

using Letter = std::pair<int, std::vector<std::byte>>;  // sender, items

// Takes a letter that has come, if there is one.
bool TakeLetter(MPI_Comm comm, MPI_Datatype item, std::int64_t bytes,
                std::vector<Letter>& letters) {
  int there = 0, count = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  MPI_Improbe(MPI_ANY_SOURCE, kMeetingTag, comm, &there, &message, &status);
  if (there == 0) return false;
  MPI_Get_count(&status, item, &count);
  Letter& letter = letters.emplace_back(status.MPI_SOURCE, std::vector<std::byte>{});
  letter.second.resize(static_cast<std::size_t>(count) * static_cast<std::size_t>(bytes));
  MPI_Mrecv(letter.second.data(), count, item, &message, MPI_STATUS_IGNORE);
  return true;
}

// Starts a letter to each rank in `to`, whose order is `order`; `sorted` must outlive the requests.
std::vector<MPI_Request> StartLetters(MPI_Comm comm, MPI_Datatype item, std::int64_t bytes,
                                      const std::vector<int>& to,
                                      const std::vector<std::size_t>& order,
                                      const std::vector<std::byte>& sorted) {
  std::vector<MPI_Request> requests;
  for (std::size_t first = 0, last = 0; first < order.size(); first = last) {
    const int rank = to[order[first]];
    while (last < order.size() && to[order[last]] == rank) ++last;
    MPI_Issend(sorted.data() + first * static_cast<std::size_t>(bytes),
               static_cast<int>(last - first), item, rank, kMeetingTag, comm,
               &requests.emplace_back());
  }
  return requests;
}

}  // namespace

// Once a rank's letters are received it enters a barrier; once all have entered, none is under way
// (Hoefler, Siebert and Lumsdaine 2010, "Scalable communication protocols for dynamic sparse data
// exchange", algorithm NBX).
std::vector<std::byte> DeliverBytes(const comm::Communicator& world, const std::vector<int>& to,
                                    const void* items, std::int64_t bytes) {
  constexpr std::chrono::microseconds kPause(20);
  const comm::Recorded recorded(world, comm::Call::kAllToAll,
                                static_cast<std::int64_t>(to.size()) * bytes);
  const auto size = static_cast<std::size_t>(bytes);
  MPI_Datatype item = MPI_DATATYPE_NULL;
  MPI_Type_contiguous(static_cast<int>(bytes), MPI_BYTE, &item);
  MPI_Type_commit(&item);
  std::vector<std::size_t> order(to.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return to[i]; });
  std::vector<std::byte> sorted(to.size() * size);
  for (std::size_t i = 0; i < order.size(); ++i) {
    std::memcpy(sorted.data() + i * size, static_cast<const std::byte*>(items) + order[i] * size,
                size);
  }
  std::vector<MPI_Request> requests = StartLetters(world.Handle(), item, bytes, to, order, sorted);
  std::vector<Letter> letters;
  MPI_Request barrier = MPI_REQUEST_NULL;
  bool entered = false;
  for (int all_received = 0; all_received == 0;) {
    while (TakeLetter(world.Handle(), item, bytes, letters)) {
    }
    if (!entered) {
      int received = 0;
      MPI_Testall(static_cast<int>(requests.size()), requests.data(), &received,
                  MPI_STATUSES_IGNORE);
      entered = received != 0;
      if (entered) MPI_Ibarrier(world.Handle(), &barrier);
    } else {
      MPI_Test(&barrier, &all_received, MPI_STATUS_IGNORE);
    }
    if (all_received == 0) std::this_thread::sleep_for(kPause);
  }
  MPI_Type_free(&item);
  MPI_Barrier(world.Handle());  // no letter of a next call comes before all have left this one
  std::ranges::sort(letters, {}, &Letter::first);
  std::vector<std::byte> result;
  for (const Letter& letter : letters) {
    result.insert(result.end(), letter.second.begin(), letter.second.end());
  }
  return result;
}

}  // namespace trireme::checkpoint
