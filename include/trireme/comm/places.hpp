// Places: counts and starts of the ranks' parts of a transfer, as MPI takes them.
#ifndef TRIREME_COMM_PLACES_HPP_
#define TRIREME_COMM_PLACES_HPP_

#include <cstdint>
#include <utility>
#include <vector>

#include "trireme/comm/counts.hpp"
#include "trireme/comm/ledger.hpp"

namespace trireme::comm {

// The count as MPI takes it; RunError if it is no int.
int CheckedCount(Transfer transfer, std::int64_t count);

// Move-only. Memory of destroyed Places is reused: no allocation once the largest number under way
// has been reached.
class Places {
 public:
  Places() = default;
  Places(Transfer transfer, const Counts& counts, int ranks);
  Places(Transfer transfer, std::int64_t count, int rank, int ranks);  // all for one rank
  Places(Places&& other) noexcept { *this = std::move(other); }
  Places& operator=(Places&& other) noexcept {
    std::swap(numbers_, other.numbers_);
    std::swap(total_, other.total_);
    return *this;
  }
  Places(const Places&) = delete;
  Places& operator=(const Places&) = delete;
  ~Places();

  // [ranks] each; valid after a move of this.
  const int* Sizes() const { return numbers_.data(); }
  const int* Starts() const { return numbers_.data() + numbers_.size() / 2; }
  std::int64_t Total() const { return total_; }  // elements

 private:
  template <typename CountOf>
  void Fill(Transfer transfer, int ranks, CountOf&& count_of);
  std::vector<int> numbers_;  // sizes, then starts
  std::int64_t total_ = 0;
};

// Places of a step around the ring of ranks: `count` elements to the next rank, `taken` from the
// previous one.
struct ShiftPlaces {
  ShiftPlaces(std::int64_t count, std::int64_t taken, int rank, int ranks)
      : sent(Transfer::kSend, count, (rank + 1) % ranks, ranks),
        received(Transfer::kReceive, taken, (rank + ranks - 1) % ranks, ranks) {}
  Places sent, received;
};

}  // namespace trireme::comm

#endif  // TRIREME_COMM_PLACES_HPP_
