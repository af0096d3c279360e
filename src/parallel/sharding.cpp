// Sharding: which rank owns which elements, and the transfers of units whose state is sharded.
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

namespace {

constexpr int kNone = -1;  // index: no buffer, no piece

// Throws RunError for a call that breaks the rules of ShardedUnits.
[[noreturn]] void ThrowBug(const std::string& what) {
  throw RunError("sharding: " + what, "This is a bug in Trireme.");
}

void Wait(comm::Request& request, double& seconds_waited) {
  const double start = Seconds();
  request.Wait();
  seconds_waited += Seconds() - start;
}

// PlanOwnership: the pieces of the flat range, the owned part of each, and where it is stored.

using comm::Sharding;

// Most elements of a bucket: MPI counts are ints. Larger parameters are cut.
constexpr std::int64_t kMostElements = std::int64_t{1} << 28;

// Buckets from the end, in the order in which the backward pass finishes their gradients.
std::vector<Part> Buckets(const kernels::ParameterList& list, std::int64_t bucket_elements) {
  std::vector<Part> buckets;
  std::int64_t end = list.Size();
  const auto& parameters = list.Parameters();
  for (std::size_t i = parameters.size(); i-- > 0;) {
    // No gradient becomes ready at a parameter that this rank does not hold: a bucket cut there
    // would become ready no earlier than the next one.
    if (i > 0 && !parameters[i].Held()) continue;
    const std::int64_t begin = i == 0 ? 0 : parameters[i].offset;
    while (end - begin > kMostElements) {
      buckets.push_back({end - kMostElements, end});
      end -= kMostElements;
    }
    if (end - begin >= bucket_elements || i == 0) {
      if (end > begin) buckets.push_back({begin, end});
      end = begin;
    }
  }
  return buckets;
}

// What decides how a unit is grouped with others.
struct UnitTraits {
  std::int64_t elements = 0;  // whole unit / tensor ranks, the same on every rank
  bool alone = false;         // has a table that has a second gradient or is also on another stage
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

// Groups of whole units, from the end, each of at least bucket_elements (0: one unit per group).
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

std::vector<Part> CutPieces(const kernels::ParameterList& list, Dtype dtype,
                            const ShardSetup& setup) {
  const std::int64_t elements = CeilDivide(setup.bucket_bytes, BytesOf(dtype, 1));
  if (setup.sharding == Sharding::kNone) return Buckets(list, elements);
  const bool grouped = setup.sharding == Sharding::kOptimizer;
  return UnitGroups(list, grouped ? elements : 0, setup.tensor_ranks);
}

// Cuts a piece between parameters: each even cut moves to the nearest begin of a parameter, or end
// of the piece. Returns the elements of each rank. Distances count the elements of whole tensors,
// so all ranks of a tensor group, which may hold slices of different lengths, cut alike.
std::vector<std::int64_t> CutBetweenParameters(const kernels::ParameterList& list,
                                               const Part& range, int ranks) {
  struct Cut {
    std::int64_t local, global;  // elements before it: flat offset, and of whole tensors
  };
  std::vector<Cut> cuts;
  std::int64_t global = 0;
  for (const kernels::Parameter& parameter : list.Parameters()) {
    if (!parameter.Held() || parameter.offset < range.begin || parameter.offset >= range.end) {
      continue;
    }
    cuts.push_back({cuts.empty() ? range.begin : parameter.offset, global});
    global += kernels::ElementCount(parameter.shape);
  }
  if (cuts.empty()) {  // the second gradient of a table, which is cut like the table
    cuts.push_back({range.begin, 0});
    global = kernels::ElementCount(
        list.Parameters().at(static_cast<std::size_t>(list.SecondOf())).shape);
  }
  cuts.push_back({range.end, global});
  std::vector<std::int64_t> counts;
  std::int64_t begin = range.begin;
  for (int rank = 1; rank <= ranks; ++rank) {
    const std::int64_t even = PartOf(global, rank - 1, ranks).end;
    const Cut& end =
        *std::min_element(cuts.begin(), cuts.end(), [even](const Cut& a, const Cut& b) {
          return std::abs(a.global - even) < std::abs(b.global - even);
        });
    counts.push_back(end.local - begin);
    begin = end.local;
  }
  return counts;
}

// Sets piece.own, this rank's part of piece.range; with whole_parameters, all ranks' counts too.
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

// Memory for whole units of a sharded model. Blocks share some buffers of the largest block's size;
// every other unit has a buffer of its own.
class UnitBuffers {
 public:
  // block_buffers: buffers for all blocks; at most the number of blocks + 1 are allocated.
  UnitBuffers(const kernels::Registry& registry, Dtype dtype, device::Kind where,
              std::int64_t block_buffers) {
    std::int64_t largest = 0, blocks = 0;
    for (const kernels::Unit& unit : registry.Units()) {
      if (!unit.block || unit.range.Size() == 0) continue;
      largest = std::max(largest, unit.range.Size());
      ++blocks;
    }
    const auto add = [&](std::int64_t elements) {
      places_.push_back({0, device::AllocateZeroed(BytesOf(dtype, elements), where)});
    };
    for (int i = 0; blocks > 0 && i < std::min(block_buffers, blocks + 1); ++i) add(largest);
    const Part shared{0, std::ssize(places_)};
    for (const kernels::Unit& unit : registry.Units()) {
      const std::int64_t own = std::ssize(places_);
      if (!unit.block && unit.range.Size() > 0) add(unit.range.Size());
      choices_.push_back(unit.block ? shared : Part{own, std::ssize(places_)});
    }
  }

