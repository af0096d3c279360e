// ReplicaCheck: pieces, their hashes, and the agreement on them.
#include "trireme/train/replica_check.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "replica_votes.hpp"
#include "trireme/base/error.hpp"
#include "trireme/checkpoint/block_hash.hpp"
#include "trireme/comm/gather_all.hpp"

namespace trireme::train {

namespace {

// A hash as numbers whose maxima over ranks tell whether all are equal: its halves and their
// negatives, exact in fp64.
constexpr std::size_t kNumbers = 4;
constexpr double kAbsent = -std::numeric_limits<double>::infinity();

void Encode(std::uint64_t hash, double* to) {
  const auto high = static_cast<double>(hash >> 32), low = static_cast<double>(hash & 0xFFFFFFFF);
  to[0] = high;
  to[1] = -high;
  to[2] = low;
  to[3] = -low;
}

// maxima: over the ranks that hold it; absent: none does.
bool Differ(const double* maxima) {
  if (maxima[0] == kAbsent) return false;
  return maxima[0] != -maxima[1] || maxima[2] != -maxima[3];
}

void Maximise(const comm::ProcessGrid& grid, comm::Group group, std::span<double> numbers) {
  grid.Over(group).OnHost().AllReduce(Dtype::kFloat64, numbers.data(), std::ssize(numbers),
                                      comm::Reduction::kMax);
}

struct Held {
  std::int64_t block = 0, begin = 0, end = 0;
};

}  // namespace

ReplicaCheck::ReplicaCheck(TrainingState& state)
    : grid_(state.Grid()), state_(state.ReplicatedState()), blocks_(state_.model) {
  blocks_.insert(blocks_.end(), state_.optimizer.begin(), state_.optimizer.end());
  if (!state.Net().Units().ValuesSharded()) whole_blocks_ = state_.model.size();
  MakePieces(FindCuts(state));
  const comm::Communicator& world = grid_.World();
  if (world.Max(slots_) != world.Min(slots_)) {
    throw RunError("replicas: ranks count different copies", "This is a bug in Trireme.");
  }
  const bool data = grid_.SameShard().Size() > 1 || (whole_blocks_ > 0 && grid_.Data().Size() > 1);
  active_ = data || slots_ > 0;
}

// For each block of which ranks of one replica hold copies: where any rank's part begins or ends,
// ascending, the same on all ranks. Parts of tensor ranks with uneven slices are cut differently.
std::vector<std::vector<std::int64_t>> ReplicaCheck::FindCuts(const TrainingState& state) const {
  const auto& parameters = state.Net().Parameters().Parameters();
  std::vector<Held> mine;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const kernels::StateBlock& block = blocks_[i];
    if (parameters[i % parameters.size()].copies == 1 || block.begin == block.end) continue;
    mine.push_back({static_cast<std::int64_t>(i), block.begin, block.end});
  }
  const std::vector<Held> of_copy = comm::GatherAll(grid_.Shard(), mine);
  std::vector<std::vector<std::int64_t>> cuts(blocks_.size());
  for (const Held& held : comm::GatherAll(grid_.Replica(), of_copy)) {
    std::vector<std::int64_t>& of_block = cuts[static_cast<std::size_t>(held.block)];
    of_block.insert(of_block.end(), {held.begin, held.end});
  }
  for (std::vector<std::int64_t>& of_block : cuts) {
    std::ranges::sort(of_block);
    of_block.erase(std::unique(of_block.begin(), of_block.end()), of_block.end());
  }
  return cuts;
}

void ReplicaCheck::MakePieces(const std::vector<std::vector<std::int64_t>>& cuts) {
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const kernels::StateBlock& block = blocks_[i];
    if (cuts[i].empty() && block.begin < block.end) {
      pieces_.push_back({.block = i, .elements = {block.begin, block.end}});
    }
    for (std::size_t cut = 1; cut < cuts[i].size(); ++cut, ++slots_) {
      const Part part = {cuts[i][cut - 1], cuts[i][cut]};
      if (part.begin < block.begin || part.end > block.end) continue;
      pieces_.push_back({.block = i, .elements = part, .slot = slots_});
    }
    if (i < whole_blocks_) whole_pieces_ = pieces_.size();
  }
}

