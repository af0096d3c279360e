// Entry: token windows side by side, padded to one length, as a training step consumes them.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/base/partition.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/data/windows.hpp"

namespace trireme::data {

// Whether a split has any target that counts, without which its loss is undefined. Reads the
// split's loss mask and, with document_mask, its document boundaries, up to the first such target.
// Serial; the calling rank must have the split in memory or read its stream. Throws RunError for a
// bad element in a stream and for a file that has changed.
bool HasTarget(const TokenFile& file, Split split, bool document_mask);

inline constexpr std::int32_t kMasked = -1;  // a target that does not count: no loss, no gradient

// One entry: B windows side by side; in a context group, each rank holds T positions of each
// window. A micro-batch of the schedule is one entry or, with canonical sums, ModelPlan::leaves
// entries.
struct Entry {
  std::int64_t sequences = 0;        // B
  std::int64_t length = 0;           // T: positions of each window that this rank holds
  std::vector<std::int32_t> inputs;  // [B, T]; 0 after a short window's end
  // [B, T]; kMasked past the end of a short window, where the loss mask excludes the target and,
  // with document masks, where the target is the first token of a document.
  std::vector<std::int32_t> targets;
  std::vector<std::uint64_t> ordinals;  // [B]: each window's Sample::ordinal, for dropout
  // [B, T]: for each position, where in the window its document begins (0 if before the window).
  // Never decreases along a window. Empty without document masks.
  std::vector<std::int32_t> begins;
  // Canonical sums: group of this entry's leaf, counted from the rank's first group.
  std::int64_t group = 0;
  std::int64_t valid = 0;  // unmasked targets that this rank holds
  // Number of (query, key) pairs that attention computes for these inputs: each input sees its
  // document up to itself. Padding is excluded; 0 without document masks.
  std::int64_t visible_keys = 0;
  Positions positions = {};  // which positions of each window this rank holds
  // Only for pairs of texts to translate, whose targets are padded at the end; otherwise empty.
  std::int64_t source_length = 0;            // S
  std::vector<std::int32_t> sources;         // [B, S]; 0 after a text's end
  std::vector<std::int32_t> source_lengths;  // [B]: tokens of each source text
  std::vector<std::int32_t> target_lengths;  // [B]: targets of each pair
};

// Fills `batch` with the windows of `turn`, padded to `length` targets each, restricted to the
// `positions` in [0, length) (by default all). document_mask: also fills `begins`, and masks
// targets that begin a document. Loss masks always apply. Reuses the memory of `batch`.
void FillEntry(const Turn& turn, std::int64_t length, Entry& batch, const Positions& positions = {},
               bool document_mask = false);

}  // namespace trireme::data