  std::int64_t Bytes() const {
    std::int64_t bytes = 0;
    for (const Place& place : places_) bytes += device::BytesOf(place.memory);
    return bytes;
  }
  // Takes a free buffer for the unit and returns its index; kNone: all are taken.
  int Take(int unit) {
    const Part& choice = choices_[static_cast<std::size_t>(unit)];
    for (auto i = static_cast<int>(choice.begin); i < choice.end; ++i) {
      if (places_[static_cast<std::size_t>(i)].users > 0) continue;
      Share(i);
      return i;
    }
    return kNone;
  }
  void Share(int buffer) { ++places_[static_cast<std::size_t>(buffer)].users; }  // adds a user
  void Give(int buffer) { --places_[static_cast<std::size_t>(buffer)].users; }   // removes a user
  void* At(int buffer) const { return places_[static_cast<std::size_t>(buffer)].memory.get(); }

 private:
  struct Place {
    int users = 0;
    device::Buffer memory;
  };
  std::vector<Place> places_;  // the blocks' buffers come first
  std::vector<Part> choices_;  // [units]: range of places_ that the unit may take
};

// The piece of each unit, in a registry in which every unit is one piece.
class UnitPieces {
 public:
  // `registry` must outlive this.
  explicit UnitPieces(const kernels::Registry& registry) : registry_(&registry) {
    const auto& pieces = registry.Owns().pieces;
    std::size_t next = 0;
    for (const kernels::Unit& unit : registry.Units()) {
      const bool held = unit.range.Size() > 0;
      if (held && (next == pieces.size() || pieces[next].range.begin != unit.range.begin)) {
        ThrowBug(unit.name + " is not a piece of its own");
      }
      numbers_.push_back(held ? static_cast<int>(next++) : kNone);
    }
  }
  bool Held(int unit) const { return Number(unit) != kNone; }
  int Number(int unit) const { return numbers_[static_cast<std::size_t>(unit)]; }  // piece's index
  const kernels::Piece& PieceOf(int unit) const {                                  // if Held(unit)
    return registry_->Owns().pieces[static_cast<std::size_t>(Number(unit))];
  }
  const std::string& NameOf(int unit) const {
    return registry_->Units()[static_cast<std::size_t>(unit)].name;
  }

