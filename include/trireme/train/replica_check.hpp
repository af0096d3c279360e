// Comparison of everything that several ranks hold alike: a bit that flipped in one rank's memory,
// or arithmetic that differs, is found and the rank named.
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

// Hash of what this rank's processor makes of a few steps of the optimizer on fixed numbers, drawn
// as initial weights are: equal hashes mean that copies of weights stay equal where their gradients
// are. Serial; takes milliseconds.
std::uint64_t UpdateBits(const TrainingState& state);

// Collective over the grid's world. kind: of this rank's processor, "AVX2", or of its card. If all
// kinds are equal, or none of different kinds hold copies of the same elements, empty. If only data
// ranks differ and `bits` (UpdateBits; called if needed) are the same, a warning that names hosts
// and kinds. Throws AgreedError (exit code 2) if copies would drift apart: bits differ, or tensor
// ranks differ, each of which computes the gradients of its copies of norms.
std::string CheckProcessors(const comm::ProcessGrid& grid, const std::string& kind,
                            const std::function<std::uint64_t()>& bits, const comm::Hosts& hosts);

// Copies of the same elements that differ.
struct Corruption {
  std::string tensor;        // global name: "blocks.0.norm.weight", "first_moment.head.weight"
  Part elements;             // compared, of the flattened global tensor
  std::vector<int> wrong;    // world ranks whose bits differ from those of most; ascending
  std::vector<int> holders;  // world ranks whose copies were compared, `wrong` among them
  bool certain = true;       // false: no majority agrees, and `wrong` is all holders
};

// "rank 3 on node7 holds other bits of X than ranks 0-2 of 4, which agree": one line.
std::string Describe(const Corruption& corruption, const comm::Hosts& hosts);

// Copies that are compared: values that are stored whole, over all data ranks; sharded values,
// masters and moments, over the data ranks that own the same elements; norms, biases, positions and
// shared key/value heads, over tensor ranks; a tied table, over the first and the last stage. What
// one rank alone holds cannot be compared.
class ReplicaCheck {
 public:
  // Collective over the state's world, as are the others. `state` must outlive it.
  explicit ReplicaCheck(TrainingState& state);

  // Whether anything is held by several ranks; the same on all ranks.
  bool Active() const { return active_; }
  // Compares hashes of all copies: those that differ, the certain ones first, the same list on all
  // ranks; empty: none. Each rank reads all that it holds once and sends a few hundred bytes, and
  // more only if something differs.
  std::vector<Corruption> Look() { return Look(0, 1); }
  // Compares part number `part` of `parts`: for states that are slow to read.
  std::vector<Corruption> Look(std::int64_t part, std::int64_t parts);

 private:
  // Elements of a block that are hashed and compared in one go.
  struct Piece {
    std::size_t block = 0;
    Part elements;
    std::int64_t slot = kNoSlot;  // place among those that ranks of one replica hold, too
    std::uint64_t hash = 0;
    bool chosen = true;  // in the part compared
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
  std::vector<kernels::StateBlock> blocks_;  // of the state, one after the other
  std::size_t whole_blocks_ = 0;             // of these, the first ones, held by all of Data()
  std::vector<Piece> pieces_;                // in the order of the blocks
  std::size_t whole_pieces_ = 0;             // of the whole blocks
  std::int64_t slots_ = 0;                   // the same on all ranks
  bool active_ = false;
};

}  // namespace trireme::train
