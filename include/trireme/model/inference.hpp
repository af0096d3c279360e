// Inference: logits, the cache of keys and values for generating text, and packed weights.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "trireme/device/gpu.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/device/memory_terms.hpp"
#include "trireme/kernels/attention.hpp"
#include "trireme/kernels/linear.hpp"
#include "trireme/model/network.hpp"
#include "trireme/model/stage_tasks.hpp"

namespace trireme::model {

// Copies the cached text of one sequence to another one.
struct CachedCopy {
  std::int32_t from = 0, to = 0;      // slots
  std::int64_t positions = 0;         // positions of the text to copy
  std::int64_t source_positions = 0;  // same for the source text; 0: `to` has it already
};

// Places of one entry's sequences in the cache. Decoders: an entry of length 1 continues its
// sequences, each at its own position; a longer one begins them at position 0 (firsts are 0),
// padded at the end. Encoder-decoders: an entry with source texts begins its sequences and caches
// the keys and values of these texts, too; an entry without continues.
struct CachedPlaces {
  std::vector<std::int32_t> slots;   // [sequences], all different
  std::vector<std::int32_t> firsts;  // [sequences]: position of each sequence's first row
  std::vector<std::int64_t> asked;   // [sequences]: rows of the entry whose logits are wanted
  // Encoder-decoders: the last position of each sequence's source text.
  std::vector<std::int32_t> source_lasts = {};  // [sequences]
  // Copies done before the pass; a slot that one of them writes must not occur in another.
  std::vector<CachedCopy> copies = {};
};

// Keys and values of all layers, and buffers for the logits of passes that use them.
class KeyValueCache {
 public:
  // Allocates one buffer for all layers of this rank, for plan.cache_slots sequences of plan.length
  // positions; nothing if there are 0 slots.
  explicit KeyValueCache(const Network& network);
  std::int64_t Bytes() const {
    return device::BytesOf(kept_) + device::BytesOf(picked_) + device::BytesOf(logits_) +
           device::BytesOf(placed_);
  }
  kernels::KeyValueCache Of(std::uint32_t layer) const;  // layer: its number in the model
  // Keys and values of the source texts, for a layer with cross-attention.
  kernels::KeyValueCache OfSource(std::uint32_t layer) const;

  // Sets the places for the entries of the next pass, with at most as many sequences as slots, and
  // runs their CachedCopies. `places` must stay valid; for a GPU a copy of it is queued.
  void Place(std::span<const CachedPlaces> places);
  kernels::CachedRows RowsOf(std::size_t entry) const;
  kernels::CachedRows SourceRowsOf(std::size_t entry) const;

  // On the last stage: the head's inputs [rows, dim] and the logits [rows, slice of the
  // vocabulary]; rows <= slots.
  kernels::Matrix Picked(std::int64_t rows) const;
  kernels::Matrix Logits(std::int64_t rows) const;
  // The logits in host memory, valid until the next call. Waits for the stream.
  kernels::Matrix LogitsOnHost(std::int64_t rows) const;

 private:
  // Byte offsets of a block's keys and values: its own, the source's; -1: none on this rank.
  struct Layer {
    const Block* block = nullptr;
    std::int64_t own = -1, source = -1;
  };
  kernels::KeyValueCache At(std::int64_t begin) const;
  void CopySlots() const;

  device::Stream stream_;
  Dtype type_;
  std::int64_t slots_, positions_, dim_, slice_ = 0;
  std::int64_t stride_ = 0;    // row length of the logits' buffer
  std::int64_t numbers_ = 2;   // integers per sequence in placed_
  std::vector<Layer> layers_;  // [blocks of the model]
  std::span<const CachedPlaces> places_;
  std::vector<std::int64_t> first_;  // [entries]: index of the first sequence
  device::Buffer kept_, picked_, logits_;
  // On a GPU, [numbers_, slots]: slots of all sequences, their firsts, last source positions.
  device::Buffer placed_;
  device::PinnedBuffer placed_on_host_, logits_on_host_;
  device::Event copied_;  // placed_on_host_ was copied and may be overwritten
};

// Computes logits from the head's input.
class Inference : public StageTasks::Reader {
 public:
  // Allocates the cache and the packed weights. network and tasks must outlive it.
  Inference(const Network& network, StageTasks& tasks);

  // Logits of the token after `position` in sequence 0, on every rank of the replica: [types], or
  // [vocabulary] if the types are unknown. Collective over the replica.
  std::vector<double> Logits(const data::Entry& batch, std::int64_t position);
  // Runs the batches, caches their keys and values at `places` and returns the logits asked for,
  // [sequences, vocabulary], on the ranks of the last stage (empty on others), valid until the next
  // call. Collective over the replica; needs plan.cache_slots > 0. There are Stages().Padded()
  // batches, some perhaps empty; if values are sharded, as many on all ranks of the shard group.
  // Batches of length 1 come from ContinuedEntry.
  const std::vector<double>& CachedLogits(std::span<const data::Entry> batches,
                                          std::span<const CachedPlaces> places);
  // An entry that continues sequences by one token each. tokens, positions: [sequences].
  data::Entry ContinuedEntry(std::span<const std::int32_t> tokens,
                             std::span<const std::int32_t> positions) const;
  // Packs the weights, if plan.pack_weights, for products with few rows. The weights must not
  // change afterwards.
  void PackWeights() { packed_.Pack(); }
  void AddMemory(device::MemoryTerms& memory) const;

  CachedPass CachedPassOf(std::size_t entry) const override;
  void Read(const Pass& pass, const Matrix& x) override;

 private:
  void ReadCached(const Pass& pass, const Matrix& x) const;
  void Widen(const Matrix& m, std::span<double> to) const;
  void GatherVocabulary(double* logits) const;
  data::Entry LocalPart(const data::Entry& batch) const;
  std::pair<int, std::int64_t> Find(std::int64_t position) const;

  const Network& network_;
  StageTasks& tasks_;
  KeyValueCache cache_;
  kernels::PackedWeights packed_;
  std::span<const CachedPlaces> places_;  // [entries]; empty: no cache is used
  std::int64_t position_ = 0;             // row whose logits are wanted, without a cache
  Matrix slice_;                          // [1, slice of the vocabulary]: its logits
  std::vector<double> cached_logits_;     // result of CachedLogits
};

}  // namespace trireme::model
