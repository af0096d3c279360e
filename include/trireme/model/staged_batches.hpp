// StagedBatches: brings a step's tokens into the memory in which the model computes. Types enforce
// the order of three calls: Stage (starts the copy), Take (puts it in place), Open (reads it).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "trireme/data/windows.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::model {

// On the CPU the tokens are used where they are. For a GPU they are packed into pinned memory and
// copied on the input queue while the previous step computes.
class StagedBatches {
 public:
  // Upper limits of what is staged at once; the constructor allocates memory for them.
  struct Limits {
    std::int64_t entries = 0;
    std::int64_t sequences = 0, length = 0;  // per entry
    bool begins = false;                     // entries may have begins of documents
    bool pairs = false;                      // entries have source texts, up to `length` long
    std::int64_t tokens = 0;                 // per entry; 0: sequences x length
  };
  StagedBatches(const device::Stream& stream, const Limits& limits);
  std::int64_t Bytes() const;  // on the GPU; 0 on the CPU

  // A handle on batches: move-only, empty once moved from. The batches must outlive their use.
  class Ticket {
   public:
    Ticket(Ticket&& other) noexcept
        : batches_(std::exchange(other.batches_, {})), number_(std::exchange(other.number_, 0)) {}
    Ticket& operator=(Ticket&& other) noexcept {
      batches_ = std::exchange(other.batches_, {});
      number_ = std::exchange(other.number_, 0);
      return *this;
    }
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;
    ~Ticket() = default;
    std::span<const data::Entry> Batches() const { return batches_; }

   private:
    friend class StagedBatches;
    Ticket(std::span<const data::Entry> batches, std::uint64_t number)
        : batches_(batches), number_(number) {}
    std::span<const data::Entry> batches_;
    std::uint64_t number_ = 0;  // number of the call that made it; 0: used up
  };
  // Returned by Stage: batches being copied.
  class Staged : public Ticket {
    using Ticket::Ticket;
    friend class StagedBatches;
  };
  // Returned by Take: batches in place for work that is queued from now on.
  class Taken : public Ticket {
    using Ticket::Ticket;
    friend class StagedBatches;
  };

  // Packs the batches and starts their copy. Work queued before still reads the batches taken last.
  // Throws RunError if the batches exceed the limits.
  [[nodiscard]] Staged Stage(std::span<const data::Entry> batches);
  // Puts batches in place. Batches of the same sizes get the same addresses, so that a CUDA graph
  // may read them. Stages them again if others were staged since. Throws RunError for a used
  // ticket.
  [[nodiscard]] Taken Take(Staged staged);
  [[nodiscard]] Taken Take(std::span<const data::Entry> batches) { return Take(Stage(batches)); }
  // Returns the batches. Throws RunError if the ticket was used or others were taken since.
  std::span<const data::Entry> Open(Taken taken);

  // Arrays of one entry of the batches taken last: inputs, targets [B, T], ordinals [B], begins [B,
  // T]; for pairs key_lengths [B] (of the targets), sources [B, S], source_lengths [B]; else null.
  // begins: null without documents; on a GPU never null if limits.begins.
  struct Entry {
    const std::int32_t* inputs = nullptr;
    const std::int32_t* targets = nullptr;
    const std::uint64_t* ordinals = nullptr;
    const std::int32_t* begins = nullptr;
    const std::int32_t* key_lengths = nullptr;
    const std::int32_t* sources = nullptr;
    const std::int32_t* source_lengths = nullptr;
  };
  Entry At(std::size_t entry) const;

 private:
  // Byte offsets of one entry's arrays, in the order of Entry.
  using Places = std::array<std::int64_t, 7>;
  std::int64_t EachBytes() const;  // size of one buffer
  void CheckBegins(const data::Entry& batch) const;
  void CheckPairs(const data::Entry& batch) const;
  void Pack(std::span<const data::Entry> batches);

  device::Stream stream_;
  Limits limits_;
  std::uint64_t count_ = 0;               // tickets so far
  std::uint64_t staged_ = 0, taken_ = 0;  // numbers of the latest Stage and Take
  std::span<const data::Entry> here_;     // the batches taken last
  std::int64_t bytes_ = 0;                // size of the batches staged last
  device::PinnedBuffer packed_;
  device::Buffer arriving_, current_;
  device::Event arrived_;                     // the staged batches are in `arriving_`
  device::Event read_;                        // `arriving_` was copied to `current_`
  std::vector<Places> places_, next_places_;  // [entries], in current_; in arriving_
};

}  // namespace trireme::model