void ReplicaCheck::HashPieces(std::int64_t part, std::int64_t parts) {
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    Piece& piece = pieces_[i];
    // Numbers that are the same on all ranks that hold it.
    const auto place = static_cast<std::int64_t>(i < whole_pieces_ ? i : i - whole_pieces_);
    piece.chosen = (piece.slot == kNoSlot ? place : piece.slot) % parts == part;
    piece.hash = !piece.chosen ? 0
                               : checkpoint::BlockHash(blocks_[piece.block], piece.elements.begin,
                                                       piece.elements.end, state_.read);
  }
}

// Of this rank's groups.
bool ReplicaCheck::DataRanksDiffer() const {
  std::vector<std::uint64_t> whole, owned;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    (i < whole_pieces_ ? whole : owned).push_back(pieces_[i].hash);
  }
  const auto hash_of = [](std::vector<std::uint64_t>& hashes) {
    const auto count = std::ssize(hashes);
    const kernels::StateBlock all{
        .name = {}, .shape = {}, .dtype = Dtype::kFloat64, .end = count, .data = hashes.data()};
    return checkpoint::BlockHash(all, 0, count);
  };
  std::array<double, 2 * kNumbers> numbers{};
  Encode(hash_of(whole), numbers.data());
  Encode(hash_of(owned), numbers.data() + kNumbers);
  Maximise(grid_, comm::Group::kData, numbers);
  const bool owned_differ = Differ(numbers.data() + kNumbers);
  Maximise(grid_, comm::Group::kShard, std::span(numbers).first(kNumbers));
  return owned_differ || Differ(numbers.data());
}

// Maxima over the world of what ranks of one replica hold alike, slot by slot. differs: this rank's
// view before, the world's after.
std::vector<double> ReplicaCheck::SlotExtremes(bool& differs) const {
  std::vector<double> numbers(static_cast<std::size_t>(slots_) * kNumbers + 1, kAbsent);
  for (const Piece& piece : pieces_) {
    if (piece.slot == kNoSlot || !piece.chosen) continue;
    Encode(piece.hash, numbers.data() + static_cast<std::size_t>(piece.slot) * kNumbers);
  }
  numbers.back() = differs ? 1 : 0;
  Maximise(grid_, comm::Group::kWorld, numbers);
  differs = numbers.back() > 0;
  for (std::int64_t slot = 0; slot < slots_; ++slot) {
    differs = differs || Differ(numbers.data() + static_cast<std::size_t>(slot) * kNumbers);
  }
  return numbers;
}

// Of this rank's pieces: the first whole and the first owned one that differ over its data ranks,
// and that of the first slot that differs.
std::vector<std::size_t> ReplicaCheck::SuspectPieces(const std::vector<double>& slots) const {
  std::vector<double> numbers(pieces_.size() * kNumbers);
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    Encode(pieces_[i].hash, numbers.data() + i * kNumbers);
  }
  Maximise(grid_, comm::Group::kData, numbers);
  Maximise(grid_, comm::Group::kShard, std::span(numbers).first(whole_pieces_ * kNumbers));
  std::vector<std::size_t> suspects;
  const auto add_first = [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      if (Differ(numbers.data() + i * kNumbers)) return suspects.push_back(i);
    }
  };
  add_first(0, whole_pieces_);
  add_first(whole_pieces_, pieces_.size());
  std::int64_t first = 0;
  while (first < slots_ && !Differ(slots.data() + static_cast<std::size_t>(first) * kNumbers)) {
    ++first;
  }
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const bool known = std::ranges::find(suspects, i) != suspects.end();
    if (pieces_[i].slot == first && first < slots_ && !known) suspects.push_back(i);
  }
  return suspects;
}

std::vector<Corruption> ReplicaCheck::Look(std::int64_t part, std::int64_t parts) {
  if (!active_) return {};
  HashPieces(part, parts);
  bool differs = DataRanksDiffer();
  const std::vector<double> slots = SlotExtremes(differs);
  if (!differs) return {};
  std::vector<Vote> mine;
  for (const std::size_t i : SuspectPieces(slots)) {
    const Piece& piece = pieces_[i];
    mine.push_back(
        {static_cast<std::int64_t>(piece.block), piece.elements, grid_.World().Rank(), piece.hash});
  }
  std::vector<Corruption> found = CountVotes(comm::GatherAll(grid_.World(), mine), blocks_);
  if (!found.empty()) return found;
  throw RunError("replicas: hashes differ, but no piece does", "This is a bug in Trireme.");
}

}  // namespace trireme::train
