// ShardedUnits: the choice of transfers by what is sharded, and the gather of updated values.
#include "trireme/parallel/sharding.hpp"

#include "sharding_gathers.hpp"
#include "sharding_scatters.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/parallel/sharding_cut.hpp"

namespace trireme::parallel {

ShardedUnits::ShardedUnits() = default;
ShardedUnits::ShardedUnits(ShardedUnits&& other) noexcept = default;
ShardedUnits& ShardedUnits::operator=(ShardedUnits&& other) noexcept = default;
ShardedUnits::~ShardedUnits() = default;

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
}

void ShardedUnits::BeginStep() {
  if (scatters_) scatters_->BeginStep();
  waited_before_ = 0;
  waited_before_ = SecondsWaited();
}

void ShardedUnits::FinishGradients() {
  if (scatters_) scatters_->Finish();
}

void ShardedUnits::GatherUpdated() {
  if (!gathers_updated_) return;
  const Dtype dtype = registry_->Type();
  const double start = Seconds();
  updates_.clear();
  for (const kernels::Piece& piece : registry_->Owns().pieces) {
    if (piece.range.begin >= registry_->Size()) continue;  // a second gradient has no values
    updates_.push_back(shard_.StartAllGatherInPlace(
        dtype, ElementAt(registry_->Values(), dtype, piece.range.begin), OwnCounts(piece)));
    if (!overlap_) updates_.back().Wait();
  }
  for (comm::Request& request : updates_) request.Wait(start);
  seconds_waited_ += Seconds() - start;
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

}  // namespace trireme::parallel
