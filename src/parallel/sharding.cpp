// ShardedUnits: the choice of transfers by what is sharded, and the gather of updated values.
#include "trireme/parallel/sharding.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <exception>
#include <limits>
#include <numeric>

#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/update.hpp"
#include "trireme/parallel/gradient_buckets.hpp"

namespace trireme::parallel {

// Memory for whole units of a sharded model: blocks share some buffers of the largest one's size,
// every other unit has one of its own.

class UnitBuffers {
 public:
  static constexpr int kNone = -1;
  // Allocates `block_buffers` for the blocks, at most one more than there are blocks.
  UnitBuffers(const kernels::Registry& registry, Dtype dtype, device::Kind where,
              int block_buffers);
  std::int64_t Bytes() const;

  int Take(int unit);      // a free buffer for the unit, kNone: all are taken
  void Share(int buffer);  // one more user of a taken buffer
  void Give(int buffer);   // one user less
  void* At(int buffer) const { return places_[static_cast<std::size_t>(buffer)].memory.get(); }

 private:
  struct Place {
    int users = 0;
    device::Buffer memory;
  };
  std::vector<Place> places_;  // the blocks' first
  int block_places_ = 0;
  std::vector<int> own_;  // [units]: its place; kNone: a block
};

// Pieces of a registry in which every unit is one piece.
class UnitPieces {
 public:
  explicit UnitPieces(const kernels::Registry& registry);  // `registry` must outlive this
  bool Held(int unit) const { return Number(unit) >= 0; }
  int Number(int unit) const { return numbers_[static_cast<std::size_t>(unit)]; }  // of the piece
  const kernels::Piece& PieceOf(int unit) const {  // of one that is held
    return registry_->Owns().pieces[static_cast<std::size_t>(Number(unit))];
  }
  const std::string& NameOf(int unit) const {
    return registry_->Units()[static_cast<std::size_t>(unit)].name;
  }

 private:
  const kernels::Registry* registry_;
  std::vector<int> numbers_;  // [units]; -1: other ranks hold it
};

// Values of sharded units: gathered ahead of their use, in the order that was announced.

// Every announced use is one gather. Gathers start in the announced order, only in Announce, Use
// and Done, and never depend on what has arrived: so all ranks start them in the same order.
class UnitGathers {
 public:
  UnitGathers(const comm::Collectives& shard, kernels::Registry& registry,
              const device::Stream& stream, const ShardSetup& setup);
  std::int64_t Bytes() const { return buffers_.Bytes(); }

  void Announce(const std::vector<int>& uses);
  void Use(int unit);
  void Done(int unit);
  void Progress();

  std::int64_t Count() const { return count_; }
  std::int64_t Ready() const { return ready_; }
  double SecondsWaited() const { return seconds_waited_; }  // since construction

 private:
  struct Gather {
    int unit = 0;
    int buffer = UnitBuffers::kNone;  // none: not started
    comm::Request request;
  };
  void Start(Gather& gather);
  void Wait(Gather& gather);
  void StartAhead();
  // A buffer for the next use, which nobody started ahead.
  int BufferNow(int unit);
  void CheckNext(int unit) const;

  comm::Collectives shard_;
  kernels::Registry* registry_;
  device::Stream stream_;
  int prefetch_ = 0;
  UnitBuffers buffers_;
  UnitPieces units_;
  std::vector<Gather> announced_;  // in order
  std::size_t next_ = 0;           // first one not used
  std::size_t started_ = 0;        // from there on
  std::vector<Gather> in_use_;     // the innermost last
  std::int64_t count_ = 0, ready_ = 0;
  double seconds_waited_ = 0;
};

// Gradients of sharded units: whole where they are added up, then scattered to their owners.

// Every End is one reduce-scatter. Results are added to the owned gradients in the order of the
// starts, so that sums do not depend on arrival.
class UnitScatters {
 public:
  UnitScatters(const comm::Collectives& shard, kernels::Registry& registry,
               const device::Stream& stream, const ShardSetup& setup, SharedGradients* shared);
  std::int64_t Bytes() const { return buffers_.Bytes(); }