 private:
  const kernels::Registry* registry_;
  std::vector<int> numbers_;  // [units]; kNone: this rank does not hold the unit
};

// Gathers the values of sharded units before they are used. Every announced use is one gather.
// Gathers start in the announced order, in Announce, Use and Done only, whatever has arrived: so
// all ranks start them in the same order.
class UnitGathers {
 public:
  UnitGathers(const comm::Collectives& shard, kernels::Registry& registry,
              const device::Stream& stream, const ShardSetup& setup)
      : shard_(shard.Carrying(comm::Payload::kParameters)),
        registry_(&registry),
        prefetch_(setup.overlap ? setup.prefetch : 0),
        buffers_(registry, registry.Type(), stream.Where(), setup.prefetch + 1),
        units_(registry) {}
  std::int64_t Bytes() const { return buffers_.Bytes(); }

  void Announce(const std::vector<int>& uses) {
    const bool used = next_ == announced_.size();
    if (!used || !in_use_.empty()) {
      const Gather& left = used ? in_use_.back() : announced_[next_];
      ThrowBug(fmt::format("new tasks begin, and {} {}", units_.NameOf(left.unit),
                           used ? "is still in use" : "was announced and never used"));
    }
    announced_.clear();
    next_ = 0;
    for (const int unit : uses) {
      if (units_.Held(unit)) announced_.push_back({unit, kNone, {}});
    }
    StartAhead();
  }

  void Use(int unit) {
    if (!units_.Held(unit)) return;
    const bool used = next_ == announced_.size();
    if (used || announced_[next_].unit != unit) {
      ThrowBug(fmt::format("{} is used where {} was announced", units_.NameOf(unit),
                           used ? "nothing" : units_.NameOf(announced_[next_].unit)));
    }
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
    Wait(gather.request, seconds_waited_);
    registry_->BindValues(unit, buffers_.At(gather.buffer));
    in_use_.push_back(std::move(gather));
    StartAhead();
  }

  void Done(int unit) {
    if (!units_.Held(unit)) return;
    const auto innermost = [&] {
      return std::find_if(in_use_.rbegin(), in_use_.rend(),
                          [&](const Gather& gather) { return gather.unit == unit; });
    };
    auto last = innermost();
    if (last == in_use_.rend()) {
      ThrowBug(fmt::format("{} is done with and was not in use", units_.NameOf(unit)));
    }
    buffers_.Give(last->buffer);
    in_use_.erase(std::next(last).base());
    last = innermost();
    registry_->BindValues(unit, last == in_use_.rend() ? nullptr : buffers_.At(last->buffer));
    StartAhead();
  }

  void Progress() {
    for (std::size_t i = 0; i < started_; ++i) announced_[next_ + i].request.Test();
  }

  std::int64_t Count() const { return count_; }
  std::int64_t Ready() const { return ready_; }
  double SecondsWaited() const { return seconds_waited_; }  // since construction

 private:
  struct Gather {
    int unit = 0;
    int buffer = kNone;  // kNone: not started
    comm::Request request;
  };

  void Start(Gather& gather) {
    const kernels::Piece& piece = units_.PieceOf(gather.unit);
    const Dtype dtype = registry_->Type();
    gather.request =
        shard_.StartAllGather(dtype, ElementAt(registry_->Values(), dtype, piece.value),
                              buffers_.At(gather.buffer), OwnCounts(piece));
  }

  // Starts up to prefetch_ gathers, in order: if one finds no buffer, later ones wait too.
  void StartAhead() {
    const std::size_t most =
        std::min(static_cast<std::size_t>(prefetch_), announced_.size() - next_);
    for (; started_ < most; ++started_) {
      Gather& gather = announced_[next_ + started_];
      gather.buffer = buffers_.Take(gather.unit);
      if (gather.buffer == kNone) return;
      Start(gather);
    }
  }

  // A buffer for the next use, whose gather has not started.
  int BufferNow(int unit) {
    const int buffer = buffers_.Take(unit);
    if (buffer != kNone) return buffer;
    // A nested use shares the buffer: it gathers the same values again, while no layer reads them.
    for (const Gather& other : in_use_) {
      if (other.unit != unit) continue;
      buffers_.Share(other.buffer);
      return other.buffer;
    }
    ThrowBug(fmt::format("no memory for {} while {} is in use", units_.NameOf(unit),
                         in_use_.empty() ? "nothing" : units_.NameOf(in_use_.back().unit)));
  }

