// Compares everything of which several ranks hold copies, to find a bit that flipped in one rank's
// memory, or a rank whose arithmetic differs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trireme/base/partition.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/train/training_state.hpp"

namespace trireme::train {

// Hash of the result of a few optimizer steps on fixed numbers, drawn like initial weights, on this
// rank's processor. If two ranks have equal hashes, their copies of weights stay equal as long as
// the gradients are equal. Not collective; takes milliseconds.
std::uint64_t UpdateBits(const TrainingState& state);

// Checks that ranks which hold copies of the same elements have processors that keep them equal.
// Collective over the grid's world. kind: of this rank's processor ("AVX2") or GPU. Returns a
// warning that names hosts and kinds if only data ranks differ and their `bits` (UpdateBits, called
// only if needed) are equal; empty if no such ranks differ. Throws AgreedError (exit code 2) if
// bits differ, or if kinds differ in a tensor group, whose ranks each compute gradients of norms.
std::string CheckProcessors(const comm::ProcessGrid& grid, const std::string& kind,
                            const std::function<std::uint64_t()>& bits, const comm::Hosts& hosts);

// Elements whose copies differ.
struct Corruption {
  std::string tensor;        // global name: "blocks.0.norm.weight", "first_moment.head.weight"
  Part elements;             // range compared in the flattened global tensor
  std::vector<int> wrong;    // world ranks outvoted by the majority; ascending
  std::vector<int> holders;  // world ranks whose copies were compared
  bool certain = true;       // false: there is no majority, and `wrong` is all holders
};

// One line: "rank 3 on node7 holds other bits of X than ranks 0-2 of 4, which agree".
std::string Describe(const Corruption& corruption, const comm::Hosts& hosts);

// Compares copies. Values that are stored whole are compared over all data ranks; sharded values,
// masters and moments over the data ranks that own the same elements; norms, biases, positions and
// shared key/value heads also over tensor ranks; a tied table also over the first and the last
// stage.
class ReplicaCheck {
 public:
  // Collective over the state's world, like Look. `state` must outlive this.
  explicit ReplicaCheck(TrainingState& state);

  // Whether there are copies to compare; the same on all ranks.
  bool Active() const { return active_; }
  // Compares hashes of all copies. Returns those that differ, the certain ones first, the same list
  // on all ranks. Each rank reads all its state once and sends a few hundred bytes; it sends more
  // only if something differs.
  std::vector<Corruption> Look() { return Look(0, 1); }
  // Compares only part `part` (from 0) of `parts`, for states that are slow to read.
  std::vector<Corruption> Look(std::int64_t part, std::int64_t parts);

 private:
  // Elements of a block that are hashed together.
  struct Piece {
    std::size_t block = 0;
    Part elements;
    std::int64_t slot = kNoSlot;  // index among pieces with copies inside a replica
    std::uint64_t hash = 0;
    bool chosen = true;  // belongs to the part that is compared
  };
  static constexpr std::int64_t kNoSlot = -1;

  std::vector<std::vector<std::int64_t>> FindCuts(const TrainingState& state) const;
  void MakePieces(const std::vector<std::vector<std::int64_t>>& cuts);
  void HashPieces(std::int64_t part, std::int64_t parts);
  bool DataRanksDiffer() const;
  std::vector<double> SlotExtremes(bool& differs) const;
  std::vector<std::size_t> SuspectPieces(const std::vector<double>& slots) const;

  const comm::ProcessGrid& grid_;
  parallel::ShardedUnits& units_;
  const checkpoint::State state_;
  std::vector<kernels::StateBlock> blocks_;  // of state_: model, then optimizer
  std::size_t whole_blocks_ = 0;             // number of leading blocks; all of Data() hold these
  std::vector<Piece> pieces_;                // in the order of the blocks
  std::size_t whole_pieces_ = 0;             // number of leading pieces, cut from those blocks
  std::int64_t slots_ = 0;                   // number of slots, the same on all ranks
  bool active_ = false;
};

}  // namespace trireme::train