  std::int64_t LibraryBytes() const;
  void BeginStep();
  void Begin(int unit);
  void End(int unit);
  void Progress();
  void Finish();

  const std::string& NotFinite() const { return not_finite_; }
  double SecondsWaited() const { return seconds_waited_; }  // since construction

 private:
  struct Scatter {
    int unit = 0;
    int buffer = UnitBuffers::kNone;
    comm::Request request;
  };
  void AddFront();  // the oldest one's part, when it has arrived

  comm::Collectives shard_;
  kernels::Registry* registry_;
  device::Stream stream_;
  SharedGradients* shared_;
  bool overlap_ = true;
  UnitBuffers buffers_;
  UnitPieces units_;
  std::vector<int> open_;         // [units]: buffer of a unit begun
  std::vector<Scatter> running_;  // the oldest first
  std::string not_finite_;
  double seconds_waited_ = 0;
};

ShardedUnits::ShardedUnits() = default;
ShardedUnits::ShardedUnits(ShardedUnits&& other) noexcept = default;
ShardedUnits& ShardedUnits::operator=(ShardedUnits&& other) noexcept = default;
ShardedUnits::~ShardedUnits() { LeaveUpdated(); }

ShardedUnits::ShardedUnits(const comm::Collectives& shard, kernels::Registry& registry,
                           const device::Stream& stream, const ShardSetup& setup,
                           SharedGradients* shared)
    : shard_(shard.Carrying(comm::Payload::kParameters)),
      registry_(&registry),
      overlap_(setup.overlap) {
  const kernels::Ownership& owns = registry.Owns();
  if (owns.values_sharded) {
    gathers_ = std::make_unique<UnitGathers>(shard, registry, stream, setup);
  } else {
    gathers_updated_ = setup.sharding != comm::Sharding::kNone;
    OrderUpdated(setup.first_stage);
  }
  if (owns.gradients_sharded && setup.training) {
    scatters_ = std::make_unique<UnitScatters>(shard, registry, stream, setup, shared);
  }
}

std::int64_t ShardedUnits::GatherBytes() const { return gathers_ ? gathers_->Bytes() : 0; }
std::int64_t ShardedUnits::GradientBytes() const { return scatters_ ? scatters_->Bytes() : 0; }

std::int64_t ShardedUnits::LibraryBytes() const {
  return scatters_ ? scatters_->LibraryBytes() : 0;
}

void ShardedUnits::BeginTasks(const std::vector<int>& uses) {
  if (gathers_) gathers_->Announce(uses);
}

void ShardedUnits::Use(int unit) {
  if (gathers_) gathers_->Use(unit);
  if (updates_.empty()) return;
  const Part used = registry_->Units()[static_cast<std::size_t>(unit)].range;
  for (UpdateGather& gather : updates_) {
    if (gather.range.begin < used.end && used.begin < gather.range.end) Await(gather);
  }
}

void ShardedUnits::Done(int unit) {
  if (gathers_) gathers_->Done(unit);
}

void ShardedUnits::BeginGradient(int unit) {
  if (scatters_) scatters_->Begin(unit);
}

void ShardedUnits::EndGradient(int unit) {
  if (scatters_) scatters_->End(unit);
}

void ShardedUnits::Progress() {
  if (gathers_) gathers_->Progress();
  if (scatters_) scatters_->Progress();
  for (UpdateGather& gather : updates_) gather.request.Test();
}

void ShardedUnits::BeginStep() {
  if (scatters_) scatters_->BeginStep();
  waited_before_ = 0;
  waited_before_ = SecondsWaited();
}

void ShardedUnits::FinishGradients() {
  if (scatters_) scatters_->Finish();
}

void ShardedUnits::OrderUpdated(bool first_stage) {
  const auto& pieces = registry_->Owns().pieces;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].range.begin < registry_->Size()) updated_.push_back(i);  // else a second gradient
  }
  if (first_stage) return;
  const auto& units = registry_->Units();
  const auto block = std::ranges::find_if(
      units, [](const kernels::Unit& unit) { return unit.block && unit.range.Size() > 0; });
  if (block == units.end()) return;
  const auto is_table = [&](std::size_t i) { return pieces[i].range.end <= block->range.begin; };
  std::rotate(updated_.begin(), std::ranges::find_if_not(updated_, is_table), updated_.end());
}

