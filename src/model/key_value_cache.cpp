// KeyValueCache: one buffer for all layers of the rank.
#include "trireme/model/key_value_cache.hpp"

#include "trireme/model/stage_layers.hpp"

namespace trireme::model {

KeyValueCache::KeyValueCache(const ModelPlan& plan, const StagePlan& local,
                             const StageLayers& layers, const device::Stream& stream)
    : type_(plan.dtype),
      slots_(plan.cache_slots),
      positions_(plan.length),
      dim_(plan.options.dim),
      begins_(static_cast<std::size_t>(plan.options.layers), -1) {
  if (slots_ == 0) return;
  const auto element = static_cast<std::int64_t>(SizeOf(type_));
  std::int64_t bytes = 0;
  for (std::size_t chunk = 0; chunk < local.chunks.size(); ++chunk) {
    for (std::int64_t layer = local.chunks[chunk].begin; layer < local.chunks[chunk].end; ++layer) {
      const auto block = static_cast<std::size_t>(layer - local.chunks[chunk].begin);
      begins_[static_cast<std::size_t>(layer)] = bytes;
      bytes +=
          BufferBytes(slots_ * element *
                      layers.Chunks()[chunk].blocks[block].KeyValueElements(stream, positions_));
    }
  }
  if (bytes > 0) kept_ = device::AllocateZeroed(bytes, stream.Where());
  if (!local.Last()) return;
  slice_ = layers.Head().Slice().Size();
  picked_ = device::AllocateZeroed(slots_ * dim_ * element, stream.Where());
  logits_ = device::AllocateZeroed(slots_ * slice_ * element, stream.Where());
}

kernels::KeyValueCache KeyValueCache::Of(std::uint32_t layer) const {
  return {static_cast<char*>(kept_.get()) + begins_[layer], type_, slots_, positions_};
}

tensor::Matrix KeyValueCache::Picked(std::int64_t rows) const {
  return {picked_.get(), type_, rows, dim_, dim_};
}

tensor::Matrix KeyValueCache::Logits(std::int64_t rows) const {
  return {logits_.get(), type_, rows, slice_, slice_};
}

}  // namespace trireme::model
