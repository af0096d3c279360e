// UnitRounds: sums over a window of units that moves along.
#include "unit_rounds.hpp"

#include <algorithm>

namespace trireme::data {

namespace {

// Units of a rank that a round may tell of: ranks that are ahead by more wait with the rest.
constexpr std::size_t kUnitsOfRank = 8;
constexpr std::size_t kLeastWindow = 64;

}  // namespace

UnitRounds::UnitRounds(const comm::Communicator& world, std::size_t units,
                       const std::vector<UnitResult>& mine,
                       const std::array<std::int64_t, 3>& least)
    : ranks_(world.Duplicate()), units_(units), mine_(mine), least_(least) {
  const std::size_t window = kLeastWindow + kUnitsOfRank * static_cast<std::size_t>(world.Size());
  sent_.resize(kSplits.size() + std::min(window, units));
  sums_.resize(sent_.size());
}

void UnitRounds::Look() {
  if (Ended()) return;
  if (begun_ == 0) Begin();
  int done = 0;
  MPI_Test(&request_, &done, MPI_STATUS_IGNORE);
  if (done == 0) return;
  Take();
  if (!Ended()) Begin();
}

bool UnitRounds::Ready() const {
  return std::ranges::equal(all_, least_, std::ranges::greater_equal());
}

void UnitRounds::Begin() {
  for (; summed_ < mine_.size(); ++summed_) {
    for (std::size_t s = 0; s < kSplits.size(); ++s) own_.at(s) += mine_[summed_].tokens.at(s);
  }
  while (first_ < mine_.size() && mine_[first_].unit < Known()) ++first_;
  std::ranges::fill(sent_, 0);
  std::ranges::copy(own_, sent_.begin());
  for (std::size_t u = first_; u < mine_.size(); ++u) {
    const std::size_t at = kSplits.size() + mine_[u].unit - Known();
    if (at >= sent_.size()) break;
    sent_[at] = mine_[u].tokens.at(kTrainAt) + 1;
  }
  MPI_Iallreduce(sent_.data(), sums_.data(), static_cast<int>(sent_.size()), MPI_INT64_T, MPI_SUM,
                 ranks_.Handle(), &request_);
  ++begun_;
}

void UnitRounds::Take() {
  std::copy_n(sums_.begin(), all_.size(), all_.begin());
  for (std::size_t at = kSplits.size(); at < sums_.size() && sums_[at] > 0; ++at) {
    starts_.push_back(starts_.back() + sums_[at] - 1);
  }
}

void UnitRounds::Drain(const comm::Communicator& world) {
  const std::int64_t last = world.Max(begun_);
  while (true) {
    MPI_Wait(&request_, MPI_STATUS_IGNORE);
    if (begun_ == last) return;
    Begin();
  }
}

}  // namespace trireme::data
