// StagedBatches: packs batches, copies them on the input queue, checks the order of its calls.
#include "trireme/model/staged_batches.hpp"

#include <algorithm>
#include <cstring>

#include "trireme/base/error.hpp"
#include "trireme/base/partition.hpp"

namespace trireme::model {

namespace {

constexpr std::int64_t kAlignment = 128;  // bytes; each array begins at a multiple
constexpr const char* kBug = "This is a bug in Trireme.";

std::int64_t PaddedBytes(std::int64_t bytes) { return CeilDivide(bytes, kAlignment) * kAlignment; }

// The arrays of an entry, in the order in which they are packed.
enum Array {
  kInputs,
  kTargets,
  kOrdinals,
  kBegins,
  kKeyLengths,
  kSources,
  kSourceLengths,
  kArrays
};
std::array<std::span<const std::byte>, kArrays> ArraysOf(const data::Entry& batch) {
  const auto bytes = [](const auto& values) { return std::as_bytes(std::span(values)); };
  return {bytes(batch.inputs),        bytes(batch.targets),        bytes(batch.ordinals),
          bytes(batch.begins),        bytes(batch.target_lengths), bytes(batch.sources),
          bytes(batch.source_lengths)};
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
  places_.resize(entries);
  next_places_.resize(entries);
}

std::int64_t StagedBatches::Bytes() const {
  return device::BytesOf(arriving_) + device::BytesOf(current_);
}

std::int64_t StagedBatches::EachBytes() const {
  const std::int64_t all = limits_.sequences * limits_.length;
  const std::int64_t tokens = limits_.tokens > 0 ? std::min(limits_.tokens, all) : all;
  const auto bytes = [](std::int64_t count, std::size_t each) {
    return PaddedBytes(count * static_cast<std::int64_t>(each));
  };
  const std::int64_t of_tokens = bytes(tokens, sizeof(std::int32_t));
  std::int64_t entry = (limits_.begins ? 3 : 2) * of_tokens;
  entry += bytes(limits_.sequences, sizeof(std::uint64_t));  // ordinals
  if (limits_.pairs) entry += of_tokens + 2 * bytes(limits_.sequences, sizeof(std::int32_t));
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
  // Entries that continue texts come without the source texts.
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
    if (batch.sequences == 0) continue;  // its arrays may still hold an older batch
    const auto arrays = ArraysOf(batch);
    for (std::size_t k = 0; k < kArrays; ++k) {
      at[k] = bytes_;
      if (k != kBegins) bytes_ += PaddedBytes(std::ssize(arrays[k]));
      if (k == kBegins && limits_.begins) bytes_ += PaddedBytes(std::ssize(arrays[kInputs]));
    }
  }
  if (bytes_ > Bytes() / 2) throw RunError("larger batches than a model was planned for", kBug);
  if (bytes_ == 0) return;
  arrived_.Await();  // the previous copy may still read `packed_`
  char* const packed = static_cast<char*>(packed_.get());
  for (std::size_t i = 0; i < batches.size(); ++i) {
    if (batches[i].sequences == 0) continue;
    const auto arrays = ArraysOf(batches[i]);
    const Places& at = next_places_[i];
    // CUDA graphs always read begins: 0 in entries without, where each window is one document.
    if (limits_.begins) std::memset(packed + at[kBegins], 0, arrays[kInputs].size());
    for (std::size_t k = 0; k < kArrays; ++k) {
      if (!arrays[k].empty()) std::memcpy(packed + at[k], arrays[k].data(), arrays[k].size());
    }
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
  const auto* const base = static_cast<const char*>(current_.get());
  const auto arrays = ArraysOf(here_[entry]);
  const bool on_gpu = stream_.OnGpu(), begins = on_gpu ? limits_.begins : !arrays[kBegins].empty();
  const auto at = [&](Array k, bool there = true) -> const void* {
    if (!there) return nullptr;
    return on_gpu ? static_cast<const void*>(base + places_[entry][k]) : arrays[k].data();
  };
  const auto tokens = [&](Array k, bool there = true) {
    return static_cast<const std::int32_t*>(at(k, there));
  };
  return {tokens(kInputs),
          tokens(kTargets),
          static_cast<const std::uint64_t*>(at(kOrdinals)),
          tokens(kBegins, begins),
          tokens(kKeyLengths, limits_.pairs),
          tokens(kSources, limits_.pairs),
          tokens(kSourceLengths, limits_.pairs)};
}

}  // namespace trireme::model
