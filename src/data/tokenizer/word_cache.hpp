// Ids of words met before: of one thread, and of bounded size.
#ifndef TRIREME_SRC_DATA_TOKENIZER_WORD_CACHE_HPP_
#define TRIREME_SRC_DATA_TOKENIZER_WORD_CACHE_HPP_

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

class WordCache {
 public:
  static constexpr std::size_t kLongestWord = 64;  // bytes; longer words are not kept

  // Appends the ids of a word to `ids`; false if they are not known.
  bool Find(std::string_view word, std::vector<std::int32_t>& ids) const {
    if (word.size() > kLongestWord || slots_.empty()) return false;
    for (std::size_t at = HashOf(word) & kMask; slots_[at].length != 0; at = (at + 1) & kMask) {
      const Slot& slot = slots_[at];
      if (slot.length != word.size()) continue;
      if (std::memcmp(bytes_.data() + slot.bytes, word.data(), word.size()) != 0) continue;
      const std::int32_t* const first = ids_.data() + slot.ids;
      ids.insert(ids.end(), first, first + slot.count);
      return true;
    }
    return false;
  }

  // Keeps the ids of a word that is not there yet. Forgets all words when it is full.
  void Add(std::string_view word, std::span<const std::int32_t> ids) {
    if (word.empty() || word.size() > kLongestWord) return;
    if (slots_.empty() || words_ == kMost) {
      slots_.assign(kMask + 1, Slot{});
      bytes_.clear();
      ids_.clear();
      words_ = 0;
    }
    std::size_t at = HashOf(word) & kMask;
    while (slots_[at].length != 0) at = (at + 1) & kMask;
    slots_[at] = {static_cast<std::uint32_t>(bytes_.size()),
                  static_cast<std::uint32_t>(ids_.size()), static_cast<std::uint16_t>(word.size()),
                  static_cast<std::uint16_t>(ids.size())};
    bytes_ += word;
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    ++words_;
  }

 private:
  static constexpr std::size_t kMask = (std::size_t{1} << 17) - 1, kMost = std::size_t{1} << 16;
  struct Slot {
    std::uint32_t bytes = 0, ids = 0;  // beginnings
    std::uint16_t length = 0, count = 0;
  };
  static std::size_t HashOf(std::string_view word) {
    std::uint64_t hash = word.size();
    std::size_t i = 0;
    for (; i + 8 <= word.size(); i += 8) hash = Mix(hash, Load(word.data() + i, 8));
    return static_cast<std::size_t>(Mix(hash, Load(word.data() + i, word.size() - i)) >> 32);
  }
  static std::uint64_t Load(const char* bytes, std::size_t count) {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes, count);
    return value;
  }
  static std::uint64_t Mix(std::uint64_t hash, std::uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15U;
    return hash ^ hash >> 29;
  }

  std::vector<Slot> slots_;
  std::string bytes_;
  std::vector<std::int32_t> ids_;
  std::size_t words_ = 0;
};

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TOKENIZER_WORD_CACHE_HPP_
