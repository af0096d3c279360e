// KeyValueCache: one buffer for all layers of the rank.
#include "trireme/model/key_value_cache.hpp"

#include <algorithm>

#include "trireme/base/error.hpp"
#include "trireme/model/model.hpp"

namespace trireme::model {

// ThinWeights: one buffer for all layers of the rank.

ThinWeights::ThinWeights(const ModelPlan& plan, const StagePlan& local, const StageLayers& layers,
                         const device::Stream& stream) {
  if (!plan.thin_panels) return;
  for (const StageLayers::Chunk& chunk : layers.Chunks()) {
    // An encoder sees whole texts.
    for (const Block& block : std::span(chunk.blocks).subspan(chunk.encoders)) {
      block.AddThinWeights(weights_);
    }
  }
  if (local.Last()) weights_.push_back(layers.Head().Weight());
  const kernels::Registry& registry = layers.Parameters();
  begins_.assign(registry.Parameters().size(), -1);
  std::int64_t bytes = 0;
  for (const ThinWeight& weight : weights_) {
    begins_[static_cast<std::size_t>(weight.id)] = bytes;
    bytes += kernels::PanelBytes(weight.form, registry.Value(weight.id, weight.count));
  }
  if (bytes > 0) panels_ = device::AllocateZeroed(bytes, stream.Where());
}

void ThinWeights::Pack(const kernels::Registry& registry, const device::Stream& stream) {
  for (const ThinWeight& weight : weights_) {
    char* const to =
        static_cast<char*>(panels_.get()) + begins_[static_cast<std::size_t>(weight.id)];
    kernels::PackPanels(stream, weight.form, registry.Value(weight.id, weight.count), to);
  }
  packed_ = !weights_.empty();
}

const void* ThinWeights::PanelsOf(kernels::ParameterId id) const {
  if (!packed_ || begins_[static_cast<std::size_t>(id)] < 0) return nullptr;
  return static_cast<const char*>(panels_.get()) + begins_[static_cast<std::size_t>(id)];
}

KeyValueCache::KeyValueCache(const ModelPlan& plan, const StagePlan& local,
                             const StageLayers& layers, const device::Stream& stream)
    : stream_(stream),
      type_(plan.dtype),
      slots_(plan.cache_slots),
      positions_(plan.length),
      dim_(plan.options.dim),
      numbers_(plan.options.Translates() ? 3 : 2),
      layers_(static_cast<std::size_t>(plan.options.Blocks())) {
  if (slots_ == 0) return;
  const auto element = static_cast<std::int64_t>(SizeOf(type_));
  std::int64_t bytes = 0;
  for (std::size_t chunk = 0; chunk < local.chunks.size(); ++chunk) {
    const StageLayers::Chunk& held = layers.Chunks()[chunk];
    for (std::size_t i = held.encoders; i < held.blocks.size(); ++i) {
      const Block& block = held.blocks[i];
      const std::int64_t each = BufferBytes(
          slots_ * element * kernels::KeyValueElements(stream, block.CacheShape(), positions_));
      Layer& layer = layers_[static_cast<std::size_t>(local.chunks[chunk].begin) + i];
      layer = {&block, bytes};
      bytes += each;
      if (!block.Crosses()) continue;
      layer.source = bytes;
      bytes += each;
    }
  }
  if (bytes > 0) kept_ = device::AllocateZeroed(bytes, stream.Where());
  if (stream.OnGpu()) {
    const std::int64_t places = numbers_ * slots_ * static_cast<std::int64_t>(sizeof(std::int32_t));
    placed_ = device::AllocateZeroed(places, stream.Where());
    placed_on_host_ = device::AllocatePinned(places, stream.Where());
    copied_ = device::Event(stream);
  }
  if (!local.Last()) return;
  slice_ = layers.Head().Slice().Size();
  stride_ = slice_ + layers.Head().SpareRows();
  picked_ = device::AllocateZeroed(slots_ * dim_ * element, stream.Where());
  logits_ = device::AllocateZeroed(slots_ * stride_ * element, stream.Where());
  if (stream.OnGpu()) {
    logits_on_host_ = device::AllocatePinned(slots_ * stride_ * element, stream.Where());
  }
}

kernels::KeyValueCache KeyValueCache::At(std::int64_t begin) const {
  return {static_cast<char*>(kept_.get()) + begin, type_, slots_, positions_};
}
kernels::KeyValueCache KeyValueCache::Of(std::uint32_t layer) const {
  return At(layers_[layer].own);
}
kernels::KeyValueCache KeyValueCache::OfSource(std::uint32_t layer) const {
  return At(layers_[layer].source);
}

void KeyValueCache::CopySlots() const {
  for (const CachedPlaces& entry : places_) {
    for (const CachedCopy& copy : entry.copies) {
      for (const Layer& layer : layers_) {
        if (layer.block == nullptr) continue;
        const kernels::AttentionShape shape = layer.block->CacheShape();
        kernels::CopyKeyValues(stream_, shape, {copy.from, copy.to, copy.positions}, At(layer.own));
        if (layer.source < 0 || copy.source_positions == 0) continue;
        kernels::CopyKeyValues(stream_, shape, {copy.from, copy.to, copy.source_positions},
                               At(layer.source));
      }
    }
  }
}

void KeyValueCache::Place(std::span<const CachedPlaces> places) {
  places_ = places;
  CopySlots();
  if (!stream_.OnGpu() || stream_.Planned()) return;
  first_.clear();
  copied_.Await();
  auto* const slots = static_cast<std::int32_t*>(placed_on_host_.get());
  std::int64_t count = 0;
  for (const CachedPlaces& entry : places) {
    first_.push_back(count);
    if (count + std::ssize(entry.slots) > slots_) {
      throw RunError("more sequences in a pass than a cache has slots",
                     "This is a bug in Trireme.");
    }
    std::ranges::copy(entry.slots, slots + count);
    std::ranges::copy(entry.firsts, slots + slots_ + count);
    std::ranges::copy(entry.source_lasts, slots + 2 * slots_ + count);
    count += std::ssize(entry.slots);
  }
  device::StartCopyIn(stream_, slots, placed_.get(),
                      numbers_ * slots_ * static_cast<std::int64_t>(sizeof *slots));
  copied_.Record(stream_.gpu->queue);
}

kernels::CachedRows KeyValueCache::RowsOf(std::size_t entry) const {
  if (!stream_.OnGpu()) return {places_[entry].slots.data(), places_[entry].firsts.data()};
  const auto* const slots = static_cast<const std::int32_t*>(placed_.get()) + first_[entry];
  return {slots, slots + slots_};
}

kernels::CachedRows KeyValueCache::SourceRowsOf(std::size_t entry) const {
  const kernels::CachedRows rows = RowsOf(entry);
  if (!stream_.OnGpu()) return {rows.slots, places_[entry].source_lasts.data()};
  return {rows.slots, rows.slots + 2 * slots_};
}

kernels::Matrix KeyValueCache::Picked(std::int64_t rows) const {
  return {picked_.get(), type_, rows, dim_, dim_};
}

kernels::Matrix KeyValueCache::Logits(std::int64_t rows) const {
  return {logits_.get(), type_, rows, slice_, stride_};
}

kernels::Matrix KeyValueCache::LogitsOnHost(std::int64_t rows) const {
  kernels::Matrix logits = Logits(rows);
  if (!stream_.OnGpu()) return logits;
  device::CopyOut(stream_, logits.data, logits_on_host_.get(),
                  rows * stride_ * static_cast<std::int64_t>(SizeOf(type_)));
  logits.data = logits_on_host_.get();
  return logits;
}

}  // namespace trireme::model
