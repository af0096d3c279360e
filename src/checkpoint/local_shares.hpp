// Shares of a local checkpoint: which rank of a host stores what its ranks hold, and what of that
// is held on no other host, so that a partner must keep a copy of it.
#ifndef TRIREME_SRC_CHECKPOINT_LOCAL_SHARES_HPP_
#define TRIREME_SRC_CHECKPOINT_LOCAL_SHARES_HPP_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "local_places.hpp"
#include "trireme/checkpoint/writer.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/kernels/state_block.hpp"

namespace trireme::checkpoint {

// Name of a piece of state, of 128 bits: the same on all ranks that hold the same elements.
struct LocalKey {
  std::uint64_t low = 0, high = 0;
  auto operator<=>(const LocalKey&) const = default;
  // The rank at which news of this piece meets.
  int Meets(int ranks) const { return static_cast<int>(low % static_cast<std::uint64_t>(ranks)); }
};
// file: "model" or "optimizer".
LocalKey KeyOf(const char* file, const kernels::StateBlock& block);

struct LocalPiece {
  LocalKey key;
  std::int64_t bytes = 0;
};

struct LocalShares {
  std::vector<LocalPiece> needs;                  // all that this rank holds, model first
  std::vector<const kernels::StateBlock*> blocks;  // of the state, as needs
  // Needs that this rank stores for its host, by number; the first `copied` of them for the partner
  // as well.
  std::vector<std::size_t> stored;
  std::size_t copied = 0;
};

// Collective. host: the ranks of this rank's host, in their order. Each piece is stored by one of
// its holders on each host, so that they have equal amounts. The state must outlive the result.
LocalShares ShareOut(const comm::Communicator& world, const comm::Communicator& host,
                     const LocalPlace& place, const State& state);

}  // namespace trireme::checkpoint

#endif  // TRIREME_SRC_CHECKPOINT_LOCAL_SHARES_HPP_
