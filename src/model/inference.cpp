// Inference: computes logits from the head's input and gathers them over the slices of the
// vocabulary. KeyValueCache: one buffer for all layers of the rank.
#include "trireme/model/inference.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <tuple>

#include "trireme/base/dtype.hpp"
#include "trireme/base/error.hpp"
#include "trireme/kernels/elementwise.hpp"

namespace trireme::model {

KeyValueCache::KeyValueCache(const Network& network)
    : stream_(network.Stream()),
      type_(network.Plan().dtype),
      slots_(network.Plan().cache_slots),
      positions_(network.Plan().length),
      dim_(network.Plan().options.dim),
      numbers_(1 + network.Plan().options.Streams()),
      layers_(static_cast<std::size_t>(network.Plan().options.Blocks())) {
  const StagePlan& local = network.LocalPlan();
  if (slots_ == 0) return;
  const auto element = static_cast<std::int64_t>(SizeOf(type_));
  std::int64_t bytes = 0;
  for (std::size_t chunk = 0; chunk < local.chunks.size(); ++chunk) {
    const Network::Chunk& held = network.Chunks()[chunk];
    for (std::size_t i = held.encoders; i < held.blocks.size(); ++i) {
      const Block& block = held.blocks[i];
      const std::int64_t each = BufferBytes(
          slots_ * element * kernels::KeyValueElements(stream_, block.CacheShape(), positions_));
      Layer& layer = layers_[static_cast<std::size_t>(local.chunks[chunk].begin) + i];
      layer = {&block, bytes};
      bytes += each;
      if (!block.Crosses()) continue;
      layer.source = bytes;
      bytes += each;
    }
  }
  if (bytes > 0) kept_ = device::AllocateZeroed(bytes, stream_.Where());
  if (stream_.OnGpu()) {
    const std::int64_t places = numbers_ * slots_ * static_cast<std::int64_t>(sizeof(std::int32_t));
    placed_ = device::AllocateZeroed(places, stream_.Where());
    placed_on_host_ = device::AllocatePinned(places, stream_.Where());
    copied_ = device::Event(stream_);
  }
  if (!local.Last()) return;
  slice_ = network.Head().Slice().Size();
  stride_ = slice_ + network.Head().SpareRows();
  picked_ = device::AllocateZeroed(slots_ * dim_ * element, stream_.Where());
  logits_ = device::AllocateZeroed(slots_ * stride_ * element, stream_.Where());
  if (stream_.OnGpu()) {
    logits_on_host_ = device::AllocatePinned(slots_ * stride_ * element, stream_.Where());
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

namespace {

// The linear layers that run with few rows: all but the encoder's, which sees whole texts.
std::vector<kernels::Linear> ThinLayers(const Network& network) {
  std::vector<kernels::Linear> layers;
  if (!network.Plan().pack_weights) return layers;
  for (const Network::Chunk& chunk : network.Chunks()) {
    for (const Block& block : std::span(chunk.blocks).subspan(chunk.encoders)) {
      block.AddLayers(network.Parameters(), layers);
    }
    if (chunk.last) layers.push_back(network.Head().Layer(network.Parameters()));
  }
  return layers;
}

}  // namespace

Inference::Inference(const Network& network, StageTasks& tasks)
    : network_(network),
      tasks_(tasks),
      cache_(network),
      packed_(network.Stream(), ThinLayers(network)) {}

void Inference::AddMemory(device::MemoryTerms& memory) const {
  memory.key_value_cache += cache_.Bytes();
  memory.packed_weights += packed_.Bytes();
}

CachedPass Inference::CachedPassOf(std::size_t entry) const {
  if (places_.empty()) return {};
  std::int64_t first = 0;
  for (const CachedPlaces& before : places_.first(entry)) first += std::ssize(before.asked);
  return {.cache = &cache_,
          .rows = cache_.RowsOf(entry),
          .source_rows = cache_.SourceRowsOf(entry),
          .asked = places_[entry].asked,
          .first = first,
          .packed = &packed_};
}

void Inference::Read(const Pass& pass, const Matrix& x) {
  if (!places_.empty()) return ReadCached(pass, x);
  slice_ = {};
  if (x.rows == 0) return;  // this context rank has no positions
  const HeadLayer& head = network_.Head();
  slice_ = pass.workspace.tile.Rows(0, 1).Columns(0, head.Slice().Size());
  head.Logits(pass, x.Rows(position_, 1), slice_);
}

// Logits of the rows asked for, in the order of the entries.
void Inference::ReadCached(const Pass& pass, const Matrix& x) const {
  const std::int64_t count = std::ssize(pass.cached.asked), first = pass.cached.first;
  const Matrix picked = cache_.Picked(first + count).Rows(first, count);
  const std::span<const std::int64_t> asked = pass.cached.asked;
  for (std::int64_t i = 0, run = 1; i < count; i += run, run = 1) {
    const auto from = static_cast<std::size_t>(i);
    while (i + run < count && asked[from + static_cast<std::size_t>(run)] == asked[from] + run) {
      ++run;
    }
    kernels::Copy(pass.stream, x.Rows(asked[from], run), picked.Rows(i, run));
  }
  network_.Head().CachedLogits(pass, picked, cache_.Logits(first + count).Rows(first, count));
}

// Converts m, in host memory, to double; `to` has no gaps between rows.
void Inference::Widen(const Matrix& m, std::span<double> to) const {
  const bool dense = m.stride == m.columns || m.rows == 1;
  const std::int64_t rows = dense ? 1 : m.rows, columns = dense ? m.Size() : m.columns;
  const int threads = network_.Stream().threads;
  for (std::int64_t row = 0; row < rows; ++row) {
    double* const all = to.data() + row * columns;
    if (m.dtype == Dtype::kBfloat16) {
      const auto* const values = static_cast<const std::uint16_t*>(m.data) + row * m.stride;
#pragma omp parallel for simd num_threads(threads)
      for (std::int64_t i = 0; i < columns; ++i) {
        all[i] = static_cast<double>(FromBfloat16(values[i]));
      }
      continue;
    }
    DispatchDtype(m.dtype, [&](auto zero) {
      const auto* const values = static_cast<const decltype(zero)*>(m.data) + row * m.stride;
#pragma omp parallel for simd num_threads(threads)
      for (std::int64_t i = 0; i < columns; ++i) all[i] = static_cast<double>(values[i]);
    });
  }
}

// Fills logits, [vocabulary], from all ranks' slices. Collective over the tensor group.
void Inference::GatherVocabulary(double* logits) const {
  const parallel::TensorGroup& tensor = network_.Tensor();
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < tensor.Size(); ++rank) {
    counts.push_back(PartOf(network_.Plan().options.vocabulary, rank, tensor.Size()).Size());
  }
  tensor.Transfers().OnHost().AllGatherInPlace(Dtype::kFloat64, logits, counts);
}

// This context rank's part of a batch of one whole sequence, padded to the ring's length.
data::Entry Inference::LocalPart(const data::Entry& batch) const {
  data::Entry local = batch;
  local.positions = network_.Context().Own();
  local.length = local.positions.Count();
  local.inputs.clear();
  local.begins.clear();
  local.targets.assign(static_cast<std::size_t>(local.length), data::kMasked);
  for (std::int64_t p = 0; p < local.length; ++p) {
    const std::int64_t at = local.positions.At(p);
    const auto place = static_cast<std::size_t>(std::min(at, batch.length - 1));
    local.inputs.push_back(at < batch.length ? batch.inputs[place] : 0);
    if (!batch.begins.empty()) local.begins.push_back(batch.begins[place]);
  }
  return local;
}

// The context rank that holds a position, and the position's index in its part.
std::pair<int, std::int64_t> Inference::Find(std::int64_t position) const {
  for (int rank = 0; rank < network_.Context().Size(); ++rank) {
    const Positions held = PositionsOf(network_.Plan().length, rank, network_.Context().Size());
    for (std::int64_t p = 0; p < held.Count(); ++p) {
      if (held.At(p) == position) return {rank, p};
    }
  }
  throw RunError(fmt::format("no rank holds position {}", position));
}

std::vector<double> Inference::Logits(const data::Entry& batch, std::int64_t position) {
  const comm::ProcessGrid& grid = network_.Grid();
  const ModelPlan& plan = network_.Plan();
  int owner = 0;
  std::vector<data::Entry> entries(static_cast<std::size_t>(plan.leaves));
  entries.front() = batch;
  if (network_.Context().Active()) {
    entries.front() = LocalPart(batch);
    std::tie(owner, position) = Find(position);
    if (grid.Coordinates().context != owner) position = 0;  // any: the result is not used
  }
  position_ = position;
  places_ = {};
  tasks_.QueueRead(entries, *this);
  std::vector<double> logits(static_cast<std::size_t>(plan.options.vocabulary));
  if (grid.LastStage()) {
    if (!slice_.Empty()) {
      Matrix slice = slice_;
      std::vector<std::byte> copy(static_cast<std::size_t>(slice.Size()) * SizeOf(slice.dtype));
      device::CopyOut(network_.Stream(), slice.data, copy.data(), std::ssize(copy));
      slice.data = copy.data();
      Widen(slice,
            std::span(logits).subspan(static_cast<std::size_t>(network_.Head().Slice().begin)));
    }
    GatherVocabulary(logits.data());
  }
  const auto broadcast = [&](comm::Group group, int root) {
    grid.Over(group).OnHost().Broadcast(Dtype::kFloat64, logits.data(), plan.options.vocabulary,
                                        root);
  };
  broadcast(comm::Group::kPipeline, grid.Shape().pipeline - 1);
  broadcast(comm::Group::kContext, owner);
  // Drops logits of padding rows, which belong to no token.
  if (plan.options.types > 0) logits.resize(static_cast<std::size_t>(plan.options.types));
  return logits;
}

// All rows are at the last position of a window. Each gets a document begin that makes its position
// within the document the right one, so that tables of positions need no special case.
data::Entry Inference::ContinuedEntry(std::span<const std::int32_t> tokens,
                                      std::span<const std::int32_t> positions) const {
  const std::int64_t last = network_.Plan().length - 1;
  data::Entry entry;
  entry.sequences = std::ssize(tokens);
  entry.length = 1;
  entry.inputs.assign(tokens.begin(), tokens.end());
  entry.targets.assign(tokens.size(), data::kMasked);
  entry.ordinals.assign(tokens.size(), 0);
  for (const std::int32_t position : positions) {
    entry.begins.push_back(static_cast<std::int32_t>(last - position));
  }
  entry.positions = {{last, last + 1}, {last + 1, last + 1}};
  return entry;
}

const std::vector<double>& Inference::CachedLogits(std::span<const data::Entry> batches,
                                                   std::span<const CachedPlaces> places) {
  places_ = places;
  cache_.Place(places);
  tasks_.QueueRead(batches, *this);
  tasks_.AwaitQueue();
  cached_logits_.clear();
  if (!network_.Grid().LastStage()) return cached_logits_;
  std::int64_t rows = 0;
  for (const CachedPlaces& place : places) rows += std::ssize(place.asked);
  const Matrix slices = cache_.LogitsOnHost(rows);
  const std::int64_t vocabulary = network_.Plan().options.vocabulary;
  cached_logits_.resize(static_cast<std::size_t>(rows * vocabulary));
  if (network_.Tensor().Size() == 1) {
    Widen(slices, cached_logits_);
    return cached_logits_;
  }
  const std::int64_t begin = network_.Head().Slice().begin;
  for (std::int64_t row = 0; row < rows; ++row) {
    double* const logits = cached_logits_.data() + row * vocabulary;
    Widen(slices.Rows(row, 1), {logits + begin, static_cast<std::size_t>(slices.columns)});
    GatherVocabulary(logits);
  }
  return cached_logits_;
}

}  // namespace trireme::model
