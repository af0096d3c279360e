// Keys and values of text that is being written, and the results of its passes: logits of the
// positions that were asked for.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trireme/device/gpu.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/attention.hpp"
#include "trireme/kernels/linear.hpp"
#include "trireme/kernels/matrix.hpp"
#include "trireme/kernels/registry.hpp"
#include "trireme/model/plan.hpp"

namespace trireme::model {

// Second copies of the weights of linear layers (kernels::Weight::panels), for passes of a few
// rows. The weights do not change any more.

class StageLayers;
struct ModelPlan;
struct StagePlan;

// The weight of a linear layer: `count` adjacent parameters, from `id` on.
struct ThinWeight {
  kernels::ParameterId id = kernels::kNoParameter;
  int count = 1;
  kernels::Form form = kernels::Form::kTransposed;
  int site = -1;  // as in kernels::Linear
};

class ThinWeights {
 public:
  // Room for the copies of this rank's layers; no memory unless plan.thin_panels.
  ThinWeights(const ModelPlan& plan, const StagePlan& local, const StageLayers& layers,
              const device::Stream& stream);
  // Copies the weights as they are now.
  void Pack(const kernels::Registry& registry, const device::Stream& stream);
  // The copy of the weight that begins with this parameter; null before Pack.
  const void* PanelsOf(kernels::ParameterId id) const;
  std::int64_t Bytes() const { return device::BytesOf(panels_); }

 private:
  std::vector<ThinWeight> weights_;
  std::vector<std::int64_t> begins_;  // [parameters of the model]: bytes; -1: no copy
  device::Buffer panels_;
  bool packed_ = false;
};

class Block;
class StageLayers;
class ThinWeights;

// A sequence's text so far becomes that of another one.
struct CachedCopy {
  std::int32_t from = 0, to = 0;      // slots
  std::int64_t positions = 0;         // of the text
  std::int64_t source_positions = 0;  // of the source text; 0: the other slot has it already
};

// Places of one entry's sequences in the cache. An entry of length 1 continues its sequences, each
// at its own position; a longer one begins them anew at position 0 (firsts are 0), padded at the
// end. Of a model that translates, an entry with source texts begins its sequences, and the keys
// and values of these texts are kept, too; one without continues.
struct CachedPlaces {
  std::vector<std::int32_t> slots;   // [sequences], all different
  std::vector<std::int32_t> firsts;  // [sequences]: position of the first row
  std::vector<std::int64_t> asked;   // [sequences]: the row of the entry whose logits are wanted
  // Of a model that translates: the last position of each sequence's source text.
  std::vector<std::int32_t> source_lasts = {};  // [sequences]
  // Done before all entries of the pass: a slot that one copy writes is in no other one.
  std::vector<CachedCopy> copies = {};
};

// A pass' use of the cache.
struct CachedPass {
  const class KeyValueCache* cache = nullptr;  // null: nothing is kept
  kernels::CachedRows rows;
  kernels::CachedRows source_rows;       // of a model that translates: the source texts' last
  std::span<const std::int64_t> asked;   // rows of the entry
  std::int64_t first = 0;                // row of the first one's logits
  bool continues = false;                // attends to what is kept; thin products
  const ThinWeights* weights = nullptr;  // for thin products; may have none
};

class KeyValueCache {
 public:
  // Room for plan.cache_slots sequences of plan.length; no memory if that is 0. layers: of this
  // rank.
  KeyValueCache(const ModelPlan& plan, const StagePlan& local, const StageLayers& layers,
                const device::Stream& stream);
  bool On() const { return slots_ > 0; }
  std::int64_t Slots() const { return slots_; }
  std::int64_t Bytes() const {
    return device::BytesOf(kept_) + device::BytesOf(picked_) + device::BytesOf(logits_) +
           device::BytesOf(placed_);
  }
  kernels::KeyValueCache Of(std::uint32_t layer) const;  // layer: its number in the model
  // Of the source texts, which a layer with cross-attention reads.
  kernels::KeyValueCache OfSource(std::uint32_t layer) const;

  // Places of the entries of the next pass, of at most as many sequences as there are slots. On the
  // CPU they stay where they are; to a GPU their copy is queued. Copies slots.
  void Place(std::span<const CachedPlaces> places);
  kernels::CachedRows RowsOf(std::size_t entry) const;
  kernels::CachedRows SourceRowsOf(std::size_t entry) const;

  // Last stage, [rows, dim] and [rows, slice of the vocabulary], rows <= slots.
  kernels::Matrix Picked(std::int64_t rows) const;
  kernels::Matrix Logits(std::int64_t rows) const;
  // The logits in the host's memory, valid until the next call. Waits for the stream.
  kernels::Matrix LogitsOnHost(std::int64_t rows) const;

 private:
  // Bytes at which a block's keys and values begin; -1: not on this rank, or there are none.
  struct Layer {
    const Block* block = nullptr;
    std::int64_t own = -1, source = -1;
  };
  kernels::KeyValueCache At(std::int64_t begin) const;
  void CopySlots() const;

  device::Stream stream_;
  Dtype type_;
  std::int64_t slots_, positions_, dim_, slice_ = 0;
  std::int64_t stride_ = 0;    // of logits
  std::int64_t numbers_ = 2;   // of a place on a GPU
  std::vector<Layer> layers_;  // of the model
  std::span<const CachedPlaces> places_;
  std::vector<std::int64_t> first_;  // [entries]: of each one's sequences among all of the pass
  device::Buffer kept_, picked_, logits_;
  // Of a GPU: slots of all sequences, then firsts, then the last positions of source texts,
  // [numbers_, slots], and logits.
  device::Buffer placed_;
  device::PinnedBuffer placed_on_host_, logits_on_host_;
  device::Event copied_;  // placed_on_host_ may be written again
};

}  // namespace trireme::model
