// StagedBatches: packing, the copy on the input queue, and the order of its three stages.
#include "trireme/model/staged_batches.hpp"

#include <algorithm>
#include <cstring>

#include "trireme/base/error.hpp"
#include "trireme/base/partition.hpp"

namespace trireme::model {

namespace {

constexpr std::int64_t kAlignment = 128;  // bytes, of each array
constexpr const char* kBug = "This is a bug in Trireme.";

template <typename T>
std::int64_t PaddedBatch(std::int64_t count) {
  return CeilDivide(count * static_cast<std::int64_t>(sizeof(T)), kAlignment) * kAlignment;
}
template <typename T>
std::int64_t PaddedBatch(const std::vector<T>& values) {
  return PaddedBatch<T>(std::ssize(values));
}

}  // namespace

StagedBatches::StagedBatches(const device::Stream& stream, const Limits& limits)
    : stream_(stream), limits_(limits) {
  if (!stream.OnGpu()) return;
  arrived_ = device::Event(stream);
  read_ = device::Event(stream);
  const std::int64_t each = EachBytes();
  if (each == 0) return;
  packed_ = device::AllocatePinned(each, stream_.Where());
  arriving_ = device::AllocateZeroed(each, stream_.Where());
  current_ = device::AllocateZeroed(each, stream_.Where());
  const auto entries = static_cast<std::size_t>(limits_.entries);
  places_.reserve(entries);
  next_places_.reserve(entries);
}

std::int64_t StagedBatches::Bytes() const {
  return device::BytesOf(arriving_) + device::BytesOf(current_);
}

std::int64_t StagedBatches::EachBytes() const {
  const std::int64_t all = limits_.sequences * limits_.length;
  const std::int64_t tokens = limits_.tokens > 0 ? std::min(limits_.tokens, all) : all;
  std::int64_t entry = (limits_.begins ? 3 : 2) * PaddedBatch<std::int32_t>(tokens) +
                       PaddedBatch<std::uint64_t>(limits_.sequences);
  if (limits_.pairs) {
    entry += PaddedBatch<std::int32_t>(tokens) + 2 * PaddedBatch<std::int32_t>(limits_.sequences);
  }
  return limits_.entries * entry;
}

StagedBatches::Staged StagedBatches::Stage(std::span<const data::Entry> batches) {
  if (std::ssize(batches) > limits_.entries) {
    throw RunError("more batches at once than a model was planned for", kBug);
  }
  for (const data::Entry& batch : batches) {
    CheckBegins(batch);
    CheckPairs(batch);
  }
  staged_ = ++count_;
  if (stream_.OnGpu() && !stream_.Planned()) Pack(batches);
  return {batches, staged_};
}

void StagedBatches::CheckBegins(const data::Entry& batch) const {
  if (batch.sequences == 0 || batch.begins.empty()) return;
  if (!limits_.begins) throw RunError("documents in a batch of a model planned without", kBug);
  if (batch.begins.size() != batch.inputs.size()) {
    throw RunError("begins of documents for other positions than a batch has", kBug);
  }
}

void StagedBatches::CheckPairs(const data::Entry& batch) const {
  if (batch.sequences == 0 || (batch.source_length > 0) == limits_.pairs) return;
  // Texts that are being written go on without their source texts.
  if (limits_.pairs && limits_.begins && !batch.begins.empty()) return;
  throw RunError(limits_.pairs ? "single texts for a model that translates"
                               : "pairs of texts for a model of single ones",
                 kBug);
}

void StagedBatches::Pack(std::span<const data::Entry> batches) {
  next_places_.clear();
  bytes_ = 0;
  for (const data::Entry& batch : batches) {
    Places& at = next_places_.emplace_back();
    if (batch.sequences == 0) continue;  // arrays may be an older batch's
    at.inputs = bytes_;
    at.targets = at.inputs + PaddedBatch(batch.inputs);
    at.ordinals = at.targets + PaddedBatch(batch.targets);
    at.begins = at.ordinals + PaddedBatch(batch.ordinals);
    at.key_lengths = at.begins + (limits_.begins ? PaddedBatch(batch.inputs) : 0);
    at.sources = at.key_lengths + PaddedBatch(batch.target_lengths);
    at.source_lengths = at.sources + PaddedBatch(batch.sources);
    bytes_ = at.source_lengths + PaddedBatch(batch.source_lengths);
  }
  if (bytes_ > Bytes() / 2) throw RunError("larger batches than a model was planned for", kBug);
  if (bytes_ == 0) return;
  arrived_.Await();  // the copy before this one reads `packed_`
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
    pack(next_places_[i].key_lengths, batches[i].target_lengths);
    pack(next_places_[i].sources, batches[i].sources);
    pack(next_places_[i].source_lengths, batches[i].source_lengths);
    if (!limits_.begins) continue;
    // Graphs read begins of every batch: 0 for one without, whose windows are a document each.
    void* const begins = static_cast<char*>(packed_.get()) + next_places_[i].begins;
    std::memset(begins, 0, batches[i].inputs.size() * sizeof batches[i].begins[0]);
    pack(next_places_[i].begins, batches[i].begins);
  }
  read_.MakeWait(stream_.gpu->input_queue);
  device::StartInput(stream_, packed_.get(), arriving_.get(), bytes_);
  arrived_.Record(stream_.gpu->input_queue);
}

StagedBatches::Taken StagedBatches::Take(Staged staged) {
  if (staged.number_ == 0) throw RunError("staged batches were taken twice", kBug);
  if (staged.number_ != staged_) staged = Stage(staged.batches_);
  here_ = staged.batches_;
  staged_ = 0;
  taken_ = ++count_;
  if (stream_.OnGpu()) {
    places_.swap(next_places_);
    if (bytes_ > 0) {
      arrived_.MakeWait(stream_.gpu->queue);
      device::CopyWithin(stream_, arriving_.get(), current_.get(), bytes_);
      read_.Record(stream_.gpu->queue);
    }
  }
  return {here_, taken_};
}

std::span<const data::Entry> StagedBatches::Open(Taken taken) {
  if (taken.number_ == 0) throw RunError("taken batches were used twice", kBug);
  if (taken.number_ != taken_) throw RunError("batches are not in their place any more", kBug);
  return taken.batches_;
}

StagedBatches::Entry StagedBatches::At(std::size_t entry) const {
  if (!stream_.OnGpu()) {
    const data::Entry& batch = here_[entry];
    const auto of_pairs = [&](const std::vector<std::int32_t>& values) {
      return limits_.pairs ? values.data() : nullptr;
    };
    return {batch.inputs.data(),
            batch.targets.data(),
            batch.ordinals.data(),
            batch.begins.empty() ? nullptr : batch.begins.data(),
            of_pairs(batch.target_lengths),
            of_pairs(batch.sources),
            of_pairs(batch.source_lengths)};
  }
  const Places& at = places_[entry];
  const auto* base = static_cast<const char*>(current_.get());
  const auto tokens = [&](std::int64_t from, bool there) {
    return there ? reinterpret_cast<const std::int32_t*>(base + from) : nullptr;
  };
  return {tokens(at.inputs, true),
          tokens(at.targets, true),
          reinterpret_cast<const std::uint64_t*>(base + at.ordinals),
          tokens(at.begins, limits_.begins),
          tokens(at.key_lengths, limits_.pairs),
          tokens(at.sources, limits_.pairs),
          tokens(at.source_lengths, limits_.pairs)};
}

}  // namespace trireme::model