void ShardedUnits::GatherUpdated() {
  if (!gathers_updated_) return;
  const Dtype dtype = registry_->Type();
  FinishUpdated();
  for (const std::size_t number : updated_) {
    const kernels::Piece& piece = registry_->Owns().pieces[number];
    void* const values = ElementAt(registry_->Values(), dtype, piece.range.begin);
    updates_.push_back(
        {piece.range, shard_.StartAllGatherInPlace(dtype, values, OwnCounts(piece))});
    if (!overlap_) Await(updates_.back());
  }
}

void ShardedUnits::Await(UpdateGather& gather) {
  const double start = Seconds();
  gather.request.Wait();
  seconds_waited_ += Seconds() - start;
}

void ShardedUnits::FinishUpdated() {
  for (UpdateGather& gather : updates_) Await(gather);
  updates_.clear();
}

// MPI writes to values until the last gather is complete. If an exception comes from a rank that is
// gone, that is never.
void ShardedUnits::LeaveUpdated() noexcept {
  constexpr double kPatience = 10;  // seconds
  const double start = Seconds();
  try {
    const auto complete = [](UpdateGather& gather) { return gather.request.Test(); };
    while (std::uncaught_exceptions() > 0 && !std::ranges::all_of(updates_, complete)) {
      if (Seconds() - start > kPatience) return;
    }
    FinishUpdated();
  } catch (const std::exception&) {
    // A failure has been reported at the wait for it.
  }
}

const std::string& ShardedUnits::NotFinite() const {
  return scatters_ ? scatters_->NotFinite() : all_finite_;
}

std::int64_t ShardedUnits::Gathers() const { return gathers_ ? gathers_->Count() : 0; }
std::int64_t ShardedUnits::GathersReady() const { return gathers_ ? gathers_->Ready() : 0; }

double ShardedUnits::SecondsWaited() const {
  return seconds_waited_ + (gathers_ ? gathers_->SecondsWaited() : 0) +
         (scatters_ ? scatters_->SecondsWaited() : 0) - waited_before_;
}

// PlanOwnership: pieces of the flat range, the owned part of each, and its place in storage.

namespace {

using comm::Sharding;

// An MPI count is an int: no bucket may pass it, and parameters larger than that are cut.
constexpr std::int64_t kShardingOwnershipMostElements = std::int64_t{1} << 28;

// From the end, as the backward pass finishes them.
std::vector<Part> Buckets(const kernels::ParameterList& list, std::int64_t bucket_elements) {
  std::vector<Part> buckets;
  std::int64_t end = list.Size();
  const auto& parameters = list.Parameters();
  for (std::size_t i = parameters.size(); i-- > 0;) {
    // Nothing becomes ready at a parameter that other ranks hold: a bucket cut there would wait for
    // the next one before it.
    if (i > 0 && !parameters[i].Held()) continue;
    const std::int64_t begin = i == 0 ? 0 : parameters[i].offset;
    while (end - begin > kShardingOwnershipMostElements) {
      buckets.push_back({end - kShardingOwnershipMostElements, end});
      end -= kShardingOwnershipMostElements;
    }
    if (end - begin >= bucket_elements || i == 0) {
      if (end > begin) buckets.push_back({begin, end});
      end = begin;
    }
  }
  return buckets;
}

// Traits of a unit that decide about its grouping.
struct UnitTraits {
  std::int64_t elements = 0;  // a tensor rank's share, the same on all of them
  bool alone = false;         // holds the table that two stages or two gradients share
};

std::vector<UnitTraits> TraitsOf(const kernels::ParameterList& list, int tensor_ranks) {
  std::vector<UnitTraits> traits(list.Units().size());
  const auto& parameters = list.Parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto id = static_cast<kernels::ParameterId>(i);
    UnitTraits& unit = traits[static_cast<std::size_t>(list.UnitOf(id))];
    unit.elements += kernels::ElementCount(parameters[i].shape);
    if (parameters[i].sum == kernels::GradientSum::kTied || list.SecondOf() == id) {
      unit.alone = true;
    }
  }
  for (UnitTraits& unit : traits) unit.elements /= tensor_ranks;
  return traits;
}

