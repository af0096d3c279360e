// FillEntry puts token windows side by side, padded to one length, and applies document and loss
// masks.
#include "trireme/data/batch.hpp"

#include <algorithm>
#include <stdexcept>

namespace trireme::data {

bool HasTarget(const TokenFile& file, Split split, bool document_mask) {
  if (!file.HasMask(split) && !document_mask) return true;
  constexpr std::int64_t kPiece = std::int64_t{1} << 16;  // tokens
  TokenReader reader(file, split, document_mask);
  Window window;
  const std::int64_t size = reader.Size();
  bool found = false;
  for (std::int64_t begin = 1; begin < size && !found; begin += kPiece) {  // token 0 is no target
    const WindowView piece = reader.Read(begin, std::min(kPiece, size - begin), window);
    reader.RequireUnchanged();
    VisitTokens(piece, document_mask, [&](std::int64_t, bool, bool counts) {
      found = counts;
      return !found;
    });
  }
  return found;
}

namespace {

// Marks a target as not counting.
void Mask(Entry& batch, std::int64_t row) {
  std::int32_t& target = batch.targets[static_cast<std::size_t>(row)];
  if (target == kMasked) return;
  target = kMasked;
  --batch.valid;
}

// Masks targets [part.begin, part.end) of a window; `row` is the index in batch.targets of the
// first. The target of position p is token p + 1.
void MaskTargets(const WindowView& window, const Part& part, bool document_mask, std::int64_t row,
                 Entry& batch) {
  const std::int64_t first = part.begin + 1, last = part.end + 1;
  if (!window.counted.empty()) {
    for (std::int64_t i = first; i < last; ++i) {
      if (window.counted[static_cast<std::size_t>(i)] == 0) Mask(batch, row + i - first);
    }
  }
  if (!document_mask) return;
  const std::span<const std::int64_t> documents = window.documents;
  auto next = std::lower_bound(documents.begin(), documents.end(), window.origin + first);
  for (; next != documents.end() && *next - window.origin < last; ++next) {
    Mask(batch, row + *next - window.origin - first);
  }
}

// Number of (query, key) pairs for positions [from, to) of a document that begins at `begin`.
std::int64_t KeysOf(std::int64_t begin, std::int64_t from, std::int64_t to) {
  return from >= to ? 0 : (to - from) * (from - begin + 1 + to - begin) / 2;
}

// Fills `begins`, one per position of `part`, including padding after the window's `count` targets.
// Returns the number of (query, key) pairs before the padding.
std::int64_t FillBegins(const WindowView& window, const Part& part, std::int64_t count,
                        std::int32_t* begins) {
  const std::span<const std::int64_t> documents = window.documents;
  const std::int64_t origin = window.origin;
  std::int64_t keys = 0;
  auto next = std::upper_bound(documents.begin(), documents.end(), origin + part.begin);
  std::int64_t begin = next == documents.begin() ? 0 : *std::prev(next) - origin;
  for (std::int64_t at = part.begin; at < part.end;) {
    const bool more = next != documents.end() && *next - origin < part.end;
    const std::int64_t end = more ? *next - origin : part.end;
    begins = std::fill_n(begins, end - at, static_cast<std::int32_t>(begin));
    keys += KeysOf(begin, at, std::min(end, count));
    if (more) begin = *next++ - origin;
    at = end;
  }
  return keys;
}

// Fills inputs, targets and begins from index `row` on with the positions `part` of a window that
// has `count` targets.
void FillPart(const WindowView& window, std::int64_t count, const Part& part, std::int64_t row,
              Entry& batch) {
  const bool document_mask = !batch.begins.empty();
  if (document_mask) {
    batch.visible_keys += FillBegins(window, part, count, batch.begins.data() + row);
  }
  const std::int64_t end = std::min(part.end, count);
  if (part.begin >= end) return;
  window.CopyIds(part.begin, end, batch.inputs.data() + row);
  window.CopyIds(part.begin + 1, end + 1, batch.targets.data() + row);
  batch.valid += end - part.begin;
  MaskTargets(window, {part.begin, end}, document_mask, row, batch);
}

// Sizes the entry for its positions and fills it with padding.
void Clear(std::int64_t sequences, std::int64_t length, const Positions& positions, Entry& batch) {
  const auto within = [&](const Part& part) {
    return Part{std::min(part.begin, length), std::min(part.end, length)};
  };
  batch.positions = {within(positions.early), within(positions.late)};
  batch.sequences = sequences;
  batch.length = batch.positions.Count();
  batch.valid = batch.visible_keys = 0;
  const auto cells = static_cast<std::size_t>(batch.sequences * batch.length);
  batch.inputs.assign(cells, 0);
  batch.targets.assign(cells, kMasked);
  batch.ordinals.clear();
  batch.begins.clear();
}

// Adds a window to the entry, after those added before.
void Add(const WindowView& window, const Sample& sample, Entry& batch) {
  if (window.size <= sample.targets) {
    throw std::logic_error("a window has fewer tokens than its sample");
  }
  std::int64_t row = std::ssize(batch.ordinals) * batch.length;
  batch.ordinals.push_back(static_cast<std::uint64_t>(sample.ordinal));
  for (const Part& part : {batch.positions.early, batch.positions.late}) {
    FillPart(window, sample.targets, part, row, batch);
    row += part.Size();
  }
}

}  // namespace

void FillEntry(const Turn& turn, std::int64_t length, Entry& batch, const Positions& positions,
               bool document_mask) {
  const std::span<const Sample> samples = turn.Samples();
  Clear(std::ssize(samples), length, positions, batch);
  if (document_mask) batch.begins.resize(batch.inputs.size());
  for (std::size_t i = 0; i < samples.size(); ++i) Add(turn[i], samples[i], batch);
}

}  // namespace trireme::data
