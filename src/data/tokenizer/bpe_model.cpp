// Byte-pair encoding of one word: of all pairs of neighbours that merge, the one of lowest rank
// goes first, and of equal ones the leftmost, until none is left.
#include "bpe_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "byte_alphabet.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {

namespace {

// Symbols of a word up to which all pairs are searched for each merge; a heap serves longer ones.
constexpr std::size_t kShortWord = 48;

}  // namespace

void MergeTable::Reserve(std::size_t merges) {
  const std::size_t slots = std::bit_ceil(2 * merges + 2);
  slots_.assign(slots, Slot{});
  mask_ = slots - 1;
  shift_ = 64 - std::countr_zero(slots);
}

void MergeTable::Add(std::int32_t left, std::int32_t right, Merge merge) {
  const std::uint64_t key = KeyOf(left, right);
  std::size_t at = PlaceOf(key);
  while (slots_[at].key != kFree && slots_[at].key != key) at = (at + 1) & mask_;
  slots_[at] = {key, merge};
}

BpeModel::BpeModel(const BpeVocabulary& vocabulary, const std::string& where)
    : unk_(vocabulary.unk), fuse_unk_(vocabulary.fuse_unk) {
  const std::array<std::string, 256> alphabet = ByteAlphabet();
  for (std::size_t byte = 0; byte < alphabet.size(); ++byte) {
    const auto found = vocabulary.ids.find(alphabet[byte]);
    of_byte_[byte] = found == vocabulary.ids.end() ? -1 : found->second;
  }
  merges_.Reserve(vocabulary.merges.size());
  std::int32_t rank = 0;
  for (const std::pair<std::string, std::string>& merge : vocabulary.merges) {
    const auto id_of = [&](const std::string& name) {
      const auto found = vocabulary.ids.find(name);
      if (found != vocabulary.ids.end()) return found->second;
      throw InputError(
          fmt::format("{}: merge {} makes '{}' and '{}' one, but '{}' is not in the vocabulary",
                      where, rank + 1, merge.first, merge.second, name));
    };
    merges_.Add(id_of(merge.first), id_of(merge.second), {rank, id_of(merge.first + merge.second)});
    ++rank;
  }
  if (!vocabulary.ignore_merges) return;
  for (const auto& [name, id] : vocabulary.ids) {
    if (const auto bytes = BytesOf(name)) words_.emplace(*bytes, id);
  }
}

void BpeModel::Initial(std::string_view word, std::vector<std::int32_t>& symbols) const {
  symbols.clear();
  bool unknown = false;
  for (const char c : word) {
    const auto byte = static_cast<unsigned char>(c);
    const std::int32_t id = of_byte_[byte];
    if (id >= 0) {
      symbols.push_back(id);
    } else if (unk_ < 0) {
      throw InputError(fmt::format(
          "the tokenizer has no entry for byte 0x{:02X}, which the text has, and no unk_token",
          byte));
    } else if (!unknown || !fuse_unk_) {
      symbols.push_back(unk_);
    }
    unknown = id < 0;
  }
}

void BpeModel::MergeShort(Scratch& scratch) const {
  std::vector<std::int32_t>& ids = scratch.ids;
  std::vector<Merge>& merges = scratch.merges;  // of each symbol with the next one
  merges.resize(ids.size());
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) merges[i] = merges_.Find(ids[i], ids[i + 1]);
  while (ids.size() > 1) {
    std::size_t best = ids.size();
    std::int32_t rank = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      if (merges[i].rank < 0 || (best != ids.size() && merges[i].rank >= rank)) continue;
      best = i;
      rank = merges[i].rank;
    }
    if (best == ids.size()) return;
    ids[best] = merges[best].id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    merges.erase(merges.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    if (best + 1 < ids.size()) merges[best] = merges_.Find(ids[best], ids[best + 1]);
    if (best > 0) merges[best - 1] = merges_.Find(ids[best - 1], ids[best]);
  }
}

// O(n log n): a candidate counts when it comes to the top only if its pair is still as it was.
void BpeModel::MergeLong(Scratch& scratch) const {
  using Symbol = Scratch::Symbol;
  std::vector<Symbol>& symbols = scratch.symbols;
  std::vector<Scratch::Candidate>& heap = scratch.heap;
  const auto count = static_cast<std::int32_t>(scratch.ids.size());
  const auto at = [&](std::int32_t place) -> Symbol& {
    return symbols[static_cast<std::size_t>(place)];
  };
  const auto find = [&](std::int32_t left) -> Merge {
    if (left < 0 || at(left).id < 0 || at(left).next < 0) return {};
    return merges_.Find(at(left).id, at(at(left).next).id);
  };
  const auto push = [&](std::int32_t left) {
    const Merge merge = find(left);
    if (merge.rank < 0) return;
    heap.push_back({merge.rank, left, merge.id});
    std::push_heap(heap.begin(), heap.end());
  };
  symbols.clear();
  heap.clear();
  for (std::int32_t i = 0; i < count; ++i) {
    symbols.push_back(
        {scratch.ids[static_cast<std::size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1});
  }
  for (std::int32_t i = 0; i < count; ++i) push(i);
  while (!heap.empty()) {
    const Scratch::Candidate top = heap.front();
    std::pop_heap(heap.begin(), heap.end());
    heap.pop_back();
    const Merge now = find(top.left);
    if (now.rank != top.rank || now.id != top.id) continue;
    Symbol& left = at(top.left);
    Symbol& right = at(left.next);
    left.id = top.id;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) at(left.next).previous = top.left;
    push(top.left);
    push(left.previous);
  }
  scratch.ids.clear();
  for (std::int32_t i = 0; i >= 0; i = at(i).next) scratch.ids.push_back(at(i).id);
}

void BpeModel::Encode(std::string_view word, Scratch& scratch,
                      std::vector<std::int32_t>& ids) const {
  if (!words_.empty()) {
    if (const auto found = words_.find(std::string(word)); found != words_.end()) {
      ids.push_back(found->second);
      return;
    }
  }
  Initial(word, scratch.ids);
  if (scratch.ids.size() > kShortWord) {
    MergeLong(scratch);
  } else {
    MergeShort(scratch);
  }
  ids.insert(ids.end(), scratch.ids.begin(), scratch.ids.end());
}

}  // namespace trireme::data
