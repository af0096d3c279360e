#include "trireme/model/staged_batches.hpp"

#include <cstring>

#include "trireme/base/partition.hpp"

namespace trireme::model {

namespace {

constexpr std::int64_t kAlignment = 128;  // bytes, of each array

template <typename T>
std::int64_t Padded(const std::vector<T>& values) {
  const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(T));
  return CeilDivide(bytes, kAlignment) * kAlignment;
}

}  // namespace

StagedBatches::StagedBatches(const device::Stream& stream) : stream_(stream) {
  if (!stream.OnGpu()) return;
  arrived_ = device::Event(stream);
  taken_ = device::Event(stream);
}

void StagedBatches::Reserve(std::int64_t bytes) {
  if (bytes <= capacity_) return;
  device::Synchronise(stream_);  // what is read now
  arrived_.Await();
  capacity_ = bytes;
  ++memory_version_;
  packed_ = device::AllocatePinned(bytes, stream_.Where());
  arriving_ = device::AllocateZeroed(bytes, stream_.Where());
  current_ = device::AllocateZeroed(bytes, stream_.Where());
}

void StagedBatches::Prepare(std::span<const data::MicroBatch> batches) {
  prepared_ = batches;
  if (!stream_.OnGpu()) return;
  next_places_.clear();
  bytes_ = 0;
  for (const data::MicroBatch& batch : batches) {
    Places& at = next_places_.emplace_back();
    if (batch.sequences == 0) continue;  // its arrays may be an older batch's
    at.inputs = bytes_;
    at.targets = at.inputs + Padded(batch.inputs);
    at.ordinals = at.targets + Padded(batch.targets);
    bytes_ = at.ordinals + Padded(batch.ordinals);
  }
  Reserve(bytes_);
  arrived_.Await();  // the copy of the last ones, which reads `packed_`
  const auto pack = [&](std::int64_t at, const auto& values) {
    if (values.empty()) return;
    std::memcpy(static_cast<char*>(packed_.get()) + at, values.data(),
                values.size() * sizeof values[0]);
  };
  for (std::size_t i = 0; i < batches.size(); ++i) {
    if (batches[i].sequences == 0) continue;
    pack(next_places_[i].inputs, batches[i].inputs);
    pack(next_places_[i].targets, batches[i].targets);
    pack(next_places_[i].ordinals, batches[i].ordinals);
  }
  taken_.MakeWait(stream_.gpu->input_queue);
  device::StartInput(stream_, packed_.get(), arriving_.get(), bytes_);
  arrived_.Record(stream_.gpu->input_queue);
}

void StagedBatches::Use(std::span<const data::MicroBatch> batches) {
  const bool ahead = prepared_.data() == batches.data() && prepared_.size() == batches.size();
  if (!ahead) Prepare(batches);
  prepared_ = {};  // used up: the same memory may hold another batch next time
  used_ = batches;
  if (!stream_.OnGpu()) return;
  places_.swap(next_places_);
  arrived_.MakeWait(stream_.gpu->queue);
  device::CopyWithin(stream_, arriving_.get(), current_.get(), bytes_);
  taken_.Record(stream_.gpu->queue);
}

StagedBatches::Entry StagedBatches::Of(const data::MicroBatch& batch) const {
  if (!stream_.OnGpu()) {
    return {batch.inputs.data(), batch.targets.data(), batch.ordinals.data()};
  }
  const Places& at = places_[static_cast<std::size_t>(&batch - used_.data())];
  const auto* base = static_cast<const char*>(current_.get());
  return {reinterpret_cast<const std::int32_t*>(base + at.inputs),
          reinterpret_cast<const std::int32_t*>(base + at.targets),
          reinterpret_cast<const std::uint64_t*>(base + at.ordinals)};
}

}  // namespace trireme::model
