// The tokens of a step's micro-batches where the model computes. On the CPU that is where they are;
// for a GPU they are packed into page-locked memory and copied while the step before computes.
#ifndef TRIREME_MODEL_STAGED_BATCHES_HPP_
#define TRIREME_MODEL_STAGED_BATCHES_HPP_

#include <cstdint>
#include <span>
#include <vector>

#include "trireme/data/batch.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::model {

class StagedBatches {
 public:
  explicit StagedBatches(const device::Stream& stream);

  // Packs these and starts their copy, on the queue of input; whoever computes now still reads the
  // last ones that were used.
  void Prepare(std::span<const data::MicroBatch> batches);
  // The computation that is queued from now on reads these: those prepared last, else they are
  // prepared now. The same memory for batches of the same sizes, so that a graph may read it.
  void Use(std::span<const data::MicroBatch> batches);

  // One entry's arrays, of those used: [B, T], [B, T], [B].
  struct Entry {
    const std::int32_t* inputs = nullptr;
    const std::int32_t* targets = nullptr;
    const std::uint64_t* ordinals = nullptr;
  };
  Entry Of(const data::MicroBatch& batch) const;
  int MemoryVersion() const { return memory_version_; }  // another one when it has moved

 private:
  void Reserve(std::int64_t bytes);
  device::Stream stream_;
  std::span<const data::MicroBatch> prepared_, used_;
  std::int64_t capacity_ = 0, bytes_ = 0;
  int memory_version_ = 0;
  device::PinnedBuffer packed_;
  device::Buffer arriving_, current_;
  device::Event arrived_;  // what was prepared, in `arriving_`
  device::Event taken_;    // from there to `current_`
  // Bytes into `current_`, [entries].
  struct Places {
    std::int64_t inputs = 0, targets = 0, ordinals = 0;
  };
  std::vector<Places> places_, next_places_;
};

}  // namespace trireme::model

#endif  // TRIREME_MODEL_STAGED_BATCHES_HPP_