// Whole units, from the end, as many as make a bucket.
std::vector<Part> UnitGroups(const kernels::ParameterList& list, std::int64_t bucket_elements,
                             int tensor_ranks) {
  const std::vector<UnitTraits> traits = TraitsOf(list, tensor_ranks);
  const auto& units = list.Units();
  std::vector<Part> groups;
  Part group{list.Size(), list.Size()};
  std::int64_t elements = 0;
  const auto close = [&] {
    if (group.Size() > 0) groups.push_back(group);
    group.end = group.begin;
    elements = 0;
  };
  for (std::size_t i = units.size(); i-- > 0;) {
    if (units[i].range.Size() == 0) continue;
    if (traits[i].alone) close();
    group.begin = units[i].range.begin;
    elements += traits[i].elements;
    if (traits[i].alone || elements >= bucket_elements) close();
  }
  close();
  return groups;
}

std::vector<Part> WholeUnits(const kernels::ParameterList& list) {
  std::vector<Part> units;
  for (const kernels::Unit& unit : list.Units()) {
    if (unit.range.Size() > 0) units.push_back(unit.range);
  }
  std::reverse(units.begin(), units.end());
  return units;
}

std::vector<Part> CutPieces(const kernels::ParameterList& list, Dtype dtype,
                            const ShardSetup& setup) {
  const std::int64_t elements =
      CeilDivide(setup.bucket_bytes, static_cast<std::int64_t>(SizeOf(dtype)));
  switch (setup.sharding) {
    case Sharding::kNone:
      return Buckets(list, elements);
    case Sharding::kOptimizer:
      return UnitGroups(list, elements, setup.tensor_ranks);
    default:
      return WholeUnits(list);
  }
}

// Cuts a piece between parameters only: each cut is the parameter's begin that lies nearest to an
// even one. Elements of each rank.
std::vector<std::int64_t> CutBetweenParameters(const kernels::ParameterList& list,
                                               const Part& range, int ranks) {
  std::vector<std::int64_t> cuts = {range.begin, range.end};
  for (const kernels::Parameter& parameter : list.Parameters()) {
    const std::int64_t begin = parameter.offset;
    if (parameter.Held() && begin > range.begin && begin < range.end) cuts.push_back(begin);
  }
  std::sort(cuts.begin(), cuts.end());
  std::vector<std::int64_t> counts;
  std::int64_t begin = range.begin;
  for (int rank = 1; rank <= ranks; ++rank) {
    const std::int64_t even = range.begin + PartOf(range.Size(), rank - 1, ranks).end;
    const auto distance = [even](std::int64_t cut) { return cut < even ? even - cut : cut - even; };
    const std::int64_t end = *std::min_element(
        cuts.begin(), cuts.end(),
        [&](std::int64_t a, std::int64_t b) { return distance(a) < distance(b); });
    counts.push_back(end - begin);
    begin = end;
  }
  return counts;
}

