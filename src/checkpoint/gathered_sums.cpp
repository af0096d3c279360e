// GatheredSums: counts to rank 0, then the segments, there sorted by their offsets.
#include "gathered_sums.hpp"

#include <mpi.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "trireme/comm/flight_recorder.hpp"

namespace trireme::checkpoint {

GatheredSums::GatheredSums(const comm::Communicator& world, const std::vector<WritePlan>& plans,
                           bool gives)
    : world_(world), plans_(plans), gives_(gives) {
  std::vector<std::int64_t> segments;
  for (const WritePlan& plan : plans) {
    segments.push_back(world.Sum(gives ? std::ssize(plan.segments) : std::int64_t{0}));
  }
  world.Together([&] {
    if (!world.IsRoot()) return;
    for (std::size_t file = 0; file < plans.size(); ++file) {
      files_.push_back({plans[file].layout.bytes, {}});
      files_.back().segments.resize(static_cast<std::size_t>(segments[file]));
    }
    counts_.resize(static_cast<std::size_t>(world.Size()));
    starts_.resize(counts_.size());
  });
}

void GatheredSums::Gather() {
  const comm::Recorded recorded(world_, comm::Call::kExchange);
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_Type_contiguous(sizeof(Segment), MPI_BYTE, &type);
  MPI_Type_commit(&type);
  for (std::size_t file = 0; file < plans_.size(); ++file) {
    const std::vector<Segment>& mine = plans_[file].segments;
    const int count = gives_ ? static_cast<int>(mine.size()) : 0;
    MPI_Gather(&count, 1, MPI_INT, counts_.data(), 1, MPI_INT, 0, world_.Handle());
    std::exclusive_scan(counts_.begin(), counts_.end(), starts_.begin(), 0);
    Segment* const all = world_.IsRoot() ? files_[file].segments.data() : nullptr;
    MPI_Gatherv(mine.data(), count, type, all, counts_.data(), starts_.data(), type, 0,
                world_.Handle());
    if (world_.IsRoot()) std::ranges::sort(files_[file].segments, {}, &Segment::offset);
  }
  MPI_Type_free(&type);
}

std::int64_t GatheredSums::MemoryBytes() const {
  constexpr std::int64_t kListed = 512;  // bytes of a segment
  std::int64_t count = 0;
  for (std::size_t file = 0; file < plans_.size(); ++file) {
    count += std::ssize(world_.IsRoot() ? files_[file].segments : plans_[file].segments);
  }
  return kListed * count;
}

}  // namespace trireme::checkpoint
