// Tokens of a step's micro-batches in the memory in which the model computes, in three stages that
// types enforce: Stage (on their way), Take (in place for what is queued next), Open (being read).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "trireme/data/batch.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::model {

// On the CPU the tokens stay where they are. For a GPU they are packed into page-locked memory and
// copied on the input queue, while the step before computes.
class StagedBatches {
 public:
  // The most that is staged at once; memory for all of it is taken at construction.
  struct Limits {
    std::int64_t entries = 0;
    std::int64_t sequences = 0, length = 0;  // of an entry
    bool begins = false;                     // with begins of documents
    bool pairs = false;                      // with source texts, as long as `length`
    std::int64_t tokens = 0;                 // of an entry, if less than sequences x length
  };
  StagedBatches(const device::Stream& stream, const Limits& limits);
  std::int64_t Bytes() const;  // in the stream's memory; 0 on the CPU, which needs no copy

  // Move-only; empty once moved from. The batches must outlive the computation on them.
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
    std::uint64_t number_ = 0;  // of the Stage or Take that made it; 0: used up
  };
  // Batches on their way.
  class Staged : public Ticket {
    using Ticket::Ticket;
    friend class StagedBatches;
  };
  // Batches in their place, for the computation that is queued from now on.
  class Taken : public Ticket {
    using Ticket::Ticket;
    friend class StagedBatches;
  };

  // Packs the batches and starts their copy; the computation under way still reads the batches that
  // were taken last. Throws RunError if they pass the limits.
  [[nodiscard]] Staged Stage(std::span<const data::Entry> batches);
  // Batches of the same sizes take the same memory, so that a graph may read it. If others were
  // staged in between, these are staged again. Throws RunError for a ticket that was used.
  [[nodiscard]] Taken Take(Staged staged);
  [[nodiscard]] Taken Take(std::span<const data::Entry> batches) { return Take(Stage(batches)); }
  // Throws RunError if the ticket was used, or others were taken since.
  std::span<const data::Entry> Open(Taken taken);

  // One entry's arrays, of the batches taken last: [B, T], [B, T], [B], [B, T]; of pairs, the
  // lengths of their targets, the source texts and their lengths, [B], [B, S], [B]. begins is null
  // unless the entry has documents; on a GPU, it stands for every entry if begins were planned.
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
  // Bytes from the start of the memory, of one entry's arrays, in the order of Entry.
  using Places = std::array<std::int64_t, 7>;
  std::int64_t EachBytes() const;  // of one copy
  void CheckBegins(const data::Entry& batch) const;
  void CheckPairs(const data::Entry& batch) const;
  void Pack(std::span<const data::Entry> batches);

  device::Stream stream_;
  Limits limits_;
  std::uint64_t count_ = 0;               // tickets so far
  std::uint64_t staged_ = 0, taken_ = 0;  // numbers of the latest ones
  std::span<const data::Entry> here_;     // taken last
  std::int64_t bytes_ = 0;                // of the batches staged last
  device::PinnedBuffer packed_;
  device::Buffer arriving_, current_;
  device::Event arrived_;                     // the staged batches, in `arriving_`
  device::Event read_;                        // `arriving_` was copied to `current_`
  std::vector<Places> places_, next_places_;  // [entries] of `current_`, of `arriving_`
};

}  // namespace trireme::model