// The elements of `range` that this rank owns; with parameters kept whole, every rank's count too.
void Share(const kernels::ParameterList& list, const ShardSetup& setup, kernels::Piece& piece) {
  const Part& range = piece.range;
  Part own = {0, range.Size()};
  if (setup.sharding != Sharding::kNone && setup.whole_parameters) {
    piece.counts = CutBetweenParameters(list, range, setup.ranks);
    const auto mine = piece.counts.begin() + setup.rank;
    own.begin = std::accumulate(piece.counts.begin(), mine, std::int64_t{0});
    own.end = own.begin + *mine;
  } else if (setup.sharding != Sharding::kNone) {
    own = OwnPart(range.Size(), setup.rank, setup.ranks);
  }
  piece.own = {range.begin + own.begin, range.begin + own.end};
}

}  // namespace

kernels::Ownership PlanOwnership(const kernels::ParameterList& list, Dtype dtype,
                                 const ShardSetup& setup) {
  const bool none = setup.sharding == Sharding::kNone;
  const Part second = list.SecondRange();
  kernels::Ownership owns;
  owns.values_sharded = setup.sharding == Sharding::kParameters;
  owns.gradients_sharded = setup.sharding >= Sharding::kGradients && !setup.canonical;
  owns.gradient_levels = setup.gradient_levels;
  if (owns.gradients_sharded && (second.Size() > 0 || setup.gradient_levels > 1)) {
    throw RunError("sharding: a second gradient or copies of gradients, which are sharded",
                   "This is a bug in Trireme.");
  }
  std::vector<Part> cut = CutPieces(list, dtype, setup);
  std::reverse(cut.begin(), cut.end());
  for (const Part& range : cut) {
    kernels::Piece piece{range, range, range.begin, range.begin, range.begin};
    Share(list, setup, piece);
    if (!none) {
      piece.value = owns.values_sharded ? owns.values : piece.own.begin;
      piece.gradient = owns.gradients_sharded ? owns.gradients : range.begin;
      piece.moment = owns.moments;
    }
    // Each piece begins on a line, as even cuts make it by themselves.
    const std::int64_t stored =
        piece.counts.empty() ? piece.own.Size() : CeilDivide(piece.own.Size(), kCut) * kCut;
    owns.values += stored;
    owns.gradients += stored;
    owns.moments += stored;
    owns.pieces.push_back(std::move(piece));
  }
  if (none) owns.moments = list.Size();
  if (!owns.values_sharded) owns.values = list.Size();
  if (!owns.gradients_sharded) owns.gradients = list.GradientSize();
  // Each copy begins where products want it.
  if (owns.gradient_levels > 1) owns.gradients = CeilDivide(owns.gradients, kCut) * kCut;
  if (second.Size() > 0) {
    // Cut as its table is, whose unit may end in up to a line of padding.
    kernels::Piece piece{second, second, 0, second.begin, 0};
    Share(list, setup, piece);
    owns.pieces.push_back(std::move(piece));
  }
  return owns;
}

void CheckTransfers(const kernels::ParameterList& list, const kernels::Ownership& owns) {
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();
  for (const kernels::Piece& piece : owns.pieces) {
    if (piece.range.Size() <= kMost) continue;
    for (const kernels::Unit& unit : list.Units()) {
      if (unit.range.begin < piece.range.begin || unit.range.Size() == 0) continue;
      throw InputError(
          fmt::format("grid.sharding: {} has {} elements on a rank, and one transfer ends at {}",
                      unit.name, unit.range.Size(), kMost),
          "What helps: more ranks along grid.tensor, or grid.sharding = none.");
    }
  }
}

// UnitBuffers: sizes and users of the buffers; UnitPieces: the pieces of units.

