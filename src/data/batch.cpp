// FillEntry: windows of tokens, side by side and padded to one length, with the masks of documents
// and of the loss.
#include "trireme/data/batch.hpp"

#include <algorithm>
#include <stdexcept>

namespace trireme::data {

// HasTarget: the split in pieces, from memory or from the file.

bool HasTarget(const TokenFile& file, Split split, bool document_mask) {
  if (!file.HasMask(split) && !document_mask) return true;
  constexpr std::int64_t kPiece = std::int64_t{1} << 16;  // tokens
  SplitReader reader(file, split, document_mask);
  Window window;
  const std::int64_t size = reader.Size();
  for (std::int64_t begin = 1; begin < size; begin += kPiece) {  // the first token is no target
    reader.Read(begin, std::min(kPiece, size - begin), window);
    CountTargets(window, document_mask);
    if (std::ranges::find(window.counted, 1) != window.counted.end()) return true;
  }
  return false;
}

namespace {

// A target counts no longer.
void Mask(Entry& batch, std::int64_t row) {
  std::int32_t& target = batch.targets[static_cast<std::size_t>(row)];
  if (target == kMasked) return;
  target = kMasked;
  --batch.valid;
}

// Masks targets [part.begin, end) of a window, the first of which is in `row`. The target of
// position p is token p + 1.
void MaskTargets(const Window& window, const Part& part, bool document_mask, std::int64_t row,
                 Entry& batch) {
  const std::int64_t first = part.begin + 1, last = part.end + 1;
  if (!window.counted.empty()) {
    for (std::int64_t i = first; i < last; ++i) {
      if (window.counted[static_cast<std::size_t>(i)] == 0) Mask(batch, row + i - first);
    }
  }
  if (!document_mask) return;
  const std::vector<std::int64_t>& documents = window.documents;
  auto next = std::lower_bound(documents.begin(), documents.end(), first);
  for (; next != documents.end() && *next < last; ++next) Mask(batch, row + *next - first);
}

// Keys seen by positions [from, to) of a document that begins at `begin`.
std::int64_t KeysOf(std::int64_t begin, std::int64_t from, std::int64_t to) {
  return from >= to ? 0 : (to - from) * (from - begin + 1 + to - begin) / 2;
}

// begins: of the positions of `part`. Those after a short window's end, `count` positions, follow
// the same rule. Returns the keys that positions before it see.
std::int64_t FillBegins(const std::vector<std::int64_t>& documents, const Part& part,
                        std::int64_t count, std::int32_t* begins) {
  std::int64_t keys = 0;
  auto next = std::upper_bound(documents.begin(), documents.end(), part.begin);
  std::int64_t begin = next == documents.begin() ? 0 : *std::prev(next);
  for (std::int64_t at = part.begin; at < part.end;) {
    const bool more = next != documents.end() && *next < part.end;
    const std::int64_t end = more ? *next : part.end;
    begins = std::fill_n(begins, end - at, static_cast<std::int32_t>(begin));
    keys += KeysOf(begin, at, std::min(end, count));
    if (more) begin = *next++;
    at = end;
  }
  return keys;
}

// Fills inputs, targets and begins from `row` on with positions `part` of a window of `count`
// targets.
void FillPart(const Window& window, std::int64_t count, const Part& part, std::int64_t row,
              Entry& batch) {
  const bool document_mask = !batch.begins.empty();
  if (document_mask) {
    batch.visible_keys += FillBegins(window.documents, part, count, batch.begins.data() + row);
  }
  const std::int64_t end = std::min(part.end, count);
  if (part.begin >= end) return;
  const std::int32_t* const ids = window.ids.data();
  std::copy(ids + part.begin, ids + end, batch.inputs.data() + row);
  std::copy(ids + part.begin + 1, ids + end + 1, batch.targets.data() + row);
  batch.valid += end - part.begin;
  MaskTargets(window, {part.begin, end}, document_mask, row, batch);
}

// Room for the entry's positions, all padding so far.
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

// Adds the next window of the entry.
void Add(const Window& window, const Sample& sample, Entry& batch) {
  if (std::ssize(window.ids) <= sample.targets) {
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

void FillEntry(std::span<const Window> windows, std::span<const Sample> samples,
               std::int64_t length, Entry& batch, const Positions& positions, bool document_mask) {
  Clear(std::ssize(samples), length, positions, batch);
  if (document_mask) batch.begins.resize(batch.inputs.size());
  for (std::size_t i = 0; i < samples.size(); ++i) Add(windows[i], samples[i], batch);
}

void FillEntry(const Corpus& corpus, Split split, std::span<const Sample> samples,
               std::int64_t length, Entry& batch, const Positions& positions) {
  Clear(std::ssize(samples), length, positions, batch);
  Window window;
  for (const Sample& sample : samples) {
    corpus.Of(sample.source).Read(split, sample.start, sample.targets + 1, window);
    Add(window, sample, batch);
  }
}

void ReadWindows(const Corpus& corpus, Split split, std::span<const Sample> samples,
                 std::vector<Window>& windows) {
  if (windows.size() < samples.size()) windows.resize(samples.size());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const TokenFile& file = corpus.Of(samples[i].source);
    file.Read(split, samples[i].start, samples[i].targets + 1, windows[i]);
  }
}

}  // namespace trireme::data
