// UnitScatters: buffers that units use in turn, and sums in the order of the starts.
#include "sharding_scatters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "library_memory.hpp"
#include "not_finite.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/update.hpp"
#include "trireme/parallel/sharding_cut.hpp"

namespace trireme::parallel {

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
