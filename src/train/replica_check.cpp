// ReplicaCheck: cuts the state into pieces and compares their hashes over the ranks.
#include "trireme/train/replica_check.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "trireme/base/error.hpp"
#include "trireme/checkpoint/tensor_file.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/comm/hosts.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/train/optimizer.hpp"

namespace trireme::train {

namespace {

// One rank's hash of some elements of a block. Ranks exchange it as bytes.
struct Vote {
  std::int64_t block = 0;
  Part elements;
  std::int64_t rank = 0;  // world rank
  std::uint64_t hash = 0;
};

using Camps = std::map<std::uint64_t, std::vector<int>>;  // ranks by their hash

Corruption Judge(const Camps& camps) {
  Corruption found;
  std::size_t most = 0, with_most = 0;
  for (const auto& [hash, ranks] : camps) {
    found.holders.insert(found.holders.end(), ranks.begin(), ranks.end());
    if (ranks.size() > most) with_most = 0;
    most = std::max(most, ranks.size());
    if (ranks.size() == most) ++with_most;
  }
  found.certain = with_most == 1;
  for (const auto& [hash, ranks] : camps) {
    if (found.certain && ranks.size() == most) continue;
    found.wrong.insert(found.wrong.end(), ranks.begin(), ranks.end());
  }
  std::ranges::sort(found.holders);
  std::ranges::sort(found.wrong);
  return found;
}

// Returns the elements on which the votes differ: first those with a majority, then ties, both in
// block order. A tie is left out if one of its ranks is outvoted elsewhere: that explains it.
std::vector<Corruption> CountVotes(const std::vector<Vote>& votes,
                                   const std::vector<kernels::StateBlock>& blocks) {
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, Camps> ballots;
  for (const Vote& vote : votes) {
    ballots[{vote.block, vote.elements.begin, vote.elements.end}][vote.hash].push_back(
        static_cast<int>(vote.rank));
  }
  std::vector<Corruption> found;
  std::set<int> outvoted;
  for (const auto& [what, camps] : ballots) {
    if (camps.size() < 2) continue;
    Corruption corruption = Judge(camps);
    corruption.tensor = blocks.at(static_cast<std::size_t>(std::get<0>(what))).name;
    corruption.elements = {std::get<1>(what), std::get<2>(what)};
    if (corruption.certain) outvoted.insert(corruption.wrong.begin(), corruption.wrong.end());
    found.push_back(std::move(corruption));
  }
  std::erase_if(found, [&](const Corruption& corruption) {
    return !corruption.certain &&
           std::ranges::any_of(corruption.wrong, [&](int rank) { return outvoted.contains(rank); });
  });
  std::stable_partition(found.begin(), found.end(),
                        [](const Corruption& corruption) { return corruption.certain; });
  return found;
}

// Two ranks of one group whose texts differ.
struct Pair {
  int one = 0, other = 0;
};

// The first two ranks of one group with different texts. group_of(rank): a key that ranks of one
// group have in common.
template <typename GroupOf>
std::optional<Pair> FindPair(std::span<const std::string> texts, GroupOf group_of) {
  std::map<decltype(group_of(0)), int> first;
  for (int rank = 0; rank < static_cast<int>(texts.size()); ++rank) {
    const int other = first.emplace(group_of(rank), rank).first->second;
    const auto text = [&](int of) { return texts[static_cast<std::size_t>(of)]; };
    if (text(rank) != text(other)) return Pair{other, rank};
  }
  return std::nullopt;
}

// A hash as four numbers, exact in fp64: its halves and their negatives. Their maxima over ranks
// tell whether all hashes are equal.
constexpr std::size_t kNumbers = 4;
constexpr double kAbsent = -std::numeric_limits<double>::infinity();

void Encode(std::uint64_t hash, double* to) {
  const auto high = static_cast<double>(hash >> 32), low = static_cast<double>(hash & 0xFFFFFFFF);
  to[0] = high;
  to[1] = -high;
  to[2] = low;
  to[3] = -low;
}

// maxima: [kNumbers], maxima of encoded hashes over ranks; kAbsent if no rank has the elements.
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

std::uint64_t UpdateBits(const TrainingState& state) {
  constexpr std::int64_t kRows = 97, kColumns = 103;  // whole SIMD vectors and a remainder
  constexpr std::int64_t kElements = kRows * kColumns;
  constexpr int kSteps = 3;
  constexpr double kRate = 1e-2, kNorm = 3;  // usual settings clip gradients of this norm
  constexpr std::int64_t kTargets = 7;
  const device::Stream& stream = state.Stream();
  kernels::Parameter parameter;
  parameter.name = "test";
  parameter.shape = {kRows, kColumns};
  parameter.initialiser = {kernels::InitialiserKind::kNormal, 1};
  parameter.decay = true;
  kernels::ParameterList list;
  list.BeginUnit("test", true);
  list.Add(parameter);
  const kernels::Registry& model = state.Net().Parameters();
  kernels::Registry registry(list, model.Type(), true, stream);
  registry.Initialise(1);
  Optimizer optimizer(state.Plan().options.optimizer, registry, stream);
  const void* const values = registry.Masters() != nullptr ? registry.Masters() : registry.Values();
  for (int step = 1; step <= kSteps; ++step) {
    device::CopyWithin(stream, values, registry.Gradients(),
                       kElements * static_cast<std::int64_t>(SizeOf(registry.SumType())));
    optimizer.Step(step, kRate / step, kNorm, kTargets);
  }
  device::Synchronise(stream);
  const checkpoint::State result =
      StateToRead(stream, registry.ValueBlocks(0, 1, 1), optimizer.Blocks(0, 1, 1));
  std::uint64_t bits = 0;
  for (const auto* blocks : {&result.model, &result.optimizer}) {
    for (const kernels::StateBlock& block : *blocks) {
      bits = bits * 31 + checkpoint::BlockHash(block, block.begin, block.end, result.read);
    }
  }
  return bits;
}

std::string CheckProcessors(const comm::ProcessGrid& grid, const std::string& kind,
                            const std::function<std::uint64_t()>& bits, const comm::Hosts& hosts) {
  const comm::Communicator& world = grid.World();
  const comm::GridShape shape = grid.Shape();
  if (comm::SameEverywhere(world, kind)) return {};
  const std::vector<std::string> kinds = world.Gather(kind);
  const auto name = [&](int rank) {
    return fmt::format("rank {} on {} has {}", rank, hosts.Of(rank),
                       kinds[static_cast<std::size_t>(rank)]);
  };
  const auto mixed_tensor = FindPair(kinds, [&](int rank) {
    const comm::GridShape at = comm::Locate(rank, shape);
    return std::tuple(at.pipeline, at.data, at.context);
  });
  if (mixed_tensor) {
    throw AgreedError(
        ExitCode::kBadInput,
        fmt::format("processors differ: {}, but {}: both compute the gradients of norms that each "
                    "of them holds, and copies would drift apart",
                    name(mixed_tensor->one), name(mixed_tensor->other)),
        "Place the ranks of a tensor group (grid.tensor) on nodes of one kind.");
  }
  const int sharers = grid.Shard().Size();
  const auto same_elements = [&](int rank) {
    const comm::GridShape at = comm::Locate(rank, shape);
    return std::tuple(at.pipeline, at.tensor, (at.data * shape.context + at.context) % sharers);
  };
  const auto mixed = FindPair(kinds, same_elements);
  if (!mixed) return {};
  const std::vector<std::string> all_bits = world.Gather(std::to_string(bits()));
  const std::string who = fmt::format("{}, but {}", name(mixed->one), name(mixed->other));
  if (const auto drift = FindPair(all_bits, same_elements)) {
    throw AgreedError(
        ExitCode::kBadInput,
        fmt::format("processors differ: {}; the same update has other bits on rank {} than on "
                    "rank {}: replicas would drift apart",
                    who, drift->other, drift->one),
        "Use nodes of one kind, with one C library.");
  }
  return fmt::format(
      "processors differ: {}; a test update has the same bits on all, so that replicas stay "
      "equal, but losses depend in their last digits on which ranks compute what",
      who);
}

ReplicaCheck::ReplicaCheck(TrainingState& state)
    : grid_(state.Grid()),
      units_(state.Net().Units()),
      state_(state.ReplicatedState()),
      blocks_(state_.model) {
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

// For each block that several ranks of a replica hold: all places where a rank's part begins or
// ends, ascending, the same on all ranks. (Slices of unequal size are cut at different places.)
std::vector<std::vector<std::int64_t>> ReplicaCheck::FindCuts(const TrainingState& state) const {
  std::set<std::string> shared;  // parameters of which a replica has several copies
  for (const kernels::Parameter& parameter : state.Net().Parameters().Parameters()) {
    if (parameter.copies > 1) shared.insert(parameter.name);
  }
  std::vector<Held> mine;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const kernels::StateBlock& block = blocks_[i];
    // Names of moments have a prefix: "second_moment.norm.weight".
    const bool moment = i >= state_.model.size();
    const std::string name = moment ? block.name.substr(block.name.find('.') + 1) : block.name;
    if (!shared.contains(name) || block.begin == block.end) continue;
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
    // An index that is the same on all ranks that hold the piece.
    const auto place = static_cast<std::int64_t>(i < whole_pieces_ ? i : i - whole_pieces_);
    piece.chosen = (piece.slot == kNoSlot ? place : piece.slot) % parts == part;
    piece.hash = !piece.chosen ? 0
                               : checkpoint::BlockHash(blocks_[piece.block], piece.elements.begin,
                                                       piece.elements.end, state_.read);
  }
}

// Whether copies of this rank differ from those of other data ranks.
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

// Maxima over the world of the encoded hashes of each slot. differs: on entry, whether this rank
// has found a difference; on return, whether any rank or slot has.
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

// Indices of the pieces of this rank to compare in detail: the first whole piece and the first
// owned piece that differ over data ranks, and the piece (if any) of the first slot that differs.
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
  units_.FinishUpdated();
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

std::string Describe(const Corruption& corruption, const comm::Hosts& hosts) {
  const int size = hosts.Ranks();
  std::string who;
  constexpr std::size_t kNamed = 8;
  for (std::size_t i = 0; i < std::min(corruption.wrong.size(), kNamed); ++i) {
    const int rank = corruption.wrong[i];
    const char* const link = i == 0 ? "" : i + 1 == corruption.wrong.size() ? " and " : ", ";
    who += fmt::format("{}rank {} on {}", link, rank, hosts.Of(rank));
  }
  if (corruption.wrong.size() > kNamed) {
    who += fmt::format(" and {} more ranks", corruption.wrong.size() - kNamed);
  }
  const std::size_t copies = corruption.holders.size();
  if (!corruption.certain) {
    return fmt::format("{} differ in {}; with {} copies it cannot be told which one is wrong", who,
                       corruption.tensor, copies == 2 ? "two" : std::to_string(copies));
  }
  std::vector<int> right;
  std::ranges::set_difference(corruption.holders, corruption.wrong, std::back_inserter(right));
  return fmt::format("{} {} other bits of {} than {}, which agree", who,
                     corruption.wrong.size() == 1 ? "holds" : "hold", corruption.tensor,
                     comm::ListRanks(right, size));
}

}  // namespace trireme::train
