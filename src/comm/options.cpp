// The keys of [grid] that give the layout of the ranks.
#include "trireme/comm/options.hpp"

#include "trireme/deck/choice.hpp"

namespace trireme::comm {

namespace {
constexpr deck::Names<4> kShardings = {"none", "optimizer", "gradients", "parameters"};
}  // namespace

const char* NameOf(Sharding sharding) { return kShardings.at(static_cast<std::size_t>(sharding)); }

void Declare(deck::Schema& schema) {
  schema.Section("grid",
                 "How the MPI ranks share the work: data x context x tensor x pipeline of them.");
  schema.Integer("grid.ranks", 0, deck::Between(0, kMostRanks), "ranks",
                 "Ranks to plan for with -v; 0: those that run.");
  schema.Integer("grid.data", 0, deck::Between(0, kMostRanks), "ranks",
                 "Ranks along the data axis: replicas of the model, each of which takes its part "
                 "of every batch. 0 takes what context, tensor and pipeline leave of the job's "
                 "ranks.");
  schema.Integer("grid.context", 1, deck::Between(1, kMostRanks), "ranks",
                 "Ranks along the context axis: each holds an early and a late block of every "
                 "sequence, and the keys and values go around the ring of them. For sequences "
                 "too long for the memory of one rank.");
  schema.Integer("grid.tensor", 1, deck::Between(1, kMostRanks), "ranks",
                 "Ranks along the tensor axis: each holds its heads, hidden features and "
                 "vocabulary rows of every layer. Neighbours in the world, so best on one node.");
  schema.Integer("grid.pipeline", 1, deck::Between(1, kMostRanks), "ranks",
                 "Ranks along the pipeline axis (stages): each holds some of the layers.");
  schema.Switch("grid.sequence_parallel", false,
                "Norms, dropout and residuals on a shard of the rows of each tensor rank: "
                "reduce-scatter and all-gather instead of all-reduce, and less memory. Needs "
                "grid.tensor >= 2.");
  schema.Choice(
      "grid.sharding", "none", deck::Choices(kShardings),
      "What the data x context ranks that hold the same part of the model share out "
      "among them instead of keeping a copy each (ZeRO). none: nothing; optimizer: the moments "
      "(stage 1); gradients: moments and gradients (stage 2); parameters: these and the "
      "parameters, of which each layer's are gathered when it is used (stage 3).");
  schema.Integer("grid.shard_group", 0, deck::Between(0, kMostRanks), "ranks",
                 "Ranks that share one copy of what grid.sharding shares out; must divide "
                 "data x context. Fewer keep those transfers among neighbours, such as those of a "
                 "node, and need more memory. 0: all data x context ranks.");
}

Options Read(const deck::Deck& deck) {
  return {.ranks = static_cast<int>(deck.Integer("grid.ranks")),
          .data = deck.Integer("grid.data"),
          .context = deck.Integer("grid.context"),
          .tensor = deck.Integer("grid.tensor"),
          .pipeline = deck.Integer("grid.pipeline"),
          .sequence_parallel = deck.Switch("grid.sequence_parallel"),
          .sequence_parallel_given = deck.Given("grid.sequence_parallel"),
          .sharding = deck::Pick<Sharding>(deck.Text("grid.sharding"), kShardings),
          .shard_group = deck.Integer("grid.shard_group"),
          .shard_group_given = deck.Given("grid.shard_group"),
          .layout_given = deck.Given("grid.data") || deck.Given("grid.context") ||
                          deck.Given("grid.tensor") || deck.Given("grid.pipeline") ||
                          deck.Given("grid.sharding") || deck.Given("grid.shard_group")};
}

}  // namespace trireme::comm
