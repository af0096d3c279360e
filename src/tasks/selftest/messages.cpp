// MPI: does each transfer that the program stands on bring what was sent?
#include <fmt/format.h>
#include <mpi.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "checks.hpp"

namespace trireme::tasks {

namespace {

constexpr int kShort = 10,
              kLong = 200'000;  // elements: eager messages and those that are announced

const char* NameOfLevel(int level) {
  if (level == MPI_THREAD_MULTIPLE) return "multiple";
  if (level == MPI_THREAD_SERIALIZED) return "serialized";
  return level == MPI_THREAD_FUNNELED ? "funneled" : "single";
}

std::int64_t Value(int rank, int i) { return std::int64_t{rank} * 1'000'003 + i; }

// Each rank sends to the next one at every distance that is a power of two.
void SendAround(const comm::Communicator& world, int count) {
  const int size = world.Size(), rank = world.Rank();
  std::vector<std::int64_t> mine(static_cast<std::size_t>(count)), theirs(mine.size());
  for (int i = 0; i < count; ++i) mine[static_cast<std::size_t>(i)] = Value(rank, i);
  for (int distance = 1; distance < size || distance == 1; distance *= 2) {
    const int to = (rank + distance) % size, from = (rank - distance % size + size) % size;
    std::fill(theirs.begin(), theirs.end(), -1);
    MPI_Sendrecv(mine.data(), count, MPI_INT64_T, to, distance, theirs.data(), count, MPI_INT64_T,
                 from, distance, world.Handle(), MPI_STATUS_IGNORE);
    world.Together([&] {
      for (int i = 0; i < count; ++i) {
        Expect(theirs[static_cast<std::size_t>(i)] == Value(from, i),
               fmt::format("a message of {} bytes from rank {} to rank {} arrived changed",
                           count * sizeof(std::int64_t), from, rank));
      }
    });
  }
}

void Reduce(const comm::Communicator& world) {
  const int size = world.Size(), rank = world.Rank();
  const std::int64_t all = std::int64_t{size} * (size - 1) / 2;
  const std::int64_t sum = world.Sum(std::int64_t{rank});
  const double most = world.Max(static_cast<double>(rank));
  std::vector<double> values(kLong);
  std::iota(values.begin(), values.end(), rank);
  world.Sum(values);
  std::vector<float> floats(kLong, static_cast<float>(rank + 1));
  MPI_Allreduce(MPI_IN_PLACE, floats.data(), kLong, MPI_FLOAT, MPI_SUM, world.Handle());
  world.Together([&] {
    Expect(sum == all && most == size - 1, "a reduction of one number gave another result");
    for (int i = 0; i < kLong; ++i) {
      const auto at = static_cast<std::size_t>(i);
      Expect(values[at] == static_cast<double>(all) + static_cast<double>(i) * size,
             "an all-reduce in fp64 gave a wrong sum");
      Expect(floats[at] == static_cast<float>(all + size),
             "an all-reduce in fp32 gave a wrong sum");
    }
  });
}

void Share(const comm::Communicator& world) {
  const int size = world.Size();
  std::vector<std::int64_t> data(kLong, world.Rank());
  const int root = size - 1;
  world.Broadcast(data.data(), kLong * std::int64_t{sizeof(std::int64_t)}, root);
  const std::vector<std::string> ranks = world.Gather(std::to_string(world.Rank()));
  std::vector<std::int64_t> to_all(static_cast<std::size_t>(size)), from_all(to_all.size());
  for (int i = 0; i < size; ++i) to_all[static_cast<std::size_t>(i)] = Value(world.Rank(), i);
  MPI_Alltoall(to_all.data(), 1, MPI_INT64_T, from_all.data(), 1, MPI_INT64_T, world.Handle());
  world.Together([&] {
    for (const std::int64_t value : data) Expect(value == root, "a broadcast arrived changed");
    for (int i = 0; i < size; ++i) {
      const auto at = static_cast<std::size_t>(i);
      Expect(ranks[at] == std::to_string(i), "a gather is out of order");
      Expect(from_all[at] == Value(i, world.Rank()), "an all-to-all arrived changed");
    }
  });
}

}  // namespace

std::string CheckMessages(const comm::Runtime& runtime) {
  const comm::Communicator& world = runtime.World();
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  world.Together([&] {
    Expect(level >= MPI_THREAD_FUNNELED, "MPI lets no thread but one exist beside it",
           "Load an MPI library with thread support.");
  });
  SendAround(world, kShort);
  SendAround(world, kLong);
  Reduce(world);
  Share(world);
  const std::vector<std::string>& hosts = runtime.Hosts().Names();
  return fmt::format("{} rank{} on {} host{}, threads {}", world.Size(),
                     world.Size() == 1 ? "" : "s", hosts.size(), hosts.size() == 1 ? "" : "s",
                     NameOfLevel(level));
}

}  // namespace trireme::tasks