UnitBuffers::UnitBuffers(const kernels::Registry& registry, Dtype dtype, device::Kind where,
                         int block_buffers) {
  const auto size = static_cast<std::int64_t>(SizeOf(dtype));
  const auto& units = registry.Units();
  std::int64_t largest = 0;
  int blocks = 0;
  for (const kernels::Unit& unit : units) {
    if (!unit.block || unit.range.Size() == 0) continue;
    largest = std::max(largest, unit.range.Size() * size);
    ++blocks;
  }
  block_places_ = blocks > 0 ? std::min(block_buffers, blocks + 1) : 0;
  for (int i = 0; i < block_places_; ++i)
    places_.push_back({0, device::AllocateZeroed(largest, where)});
  own_.assign(units.size(), kNone);
  for (std::size_t i = 0; i < units.size(); ++i) {
    if (units[i].block || units[i].range.Size() == 0) continue;
    own_[i] = static_cast<int>(places_.size());
    places_.push_back({0, device::AllocateZeroed(units[i].range.Size() * size, where)});
  }
}

std::int64_t UnitBuffers::Bytes() const {
  std::int64_t bytes = 0;
  for (const Place& place : places_) bytes += device::BytesOf(place.memory);
  return bytes;
}

int UnitBuffers::Take(int unit) {
  const int own = own_[static_cast<std::size_t>(unit)];
  const int begin = own == kNone ? 0 : own;
  const int end = own == kNone ? block_places_ : own + 1;
  for (int i = begin; i < end; ++i) {
    if (places_[static_cast<std::size_t>(i)].users > 0) continue;
    Share(i);
    return i;
  }
  return kNone;
}

void UnitBuffers::Share(int buffer) { ++places_[static_cast<std::size_t>(buffer)].users; }

void UnitBuffers::Give(int buffer) { --places_[static_cast<std::size_t>(buffer)].users; }

UnitPieces::UnitPieces(const kernels::Registry& registry) : registry_(&registry) {
  const auto& pieces = registry.Owns().pieces;
  std::size_t next = 0;
  for (const kernels::Unit& unit : registry.Units()) {
    const bool held = unit.range.Size() > 0;
    if (held && (next == pieces.size() || pieces[next].range.begin != unit.range.begin)) {
      throw RunError("sharding: " + unit.name + " is no piece of its own",
                     "This is a bug in Trireme.");
    }
    numbers_.push_back(held ? static_cast<int>(next++) : -1);
  }
}

// UnitGathers: the queue of announced uses, and their gathers under way.

namespace {
constexpr const char* kBug = "This is a bug in Trireme.";
}

UnitGathers::UnitGathers(const comm::Collectives& shard, kernels::Registry& registry,
                         const device::Stream& stream, const ShardSetup& setup)
    : shard_(shard.Carrying(comm::Payload::kParameters)),
      registry_(&registry),
      stream_(stream),
      prefetch_(setup.overlap ? setup.prefetch : 0),
      buffers_(registry, registry.Type(), stream.Where(), setup.prefetch + 1),
      units_(registry) {}

void UnitGathers::Announce(const std::vector<int>& uses) {
  const bool used = next_ == announced_.size();
  if (!used || !in_use_.empty()) {
    const Gather& left = used ? in_use_.back() : announced_[next_];
    throw RunError(fmt::format("sharding: new tasks begin, and {} {}", units_.NameOf(left.unit),
                               used ? "is still in use" : "was announced and never used"),
                   kBug);
  }
  announced_.clear();
  next_ = 0;
  for (const int unit : uses) {
    if (units_.Held(unit)) announced_.push_back({unit, UnitBuffers::kNone, {}});
  }
  StartAhead();
}

void UnitGathers::Start(Gather& gather) {
  const kernels::Piece& piece = units_.PieceOf(gather.unit);
  const Dtype dtype = registry_->Type();
  gather.request = shard_.StartAllGather(dtype, ElementAt(registry_->Values(), dtype, piece.value),
                                         buffers_.At(gather.buffer), OwnCounts(piece));
}

void UnitGathers::Wait(Gather& gather) {
  const double start = Seconds();
  gather.request.Wait();
  seconds_waited_ += Seconds() - start;
}