  comm::Collectives shard_;
  kernels::Registry* registry_;
  int prefetch_ = 0;
  UnitBuffers buffers_;
  UnitPieces units_;
  std::vector<Gather> announced_;  // in the order of use
  std::size_t next_ = 0;           // the first that is not used yet
  std::size_t started_ = 0;        // gathers started from next_ on
  std::vector<Gather> in_use_;     // the innermost use last
  std::int64_t count_ = 0, ready_ = 0;
  double seconds_waited_ = 0;
};

// Gradients of sharded units: collected whole, then scattered to their owners. Every End is one
// reduce-scatter. Results are added to the owned gradients in the order of the starts, so that sums
// do not depend on which arrives first.
class UnitScatters {
 public:
  UnitScatters(const comm::Collectives& shard, kernels::Registry& registry,
               const device::Stream& stream, const ShardSetup& setup, SharedGradients* shared)
      : shard_(shard.Carrying(comm::Payload::kGradients)),
        registry_(&registry),
        stream_(stream),
        shared_(shared),
        overlap_(setup.overlap),
        buffers_(registry, registry.SumType(), stream.Where(), kBlockBuffers),
        units_(registry),
        open_(registry.Units().size(), kNone) {
    // Room for all units: how many are in flight depends on the speed of other ranks.
    running_.reserve(registry.Units().size());
  }
  std::int64_t Bytes() const { return buffers_.Bytes(); }

  std::int64_t LibraryBytes() const {
    if (stream_.OnGpu()) return 0;
    std::int64_t most = 0;
    for (int unit = 0; unit < static_cast<int>(open_.size()); ++unit) {
      if (units_.Held(unit)) most = std::max(most, units_.PieceOf(unit).range.Size());
    }
    return BytesOf(most) * ScatterCopies(shard_.Size());
  }

  void BeginStep() {
    not_finite_.clear();
    registry_->ZeroGradients();
  }

  void Begin(int unit) {
    int& buffer = open_[static_cast<std::size_t>(unit)];
    if (!units_.Held(unit) || buffer != kNone) return;
    for (buffer = buffers_.Take(unit); buffer == kNone; buffer = buffers_.Take(unit)) {
      if (running_.empty()) {
        ThrowBug(
            fmt::format("no memory for the gradients of {}: those of other blocks were begun and "
                        "not ended",
                        units_.NameOf(unit)));
      }
      AddFront();
    }
    device::SetZero(stream_, buffers_.At(buffer), BytesOf(units_.PieceOf(unit).range.Size()));
    registry_->BindGradients(unit, buffers_.At(buffer));
  }

  void End(int unit) {
    if (!units_.Held(unit)) return;
    Scatter scatter{unit, std::exchange(open_[static_cast<std::size_t>(unit)], kNone), {}};
    if (scatter.buffer == kNone) {
      ThrowBug(fmt::format("gradients of {} are ended and were not begun", units_.NameOf(unit)));
    }
    const kernels::Piece& piece = units_.PieceOf(unit);
    void* gradients = buffers_.At(scatter.buffer);
    registry_->TakeEarly(unit, [&](void* from, void* to, std::int64_t count) {
      kernels::Accumulate(stream_, registry_->SumType(), count, from, to);
      device::SetZero(stream_, from, BytesOf(count));
    });
    if (not_finite_.empty()) {
      not_finite_ = FirstNotFinite(stream_, *registry_, piece.range, gradients);
    }
    if (shared_ != nullptr) shared_->SumPiece(units_.Number(unit));
    // On CPUs MPI holds copies of what it sums: let it hold those of one unit at a time.
    while (!stream_.OnGpu() && !running_.empty()) AddFront();
    scatter.request =
        shard_.StartReduceScatterInPlace(registry_->SumType(), gradients, OwnCounts(piece));
    registry_->BindGradients(unit, nullptr);
    running_.push_back(std::move(scatter));
    if (!overlap_) AddFront();
  }

