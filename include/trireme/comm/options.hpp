// The [grid] section: the layout as the deck requests it, not yet checked against the job's ranks.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "trireme/comm/ledger.hpp"
#include "trireme/deck/deck.hpp"

namespace trireme::comm {

inline constexpr std::int64_t kMostRanks = std::int64_t{1} << 20;  // along one axis, and in a plan

// What is sharded over the ranks with the same part of the model, instead of a copy on each (ZeRO,
// Rajbhandari et al. 2020): nothing; moments (stage 1); also gradients (2); also parameters (3).
enum class Sharding { kNone, kOptimizer, kGradients, kParameters };
const char* NameOf(Sharding sharding);  // as in the deck: "none", "optimizer" ...

// Sizes are numbers of ranks. Their product can exceed 64 bits; ReadGrid checks it.
struct Options {
  int ranks = 0;          // to plan for; 0: those that run
  std::int64_t data = 0;  // 0: what the other axes leave
  std::int64_t context = 1, tensor = 1, pipeline = 1;
  bool sequence_parallel = false;
  bool sequence_parallel_given = false;  // set by the deck or the command line
  Sharding sharding = Sharding::kNone;
  std::int64_t shard_group = 0;  // ranks that share one copy; 0: all data x context ranks
  bool shard_group_given = false;
  bool layout_given = false;  // any of the axes, sharding or shard_group is set
};

void Declare(deck::Schema& schema);  // [grid], without the keys of parallel/options.hpp

Options Read(const deck::Deck& deck);

// Places: each rank's part of a transfer, as counts and offsets in MPI's form.

// `count` as an int; RunError if it does not fit one.
int CheckedCount(Transfer transfer, std::int64_t count);

// Move-only. The memory of destroyed Places is reused, so nothing is allocated once the largest
// number in use at a time has been reached.
class Places {
 public:
  Places() = default;
  Places(Transfer transfer, const Counts& counts, int ranks);
  Places(Transfer transfer, std::int64_t count, int rank, int ranks);  // all elements for `rank`
  Places(Places&& other) noexcept { *this = std::move(other); }
  Places& operator=(Places&& other) noexcept {
    std::swap(numbers_, other.numbers_);
    std::swap(total_, other.total_);
    return *this;
  }
  Places(const Places&) = delete;
  Places& operator=(const Places&) = delete;
  ~Places();

  // [ranks] each; the pointers stay valid when this object is moved.
  const int* Sizes() const { return numbers_.data(); }
  const int* Starts() const { return numbers_.data() + numbers_.size() / 2; }
  std::int64_t Total() const { return total_; }  // elements

 private:
  template <typename CountOf>
  void Fill(Transfer transfer, int ranks, CountOf&& count_of);
  std::vector<int> numbers_;  // sizes, then starts
  std::int64_t total_ = 0;
};

// Places of one step around the ring of ranks: `count` elements to the next rank, `taken` elements
// from the previous one.
struct ShiftPlaces {
  ShiftPlaces(std::int64_t count, std::int64_t taken, int rank, int ranks)
      : sent(Transfer::kSend, count, (rank + 1) % ranks, ranks),
        received(Transfer::kReceive, taken, (rank + ranks - 1) % ranks, ranks) {}
  Places sent, received;
};

}  // namespace trireme::comm