// Starts as many gathers as may be ahead, in order: if one finds no buffer, later ones wait too.
void UnitGathers::StartAhead() {
  const std::size_t most = std::min(static_cast<std::size_t>(prefetch_), announced_.size() - next_);
  while (started_ < most) {
    Gather& gather = announced_[next_ + started_];
    gather.buffer = buffers_.Take(gather.unit);
    if (gather.buffer == UnitBuffers::kNone) return;
    Start(gather);
    ++started_;
  }
}

void UnitGathers::CheckNext(int unit) const {
  const bool used = next_ == announced_.size();
  if (!used && announced_[next_].unit == unit) return;
  throw RunError(fmt::format("sharding: {} is used where {} was announced", units_.NameOf(unit),
                             used ? "nothing" : units_.NameOf(announced_[next_].unit)),
                 kBug);
}

int UnitGathers::BufferNow(int unit) {
  const int buffer = buffers_.Take(unit);
  if (buffer != UnitBuffers::kNone) return buffer;
  // Used twice at once: nobody reads it before this call returns, with the same values again.
  for (const Gather& other : in_use_) {
    if (other.unit != unit) continue;
    buffers_.Share(other.buffer);
    return other.buffer;
  }
  throw RunError(fmt::format("sharding: no memory for {} while {} is in use", units_.NameOf(unit),
                             in_use_.empty() ? "nothing" : units_.NameOf(in_use_.back().unit)),
                 kBug);
}

void UnitGathers::Use(int unit) {
  if (!units_.Held(unit)) return;
  CheckNext(unit);
  const bool ahead = started_ > 0;
  if (!ahead) announced_[next_].buffer = BufferNow(unit);
  Gather gather = std::move(announced_[next_++]);
  ++count_;
  if (ahead) {
    --started_;
    if (gather.request.Test()) ++ready_;
  } else {
    Start(gather);
  }
  Wait(gather);
  registry_->BindValues(unit, buffers_.At(gather.buffer));
  in_use_.push_back(std::move(gather));
  StartAhead();
}

void UnitGathers::Done(int unit) {
  if (!units_.Held(unit)) return;
  const auto innermost = [&] {
    return std::find_if(in_use_.rbegin(), in_use_.rend(),
                        [&](const Gather& gather) { return gather.unit == unit; });
  };
  auto last = innermost();
  if (last == in_use_.rend()) {
    throw RunError(fmt::format("sharding: {} is done with and was not in use", units_.NameOf(unit)),
                   kBug);
  }
  buffers_.Give(last->buffer);
  in_use_.erase(std::next(last).base());
  last = innermost();
  registry_->BindValues(unit, last == in_use_.rend() ? nullptr : buffers_.At(last->buffer));
  StartAhead();
}

void UnitGathers::Progress() {
  for (std::size_t i = 0; i < started_; ++i) announced_[next_ + i].request.Test();
}

// UnitScatters: buffers that units use in turn, and sums in the order of the starts.

namespace {
constexpr const char* kShardingScattersBug = "This is a bug in Trireme.";
// One is added up while the other one's scatter is on its way.
constexpr int kBlockBuffers = 2;
}  // namespace

UnitScatters::UnitScatters(const comm::Collectives& shard, kernels::Registry& registry,
                           const device::Stream& stream, const ShardSetup& setup,
                           SharedGradients* shared)
    : shard_(shard.Carrying(comm::Payload::kGradients)),
      registry_(&registry),
      stream_(stream),
      shared_(shared),
      overlap_(setup.overlap),
      buffers_(registry, registry.SumType(), stream.Where(), kBlockBuffers),
      units_(registry),
      open_(registry.Units().size(), UnitBuffers::kNone) {
  // Room for all: the number in flight at once depends on the speed of other ranks.
  running_.reserve(registry.Units().size());
}

void UnitScatters::BeginStep() {
  not_finite_.clear();
  registry_->ZeroGradients();
}

