// The keys of [grid] that give the layout of the ranks.
#include "trireme/comm/options.hpp"

#include <fmt/ranges.h>
#include <limits>
#include <string>

#include "trireme/base/error.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/deck/keys.hpp"

namespace trireme::comm {

namespace {
constexpr deck::Names<4> kShardings = {"none", "optimizer", "gradients", "parameters"};

void Bind(deck::Keys keys, Options& o) {
  keys.Section("grid",
               "How the MPI ranks share the work: data x context x tensor x pipeline of them.")
      .Integer("grid.ranks", o.ranks, deck::Between(0, kMostRanks), "ranks",
               "Number of ranks to plan for with -v, without MPI. 0: the ranks that run.")
      .Integer("grid.data", o.data, deck::Between(0, kMostRanks), "ranks",
               "Ranks along the data axis: replicas of the model, each of which takes its part of "
               "every batch. 0: what context, tensor and pipeline leave of the job's ranks.")
      .Integer("grid.context", o.context, deck::Between(1, kMostRanks), "ranks",
               "Ranks along the context axis: each holds an early and a late block of every "
               "sequence, and keys and values travel around the ring of these ranks. For sequences "
               "too long for the memory of one rank.")
      .Integer(
          "grid.tensor", o.tensor, deck::Between(1, kMostRanks), "ranks",
          "Ranks along the tensor axis: each holds its share of the heads, hidden features and "
          "vocabulary rows of every layer. Their numbers are neighbours, so best on one node.")
      .Integer("grid.pipeline", o.pipeline, deck::Between(1, kMostRanks), "ranks",
               "Ranks along the pipeline axis (stages): each holds some of the layers.")
      .Switch(
          "grid.sequence_parallel", o.sequence_parallel,
          "Splits the rows of norms, dropout and residuals over the tensor ranks: reduce-scatter "
          "and all-gather instead of all-reduce, and less memory. Needs grid.tensor >= 2.")
      .Choice("grid.sharding", o.sharding, kShardings,
              "What the data x context ranks that hold the same part of the model split among them "
              "instead of keeping a copy each (ZeRO). none: nothing; optimizer: the moments (stage "
              "1); gradients: moments and gradients (stage 2); parameters: moments, gradients and "
              "parameters, each layer's gathered when it is used (stage 3).")
      .Integer("grid.shard_group", o.shard_group, deck::Between(0, kMostRanks), "ranks",
               "Number of ranks that split one copy of what grid.sharding names; must divide data "
               "x context. Smaller groups keep those transfers among neighbours, such as the ranks "
               "of a node, but need more memory. 0: all data x context ranks.");
}

// Memory of destroyed Places of this thread, for reuse.
std::vector<std::vector<int>>& Idle() {
  thread_local std::vector<std::vector<int>> idle;
  return idle;
}

// The keys of [grid] other than the sizes of the axes: how the groups are used.

void CheckSequenceParallel(const Options& options, const deck::Deck& deck, const GridShape& shape) {
  if (!options.sequence_parallel || !options.sequence_parallel_given || shape.tensor > 1) return;
  throw deck.Complain("grid.sequence_parallel",
                      "it cuts the rows over the tensor group, which has one rank",
                      "What fits: grid.tensor >= 2, or grid.sequence_parallel = no.");
}

// 0 without sharding: a preset's shard group then has no effect, but the user's own is refused.
int ReadShardGroup(const Options& options, const deck::Deck& deck, const GridShape& shape) {
  const std::string key = "grid.shard_group";
  const std::int64_t group = options.shard_group;
  if (group == 0) return 0;
  if (options.sharding == Sharding::kNone) {
    if (!options.shard_group_given) return 0;
    throw deck.Complain(key, "nothing is sharded with grid.sharding = none",
                        "What fits: grid.sharding = optimizer, gradients or parameters; or leave "
                        "grid.shard_group out.");
  }
  const std::int64_t whole = std::int64_t{shape.data} * shape.context;
  if (whole % group != 0) {
    const auto any = [](std::int64_t) { return true; };
    throw deck.Complain(key,
                        fmt::format("it does not divide data {} x context {} = {} rank{}",
                                    shape.data, shape.context, whole, whole == 1 ? "" : "s"),
                        fmt::format("What fits: grid.shard_group = {}, or 0 (all of them).",
                                    fmt::join(NearestDivisors(whole, group, any), " or ")));
  }
  return static_cast<int>(group);
}

}  // namespace

const char* NameOf(Sharding sharding) { return kShardings.at(static_cast<std::size_t>(sharding)); }

void Declare(deck::Schema& schema) { deck::Declare(schema, Bind); }

Options Read(const deck::Deck& deck) {
  Options options = deck::Read(deck, Bind);
  options.sequence_parallel_given = deck.Given("grid.sequence_parallel");
  options.shard_group_given = deck.Given("grid.shard_group");
  for (const char* name : {"grid.data", "grid.context", "grid.tensor", "grid.pipeline",
                           "grid.sharding", "grid.shard_group"}) {
    options.layout_given = options.layout_given || deck.Given(name);
  }
  return options;
}

// Places: counts and offsets in MPI's form, in reused memory.

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

GridOptions ReadGridOptions(const Options& options, const deck::Deck& deck,
                            const GridShape& shape) {
  CheckSequenceParallel(options, deck, shape);
  return {.sequence_parallel = options.sequence_parallel,
          .sharding = options.sharding,
          .shard_group = ReadShardGroup(options, deck, shape)};
}

}  // namespace trireme::comm
