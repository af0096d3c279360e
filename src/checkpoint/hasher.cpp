// Hasher: rounds at once, or held back until they are released.
#include "hasher.hpp"

#include <mpi.h>

#include <cstdint>
#include <utility>

#include "trireme/comm/flight_recorder.hpp"

namespace trireme::checkpoint {

Hasher::Hasher(std::vector<int> cores, std::vector<WritePlan>& plans)
    : plans_(plans), worker_(std::move(cores)) {}

void Hasher::HoldBack() {
  const std::lock_guard lock(mutex_);
  hold_back_ = true;
  held_back_.clear();  // of a checkpoint that failed
}

void Hasher::Release() {
  const std::lock_guard lock(mutex_);
  hold_back_ = false;
  for (auto& task : std::exchange(held_back_, {})) worker_.Queue(std::move(task));
}

void Hasher::Queue(const Round& round, Data data) {
  auto task = [this, &round, data = std::move(data)] { Make(round, data); };
  const std::lock_guard lock(mutex_);
  if (hold_back_) {
    held_back_.emplace_back(std::move(task));
  } else {
    worker_.Queue(std::move(task));
  }
}

void Hasher::Make(const Round& round, const Data& data) {
  for (const StagedSegment& staged : round.segments) {
    if (worker_.Stopping()) return;
    Segment& segment = plans_[staged.file].sums.segments[staged.segment];
    segment.hash = Hash(data(staged), segment.length);
  }
}

void Hasher::GatherOnRoot(const comm::Communicator& world, const std::vector<Round>& made,
                          std::vector<std::uint64_t>& list) {
  ListHashes(made, plans_, list);
  {
    const comm::Recorded recorded(world, comm::Call::kExchange);
    MPI_Reduce(world.IsRoot() ? MPI_IN_PLACE : list.data(), list.data(),
               static_cast<int>(list.size()), MPI_UINT64_T, MPI_BOR, 0, world.Handle());
  }
  if (world.IsRoot()) TakeHashes(list, plans_);
}

}  // namespace trireme::checkpoint