  void Progress() {
    while (!running_.empty() && running_.front().request.Test()) AddFront();
    for (Scatter& scatter : running_) scatter.request.Test();
  }

  void Finish() {
    const auto open = std::ranges::find_if(open_, [](int buffer) { return buffer != kNone; });
    if (open != open_.end()) {
      ThrowBug(fmt::format("gradients of {} were begun and not ended",
                           units_.NameOf(static_cast<int>(open - open_.begin()))));
    }
    while (!running_.empty()) AddFront();
  }

  const std::string& NotFinite() const { return not_finite_; }
  double SecondsWaited() const { return seconds_waited_; }  // since construction

 private:
  // One collects gradients while the other is being scattered.
  static constexpr int kBlockBuffers = 2;

  struct Scatter {
    int unit = 0;
    int buffer = kNone;
    comm::Request request;
  };

  // Waits for the oldest scatter and adds its result to the owned gradients.
  void AddFront() {
    Scatter& scatter = running_.front();
    Wait(scatter.request, seconds_waited_);
    const kernels::Piece& piece = units_.PieceOf(scatter.unit);
    const Dtype dtype = registry_->SumType();
    kernels::Accumulate(stream_, dtype, piece.own.Size(), buffers_.At(scatter.buffer),
                        ElementAt(registry_->Gradients(), dtype, piece.gradient));
    buffers_.Give(scatter.buffer);
    running_.erase(running_.begin());
  }

  std::int64_t BytesOf(std::int64_t elements) const {
    return trireme::BytesOf(registry_->SumType(), elements);
  }

  comm::Collectives shard_;
  kernels::Registry* registry_;
  device::Stream stream_;
  SharedGradients* shared_;
  bool overlap_ = true;
  UnitBuffers buffers_;
  UnitPieces units_;
  std::vector<int> open_;         // [units]: buffer between Begin and End, else kNone
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
    if (gather.range.begin < used.end && used.begin < gather.range.end)
      Wait(gather.request, seconds_waited_);
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
    if (pieces[i].range.begin < registry_->Size()) updated_.push_back(i);  // omits second gradients
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
    if (!overlap_) Wait(updates_.back().request, seconds_waited_);
  }
}

void ShardedUnits::FinishUpdated() {
  for (UpdateGather& gather : updates_) Wait(gather.request, seconds_waited_);
  updates_.clear();
}

// MPI writes to the values until the last gather is complete. During an exception, another rank may
// be gone and its gather never complete: the wait then ends after kPatience.
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
    // The exception in flight has already reported a failure.
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

kernels::Ownership PlanOwnership(const kernels::ParameterList& list, Dtype dtype,
                                 const ShardSetup& setup) {
  const bool none = setup.sharding == Sharding::kNone;
  const Part second = list.SecondRange();
  kernels::Ownership owns;
  owns.values_sharded = setup.sharding == Sharding::kParameters;
  owns.gradients_sharded = setup.sharding >= Sharding::kGradients && !setup.canonical;
  owns.gradient_levels = setup.gradient_levels;
  if (owns.gradients_sharded && (second.Size() > 0 || setup.gradient_levels > 1)) {
    ThrowBug("a second gradient or copies of gradients, which are sharded");
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
    // Each piece's storage begins on a cache line. Even cuts ensure that by themselves.
    const std::int64_t stored =
        piece.counts.empty() ? piece.own.Size() : RoundUp(piece.own.Size(), kCut);
    owns.values += stored;
    owns.gradients += stored;
    owns.moments += stored;
    owns.pieces.push_back(std::move(piece));
  }
  if (none) owns.moments = list.Size();
  if (!owns.values_sharded) owns.values = list.Size();
  if (!owns.gradients_sharded) owns.gradients = list.GradientSize();
  // Each level of gradients begins on a cache line, as matrix products need.
  if (owns.gradient_levels > 1) owns.gradients = RoundUp(owns.gradients, kCut);
  if (second.Size() > 0) {
    // The second gradient is cut like its table, whose piece may have some padding at its end.
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

}  // namespace trireme::parallel