void UnitScatters::Begin(int unit) {
  int& buffer = open_[static_cast<std::size_t>(unit)];
  if (!units_.Held(unit) || buffer != UnitBuffers::kNone) return;
  buffer = buffers_.Take(unit);
  while (buffer == UnitBuffers::kNone) {
    if (running_.empty()) {
      throw RunError(fmt::format("sharding: no memory for the gradients of {}: those of other "
                                 "blocks were begun and not ended",
                                 units_.NameOf(unit)),
                     kShardingScattersBug);
    }
    AddFront();
    buffer = buffers_.Take(unit);
  }
  const std::int64_t elements = units_.PieceOf(unit).range.Size();
  device::SetZero(stream_, buffers_.At(buffer),
                  elements * static_cast<std::int64_t>(SizeOf(registry_->SumType())));
  registry_->BindGradients(unit, buffers_.At(buffer));
}

void UnitScatters::End(int unit) {
  if (!units_.Held(unit)) return;
  Scatter scatter{
      unit, std::exchange(open_[static_cast<std::size_t>(unit)], UnitBuffers::kNone), {}};
  if (scatter.buffer == UnitBuffers::kNone) {
    throw RunError(
        fmt::format("sharding: gradients of {} are ended and were not begun", units_.NameOf(unit)),
        kShardingScattersBug);
  }
  const kernels::Piece& piece = units_.PieceOf(unit);
  void* gradients = buffers_.At(scatter.buffer);
  registry_->TakeEarly(unit, [&](void* from, void* to, std::int64_t count) {
    const Dtype dtype = registry_->SumType();
    kernels::Accumulate(stream_, dtype, count, from, to);
    device::SetZero(stream_, from, count * static_cast<std::int64_t>(SizeOf(dtype)));
  });
  if (not_finite_.empty()) {
    not_finite_ = FirstNotFinite(stream_, *registry_, piece.range, gradients);
  }
  if (shared_ != nullptr) {
    shared_->SumPiece(units_.Number(unit));
  }
  // MPI holds copies of its own: of one unit at a time.
  while (!stream_.OnGpu() && !running_.empty()) AddFront();
  scatter.request =
      shard_.StartReduceScatterInPlace(registry_->SumType(), gradients, OwnCounts(piece));
  registry_->BindGradients(unit, nullptr);
  running_.push_back(std::move(scatter));
  if (!overlap_) AddFront();
}

std::int64_t UnitScatters::LibraryBytes() const {
  if (stream_.OnGpu()) return 0;
  std::int64_t most = 0;
  for (int unit = 0; unit < static_cast<int>(open_.size()); ++unit) {
    if (units_.Held(unit)) most = std::max(most, units_.PieceOf(unit).range.Size());
  }
  return most * static_cast<std::int64_t>(SizeOf(registry_->SumType())) *
         ScatterCopies(shard_.Size());
}

void UnitScatters::AddFront() {
  Scatter& scatter = running_.front();
  const double start = Seconds();
  scatter.request.Wait();
  seconds_waited_ += Seconds() - start;
  const kernels::Piece& piece = units_.PieceOf(scatter.unit);
  const Dtype dtype = registry_->SumType();
  kernels::Accumulate(stream_, dtype, piece.own.Size(), buffers_.At(scatter.buffer),
                      ElementAt(registry_->Gradients(), dtype, piece.gradient));
  buffers_.Give(scatter.buffer);
  running_.erase(running_.begin());
}

void UnitScatters::Progress() {
  while (!running_.empty() && running_.front().request.Test()) AddFront();
  for (Scatter& scatter : running_) scatter.request.Test();
}

void UnitScatters::Finish() {
  const auto open = std::find_if(open_.begin(), open_.end(),
                                 [](int buffer) { return buffer != UnitBuffers::kNone; });
  if (open != open_.end()) {
    throw RunError(fmt::format("sharding: gradients of {} were begun and not ended",
                               units_.NameOf(static_cast<int>(open - open_.begin()))),
                   kShardingScattersBug);
  }
  while (!running_.empty()) AddFront();
}

}  // namespace trireme::parallel
