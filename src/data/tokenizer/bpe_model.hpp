// Byte-pair encoding of one word (Sennrich et al. 2016): tables, and the merging of their symbols.
#ifndef TRIREME_SRC_DATA_TOKENIZER_BPE_MODEL_HPP_
#define TRIREME_SRC_DATA_TOKENIZER_BPE_MODEL_HPP_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace trireme::data {

struct BpeVocabulary {
  std::unordered_map<std::string, std::int32_t> ids;        // by name, in the byte alphabet
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  bool ignore_merges = false;  // a word that is an entry is one token, whatever merges say
  std::int32_t unk = -1;       // stands for a byte without entry; -1: none
  bool fuse_unk = false;       // neighbours become one
};

// A pair of symbols that becomes one; the lowest rank goes first.
struct Merge {
  std::int32_t rank = -1;  // -1: none
  std::int32_t id = -1;
};

// Merges by pair: open addressing, at most half full.
class MergeTable {
 public:
  void Reserve(std::size_t merges);
  // The last merge of a pair counts.
  void Add(std::int32_t left, std::int32_t right, Merge merge);
  Merge Find(std::int32_t left, std::int32_t right) const {
    const std::uint64_t key = KeyOf(left, right);
    for (std::size_t at = PlaceOf(key);; at = (at + 1) & mask_) {
      if (slots_[at].key == key) return slots_[at].merge;
      if (slots_[at].key == kFree) return {};
    }
  }

 private:
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};
  struct Slot {
    std::uint64_t key = kFree;
    Merge merge;
  };
  static std::uint64_t KeyOf(std::int32_t left, std::int32_t right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 |
           static_cast<std::uint32_t>(right);
  }
  std::size_t PlaceOf(std::uint64_t key) const {
    return static_cast<std::size_t>((key * 0x9e3779b97f4a7c15U) >> shift_) & mask_;
  }

  std::vector<Slot> slots_ = {Slot{}};
  std::size_t mask_ = 0;
  int shift_ = 63;
};

// Tables; never changed.
class BpeModel {
 public:
  // Throws InputError naming `where` and an entry or a merge that does not fit.
  BpeModel(const BpeVocabulary& vocabulary, const std::string& where);

  // Memory of one thread.
  struct Scratch {
    struct Symbol {
      std::int32_t id, previous, next;  // places of neighbours; -1: none
    };
    struct Candidate {
      std::int32_t rank, left, id;
      // Of the lowest rank, the leftmost is on top.
      bool operator<(const Candidate& other) const {
        return rank != other.rank ? rank > other.rank : left > other.left;
      }
    };
    std::vector<std::int32_t> ids;
    std::vector<Merge> merges;
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  // Appends the ids of a word's bytes. Throws InputError if a byte has no entry and there is no
  // unk.
  void Encode(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& ids) const;

 private:
  void Initial(std::string_view word, std::vector<std::int32_t>& symbols) const;
  void MergeShort(Scratch& scratch) const;
  void MergeLong(Scratch& scratch) const;

  std::array<std::int32_t, 256> of_byte_{};  // -1: none
  MergeTable merges_;
  std::unordered_map<std::string, std::int32_t> words_;  // by bytes; with ignore_merges only
  std::int32_t unk_ = -1;
  bool fuse_unk_ = false;
};

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TOKENIZER_BPE_MODEL_HPP_
