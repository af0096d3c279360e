// Keys and values of text that is being written, and the results of its passes: logits of the
// positions that were asked for.
#ifndef TRIREME_MODEL_KEY_VALUE_CACHE_HPP_
#define TRIREME_MODEL_KEY_VALUE_CACHE_HPP_

#include <cstdint>
#include <span>
#include <vector>

#include "trireme/device/arena.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/cached_attention.hpp"
#include "trireme/model/plan.hpp"
#include "trireme/tensor/matrix.hpp"

namespace trireme::model {

class StageLayers;
class ThinWeights;

// Places of one entry's sequences in the cache. An entry of length 1 continues its sequences, each
// at its own position; a longer one begins them anew at position 0 (firsts are 0), padded at the
// end.
struct CachedPlaces {
  std::vector<std::int32_t> slots;   // [sequences], all different
  std::vector<std::int32_t> firsts;  // [sequences]: position of the first row
  std::vector<std::int64_t> asked;   // [sequences]: the row of the entry whose logits are wanted
};

// A pass' use of the cache.
struct CachedPass {
  const class KeyValueCache* cache = nullptr;  // null: nothing is kept
  kernels::CachedRows rows;
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

  // Places of the entries of the next pass, of at most as many sequences as there are slots. On the
  // CPU they stay where they are; to a GPU their copy is queued.
  void Place(std::span<const CachedPlaces> places);
  kernels::CachedRows RowsOf(std::size_t entry) const;

  // Last stage, [rows, dim] and [rows, slice of the vocabulary], rows <= slots.
  tensor::Matrix Picked(std::int64_t rows) const;
  tensor::Matrix Logits(std::int64_t rows) const;
  // The logits in the host's memory, valid until the next call. Waits for the stream.
  tensor::Matrix LogitsOnHost(std::int64_t rows) const;

 private:
  device::Stream stream_;
  Dtype type_;
  std::int64_t slots_, positions_, dim_, slice_ = 0;
  std::int64_t stride_ = 0;           // of logits
  std::vector<std::int64_t> begins_;  // [layers of the model]: bytes; -1: not on this rank
  std::span<const CachedPlaces> places_;
  std::vector<std::int64_t> first_;  // [entries]: of each one's sequences among all of the pass
  device::Buffer kept_, picked_, logits_;
  // Of a GPU: slots of all sequences, then firsts, [2, slots], and logits.
  device::Buffer placed_;
  device::PinnedBuffer placed_on_host_, logits_on_host_;
  device::Event copied_;  // placed_on_host_ may be written again
};

}  // namespace trireme::model

#endif  // TRIREME_MODEL_KEY_VALUE_CACHE_HPP_
