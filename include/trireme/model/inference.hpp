// Inference: logits, the cache of keys and values of text that is being written, and packed
// weights.
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

// Keys and values of all layers, and the results of the passes that use them.
class KeyValueCache {
 public:
  // Room for plan.cache_slots sequences of plan.length in one buffer for all layers of this rank;
  // no memory if that is 0.
  explicit KeyValueCache(const Network& network);
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

// Reads what the head would turn into losses.
class Inference : public StageTasks::Reader {
 public:
  // Takes the memory of the cache and of packed weights. Both must outlive it.
  Inference(const Network& network, StageTasks& tasks);

  // Collective over the replica. Logits of the token after position `position` of sequence 0, on
  // every rank of the replica: [types], or [vocabulary] if their number is not known.
  std::vector<double> Logits(const data::Entry& batch, std::int64_t position);
  // Collective over the replica; only with plan.cache_slots. Keeps keys and values of the batches
  // (Stages().Padded() of them, some perhaps empty; if values are sharded, the same number on all
  // ranks of the shard group) at these places, and returns the logits asked for, [sequences,
  // vocabulary], on the ranks of the last stage; nothing on others; valid until the next call. A
  // batch of length 1 has ContinuedEntry's form.
  const std::vector<double>& CachedLogits(std::span<const data::Entry> batches,
                                          std::span<const CachedPlaces> places);
  // An entry of one more token for each of some sequences, at its own position.
  data::Entry ContinuedEntry(std::span<const std::int32_t> tokens,
                             std::span<const std::int32_t> positions) const;
  // Copies weights for products of a few rows as they are now; they change no more. Nothing unless
  // plan.pack_weights.
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
  std::span<const CachedPlaces> places_;  // of the entries; empty: nothing is kept
  std::int64_t position_ = 0;             // whose logits are wanted if nothing is kept
  Matrix slice_;                          // [1, slice of the vocabulary]: these logits
  std::vector<double> cached_logits_;     // of CachedLogits
};

}  // namespace trireme::model
