// Places: counts in MPI's form, in memory that is reused.
#include "trireme/comm/places.hpp"

#include <fmt/format.h>

#include <limits>

#include "trireme/base/error.hpp"

namespace trireme::comm {

namespace {

// Memory of places that are gone, a thread's.
std::vector<std::vector<int>>& Idle() {
  thread_local std::vector<std::vector<int>> idle;
  return idle;
}

}  // namespace

int CheckedCount(Transfer transfer, std::int64_t count) {
  if (count < 0 || count > std::numeric_limits<int>::max()) {
    throw RunError(fmt::format("{} of {} elements in one call: an MPI count ends at {}",
                               NameOf(transfer), count, std::numeric_limits<int>::max()),
                   "Make the operand smaller: a smaller data.micro_batch, more ranks along "
                   "grid.tensor, or a smaller grid.bucket_mib.");
  }
  return static_cast<int>(count);
}

Places::Places(Transfer transfer, const Counts& counts, int ranks) {
  if (!counts.Suit(ranks)) {
    throw RunError(fmt::format("{} with {} counts in a group of {}", NameOf(transfer),
                               counts.ListSize(), ranks));
  }
  Fill(transfer, ranks, [&](int rank) { return counts.Of(rank, ranks); });
}

Places::Places(Transfer transfer, std::int64_t count, int rank, int ranks) {
  Fill(transfer, ranks, [&](int other) { return other == rank ? count : 0; });
}

template <typename CountOf>
void Places::Fill(Transfer transfer, int ranks, CountOf&& count_of) {
  if (!Idle().empty()) {
    numbers_ = std::move(Idle().back());
    Idle().pop_back();
  }
  const auto size = static_cast<std::size_t>(ranks);
  numbers_.resize(2 * size);
  for (std::size_t rank = 0; rank < size; ++rank) {
    const std::int64_t count = count_of(static_cast<int>(rank));
    numbers_[rank] = CheckedCount(transfer, count);
    numbers_[size + rank] = CheckedCount(transfer, total_);
    total_ += count;
  }
  CheckedCount(transfer, total_);
}

Places::~Places() {
  if (numbers_.capacity() > 0) Idle().push_back(std::move(numbers_));
}

}  // namespace trireme::comm
