// The [grid] section: the layout of the ranks as the deck asks for it, before it meets the ranks.
#ifndef TRIREME_COMM_OPTIONS_HPP_
#define TRIREME_COMM_OPTIONS_HPP_

#include <cstdint>

#include "trireme/deck/deck.hpp"

namespace trireme::comm {

inline constexpr std::int64_t kMostRanks = std::int64_t{1} << 20;  // along an axis, and in a plan

// State that ranks with the same part of the model share out instead of holding copies (ZeRO,
// Rajbhandari et al. 2020): nothing; moments (stage 1); gradients too (2); parameters too (3).
enum class Sharding { kNone, kOptimizer, kGradients, kParameters };
const char* NameOf(Sharding sharding);  // as in the deck: "none", "optimizer" ...

// Sizes are ranks. Their product can exceed 64 bits; ReadGrid checks it.
struct Options {
  int ranks = 0;          // to plan for; 0: the ranks that run
  std::int64_t data = 0;  // 0: what the other axes leave
  std::int64_t context = 1, tensor = 1, pipeline = 1;
  bool sequence_parallel = false;
  bool sequence_parallel_given = false;  // by the deck or the command line
  Sharding sharding = Sharding::kNone;
  std::int64_t shard_group = 0;  // ranks that share one copy; 0: all of data x context
  bool shard_group_given = false;
  bool layout_given = false;  // any of the axes, sharding or shard_group
};

void Declare(deck::Schema& schema);  // [grid], without the keys of parallel/options.hpp

Options Read(const deck::Deck& deck);

}  // namespace trireme::comm

#endif  // TRIREME_COMM_OPTIONS_HPP_
