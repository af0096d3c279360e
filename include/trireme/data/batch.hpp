// A micro-batch of token windows, padded to one length, as a training step consumes it.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/base/partition.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/data/windows.hpp"

namespace trireme::data {

// Whether a split has a target that counts, so that its loss is a number.

// Serial, on a rank that has the split in memory or reads its stream. Looks at the split's mask
// and, with document_mask, at its documents, up to the first target that counts. Throws RunError
// for a stream's bad element, and for a file that has changed.
bool HasTarget(const TokenFile& file, Split split, bool document_mask);

inline constexpr std::int32_t kMasked = -1;  // a target that does not count: no loss, no gradient

// One entry: B windows side by side or, on a rank of a context group, its T positions of each. A
// micro-batch of the schedule is one entry, or ModelPlan::leaves of them.
struct Entry {
  std::int64_t sequences = 0;        // B
  std::int64_t length = 0;           // T: positions of each window that this rank holds
  std::vector<std::int32_t> inputs;  // [B, T]; 0 after a short window's end
  // [B, T]; kMasked after a short window's end, where a loss mask says so and, with document masks,
  // where the target is the first token of a document.
  std::vector<std::int32_t> targets;
  std::vector<std::uint64_t> ordinals;  // [B]: each window's Sample::ordinal, for dropout
  // [B, T]: position in the window of the first token of each held position's document, 0 if the
  // document began before the window; empty without document masks. It does not fall along a
  // window.
  std::vector<std::int32_t> begins;
  std::int64_t group = 0;  // canonical sums: group of its leaf, from this rank's first
  std::int64_t valid = 0;  // unmasked targets among those held
  // Keys that the held inputs see, each those of its document up to itself, without padding; 0
  // without document masks.
  std::int64_t visible_keys = 0;
  Positions positions = {};  // of the held targets in the window
  // Of pairs of texts to translate, whose targets are padded at their ends; else empty.
  std::int64_t source_length = 0;            // S
  std::vector<std::int32_t> sources;         // [B, S]; 0 after a text's end
  std::vector<std::int32_t> source_lengths;  // [B]: tokens of each source text
  std::vector<std::int32_t> target_lengths;  // [B]: targets of each pair
};

// Fills `batch` with the windows of `turn`, each `length` targets long: with those of `positions`
// that lie within [0, length), by default all. document_mask: fills `begins`, and masks targets
// that begin a document. Masks of the loss count in any case. Reuses the batch's memory.
void FillEntry(const Turn& turn, std::int64_t length, Entry& batch, const Positions& positions = {},
               bool document_mask = false);

}  // namespace trireme::data
