// Byte-level BPE as in Hugging Face's `tokenizers`: finds added tokens, normalises the rest, splits
// it into words by patterns, and merges the bytes of each word.
#include "bpe.hpp"

#include <fmt/format.h>
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>
#include <unicode/utf8.h>
#include <xxhash.h>
#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <map>
#include <span>

#include "trireme/base/error.hpp"
#include "trireme/base/utf8.hpp"

namespace trireme::data {

namespace {

// By byte, the code point that stands for it: printable Latin-1 bytes stand for themselves, the
// others are numbered from 256 on.
std::array<char32_t, 256> CodePoints() {
  std::array<char32_t, 256> codes{};
  char32_t next = 256;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
    codes[byte] = printable ? byte : next++;
  }
  return codes;
}

// The bytes that a vocabulary entry's characters stand for; nullopt if one stands for no byte.
std::optional<std::string> BytesOf(std::string_view entry) {
  static const std::map<char32_t, char> byte_of = [] {
    std::map<char32_t, char> bytes;
    const std::array<char32_t, 256> codes = CodePoints();
    for (std::size_t byte = 0; byte < 256; ++byte) bytes[codes[byte]] = static_cast<char>(byte);
    return bytes;
  }();
  std::string bytes;
  for (std::size_t offset = 0; offset < entry.size();) {
    const auto found = byte_of.find(NextCodePoint(entry, offset));
    if (found == byte_of.end()) return std::nullopt;
    bytes += found->second;
  }
  return bytes;
}

void Require(UErrorCode status) {
  if (U_SUCCESS(status) != 0) return;
  throw RunError(fmt::format("ICU: Unicode normalisation fails: {}", u_errorName(status)));
}

const icu::Normalizer2& FormC() {
  static const icu::FilteredNormalizer2 form_c = [] {
    UErrorCode status = U_ZERO_ERROR;
    // Lives as long as the program: the filter holds a reference to it.
    static const icu::UnicodeSet known = [&] {
      icu::UnicodeSet set(icu::UnicodeString("[:age=9.0:]"), status);
      set.freeze();
      return set;
    }();
    const icu::Normalizer2* const form = icu::Normalizer2::getNFCInstance(status);
    Require(status);
    return icu::FilteredNormalizer2(*form, known);
  }();
  return form_c;
}

// Form C of valid UTF-8 (Unicode Standard Annex 15) by the tables of Unicode 9, which Hugging
// Face's `tokenizers` uses: newer characters stay as they are. Returns `text` itself if it is
// ASCII, otherwise a view of `room`.
std::string_view NormalizeC(std::string_view text, std::string& room) {
  if (AsciiEnd(text) == text.size()) return text;
  UErrorCode status = U_ZERO_ERROR;
  const icu::StringPiece piece(text.data(), static_cast<std::int32_t>(text.size()));
  room.clear();
  icu::StringByteSink<std::string> sink(&room);
  FormC().normalizeUTF8(0, piece, sink, nullptr, status);
  Require(status);
  return room;
}

// The last offset within the text where it can be split so that both parts, normalised apart, give
// the normalised whole, whatever follows the text; 0: none.
std::size_t LastBoundaryC(std::string_view text) {
  auto at = static_cast<std::int32_t>(text.size());
  while (at > 0) {
    UChar32 code = 0;
    U8_PREV(reinterpret_cast<const std::uint8_t*>(text.data()), 0, at, code);
    if (code >= 0 && static_cast<bool>(FormC().hasBoundaryBefore(code))) break;
  }
  return static_cast<std::size_t>(at);
}

// Whether the last character is a letter (general category L) in Unicode 9, and so in every later
// version. text: valid UTF-8.
bool EndsWithLetter(std::string_view text) {
  static const icu::UnicodeSet letters = [] {
    UErrorCode status = U_ZERO_ERROR;
    icu::UnicodeSet set(icu::UnicodeString("[[:L:]&[:age=9.0:]]"), status);
    Require(status);
    set.freeze();
    return set;
  }();
  if (text.empty()) return false;
  auto at = static_cast<std::int32_t>(std::min<std::size_t>(text.size(), U8_MAX_LENGTH));
  const char* const end = text.data() + text.size() - at;
  UChar32 last = 0;
  U8_PREV(reinterpret_cast<const std::uint8_t*>(end), 0, at, last);
  return last >= 0 && static_cast<bool>(letters.contains(last));
}

// Whether the character has Unicode's property White_Space.
bool IsSpace(char32_t code) {
  return static_cast<bool>(u_isUWhiteSpace(static_cast<UChar32>(code)));
}

// Where the white space that begins at `from` ends.
std::size_t AfterSpaces(std::string_view text, std::size_t from) {
  while (from < text.size()) {
    std::size_t next = from;
    if (!IsSpace(NextCodePoint(text, next))) break;
    from = next;
  }
  return from;
}

// Where the white space that ends at `end` begins, but not before `from`.
std::size_t BeforeSpaces(std::string_view text, std::size_t from, std::size_t end) {
  while (end > from) {
    std::size_t begin = end - 1;
    while (begin > from && ContinuesCharacter(text[begin])) --begin;
    std::size_t next = begin;
    if (!IsSpace(NextCodePoint(text, next))) break;
    end = begin;
  }
  return end;
}

// Special and other tokens that are searched for in a text before it is split into words.
class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
    std::ranges::stable_sort(tokens_, std::ranges::greater(),
                             [](const AddedToken& token) { return token.content.size(); });
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      at_[static_cast<unsigned char>(tokens_[i].content.front())].push_back(i);
      take_before_ = take_before_ || tokens_[i].lstrip;
    }
  }

  struct Found {
    // Bytes of the text, including white space that the token absorbs.
    std::size_t begin = 0, end = 0;
    std::size_t next = 0;  // end of the token's own bytes, where the next token may begin
    std::int32_t id = -1;  // -1: no token; then all offsets are the text's end
  };
  // The first token at or after `from`, and the longest of those that begin there. White space
  // before offset `free` is not absorbed.
  Found First(std::string_view text, std::size_t from, std::size_t free) const {
    for (std::size_t begin = from; !tokens_.empty() && begin < text.size(); ++begin) {
      for (const std::size_t place : at_[static_cast<unsigned char>(text[begin])]) {
        const AddedToken& token = tokens_[place];
        if (text.compare(begin, token.content.size(), token.content) != 0) continue;
        const std::size_t end = begin + token.content.size();
        return {token.lstrip ? std::max(BeforeSpaces(text, 0, begin), free) : begin,
                token.rstrip ? AfterSpaces(text, end) : end, end, token.id};
      }
    }
    return {text.size(), text.size(), text.size(), -1};
  }

  std::size_t Longest() const { return tokens_.empty() ? 0 : tokens_.front().content.size(); }
  // Whether any of the tokens absorbs white space before it.
  bool TakeSpaceBefore() const { return take_before_; }

 private:
  std::vector<AddedToken> tokens_;  // longest first
  bool take_before_ = false;
  std::array<std::vector<std::size_t>, 256> at_;  // indices into tokens_ by first byte
};

// Added tokens, by the text in which they are searched for.
struct AddedLists {
  AddedTokens raw, normalized;
};

constexpr std::size_t kTries = 64;  // matches whose end is tried as a cut
constexpr std::size_t kNear = 8;    // matches before a cut that are checked first

// Offset of the character that byte `at` belongs to.
std::size_t CharacterAt(std::string_view text, std::size_t at) {
  while (at > 0 && at < text.size() && ContinuesCharacter(text[at])) --at;
  return at;
}

// End of the last added token that begins in text[from, limit); `from` if none does.
std::size_t AfterTokens(const AddedTokens& added, std::string_view text, std::size_t from,
                        std::size_t limit) {
  std::size_t end = from;
  for (std::size_t next = from;;) {
    const AddedTokens::Found found = added.First(text, next, end);
    if (found.id < 0 || found.begin >= limit) return end;
    end = found.end;
    next = found.next;
  }
}

using Match = std::pair<std::size_t, std::size_t>;  // [begin, end)

// Whether matches `from` to `last` are found as well if the text ends with the last of them.
bool SameAlone(const Pattern& pattern, std::string_view text, const std::vector<Match>& matches,
               std::size_t from, std::size_t last, Pattern::Search& search) {
  const std::string_view part = text.substr(0, matches[last].second);
  std::size_t at = from == 0 ? 0 : matches[from - 1].second;
  for (std::size_t i = from; i <= last; ++i) {
    if (search.First(pattern, part, at) != matches[i]) return false;
    at = matches[i].second;
  }
  return true;
}

// End of the last match that is certain: it stays whatever follows the text, and also if the text
// ends there. 0: none. before_blank: a blank must follow the match.
std::size_t CutOf(const Pattern& pattern, std::string_view text, bool before_blank,
                  Pattern::Search& search) {
  std::vector<Match> matches;
  search.Begin(text);
  for (std::size_t from = 0;;) {
    const Match match = search.First(pattern, text, from, true);
    if (match.first == text.size()) break;
    matches.push_back(match);
    from = match.second;
  }
  std::size_t tries = kTries;
  for (std::size_t last = matches.size(); last-- > 0 && tries > 0;) {
    const std::size_t end = matches[last].second;
    if (before_blank && (end == text.size() || text[end] != ' ')) continue;
    --tries;
    // The matches nearest to the cut are checked first: they are the likeliest to differ.
    const std::size_t near = last < kNear ? 0 : last - kNear;
    if (SameAlone(pattern, text, matches, near, last, search) &&
        SameAlone(pattern, text, matches, 0, last, search)) {
      return end;
    }
  }
  return 0;
}

// The last offset at which the text can certainly be cut, whatever follows it: the end of a word
// (found by CutOf) or of an added token; 0: none known. Searches for the first pattern's words from
// the last added token on, which takes as long as pre-tokenization.
std::size_t CertainCut(std::string_view text, const BpeDefinition& definition,
                       const AddedLists& added, Pattern::Search& search) {
  if (definition.splits.empty() || definition.splits.front().pattern.LooksBehind()) return 0;
  if (definition.form_c) text = text.substr(0, LastBoundaryC(text));
  // Tokens that begin before `limit` do not depend on what follows the text.
  const std::size_t longest = std::max(added.raw.Longest(), added.normalized.Longest());
  if (text.size() <= longest) return 0;
  std::size_t limit = CharacterAt(text, text.size() - (longest == 0 ? 0 : longest - 1));
  if (added.raw.TakeSpaceBefore() || added.normalized.TakeSpaceBefore()) {
    limit = BeforeSpaces(text, 0, limit);
  }
  std::size_t begin = AfterTokens(added.raw, text, 0, limit);
  if (begin >= limit) return 0;
  if (definition.form_c) {
    std::string room;
    const std::string_view rest = text.substr(begin);
    if (NormalizeC(rest, room) != rest) return 0;  // normalisation moves offsets
  }
  begin = AfterTokens(added.normalized, text, begin, limit);
  if (begin >= limit) return 0;

  // The tokenizer may put a blank before a text that does not begin with one. It is then put here
  // too, and a cut must be followed by a blank, so that none is put before the second part.
  const bool prefixed = definition.add_prefix_space && definition.prefix_space_before == 0;
  std::string with_blank;
  std::string_view rest = text.substr(begin, limit - begin);
  if (prefixed && !rest.starts_with(' ')) {
    with_blank = ' ';
    with_blank += rest;
    rest = with_blank;
  }
  const std::size_t cut = CutOf(definition.splits.front().pattern, rest, prefixed, search);
  if (cut == 0) return begin;
  return begin + cut - (with_blank.empty() ? 0 : 1);
}

// What a pair of symbols merges into; the pair of lowest rank merges first.
struct Merge {
  std::int32_t rank = -1;  // -1: none
  std::int32_t id = -1;
};

// Hash table from pairs to merges: open addressing, at most half full.
class MergeTable {
 public:
  explicit MergeTable(std::size_t merges)  // merges: upper limit of their number
      : slots_(std::bit_ceil(2 * merges + 2)),
        mask_(slots_.size() - 1),
        shift_(64 - std::countr_zero(slots_.size())) {}

  // A later merge of the same pair replaces the earlier one.
  void Add(std::int32_t left, std::int32_t right, Merge merge) {
    const std::uint64_t key = KeyOf(left, right);
    std::size_t at = PlaceOf(key);
    while (slots_[at].key != kFree && slots_[at].key != key) at = (at + 1) & mask_;
    slots_[at] = {key, merge};
  }
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

  std::vector<Slot> slots_;
  std::size_t mask_;
  int shift_;
};

// Byte-pair encoding of one word (Sennrich et al. 2016): merges the neighbouring pair of lowest
// rank, the leftmost of equal ones, until no pair merges. Immutable.
class BpeModel {
 public:
  // Throws InputError naming `where` and a merge whose symbols are not in the vocabulary.
  BpeModel(const BpeVocabulary& vocabulary, const std::string& where)
      : merges_(vocabulary.merges.size()), unk_(vocabulary.unk), fuse_unk_(vocabulary.fuse_unk) {
    const std::array<std::string, 256> alphabet = ByteAlphabet();
    for (std::size_t byte = 0; byte < alphabet.size(); ++byte) {
      const auto found = vocabulary.ids.find(alphabet[byte]);
      of_byte_[byte] = found == vocabulary.ids.end() ? -1 : found->second;
    }
    std::int32_t rank = 0;
    for (const std::pair<std::string, std::string>& merge : vocabulary.merges) {
      const auto id_of = [&](const std::string& name) {
        const auto found = vocabulary.ids.find(name);
        if (found != vocabulary.ids.end()) return found->second;
        throw InputError(
            fmt::format("{}: merge {} makes '{}' and '{}' one, but '{}' is not in the vocabulary",
                        where, rank + 1, merge.first, merge.second, name));
      };
      merges_.Add(id_of(merge.first), id_of(merge.second),
                  {rank, id_of(merge.first + merge.second)});
      ++rank;
    }
    if (!vocabulary.ignore_merges) return;
    for (const auto& [name, id] : vocabulary.ids) {
      if (const auto bytes = BytesOf(name)) words_.emplace(*bytes, id);
    }
  }

  // Working memory of one thread.
  struct Scratch {
    struct Symbol {
      std::int32_t id, previous, next;  // token id; indices of the neighbours; -1: none
    };
    struct Candidate {
      std::int32_t rank, left, id;
      // Puts the lowest rank on top of the heap and, of equal ones, the leftmost.
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
  void Encode(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& ids) const {
    if (!words_.empty()) {
      if (const auto found = words_.find(std::string(word)); found != words_.end()) {
        ids.push_back(found->second);
        return;
      }
    }
    Initial(word, scratch.ids);
    scratch.ids.size() > kShortWord ? MergeLong(scratch) : MergeShort(scratch);
    ids.insert(ids.end(), scratch.ids.begin(), scratch.ids.end());
  }

 private:
  // In words of up to this many symbols each merge searches for the best pair; longer ones use a
  // heap.
  static constexpr std::size_t kShortWord = 48;

  void Initial(std::string_view word, std::vector<std::int32_t>& symbols) const {
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

  void MergeShort(Scratch& scratch) const {
    std::vector<std::int32_t>& ids = scratch.ids;
    std::vector<Merge>& merges = scratch.merges;  // merges[i]: of symbols i and i + 1
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

  // O(n log n). A candidate from the heap is stale, and skipped, if its pair has changed meanwhile.
  void MergeLong(Scratch& scratch) const {
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

  std::array<std::int32_t, 256> of_byte_{};  // -1: none
  MergeTable merges_;
  // Whole words by their bytes; only with ignore_merges.
  std::unordered_map<std::string, std::int32_t> words_;
  std::int32_t unk_;
  bool fuse_unk_;
};

// Cache of the ids of words: for one thread, and of bounded size.
class WordCache {
 public:
  static constexpr std::size_t kLongestWord = 64;  // bytes; longer words are not cached

  // Appends the ids of a word to `ids`; false if it is not cached.
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

  // Caches the ids of a word that is not there yet. When full, first forgets all words.
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
    std::uint32_t bytes = 0, ids = 0;  // where they begin in bytes_ and ids_
    std::uint16_t length = 0, count = 0;
  };
  static std::size_t HashOf(std::string_view word) { return XXH3_64bits(word.data(), word.size()); }

  std::vector<Slot> slots_;
  std::string bytes_;
  std::vector<std::int32_t> ids_;
  std::size_t words_ = 0;
};

// Characters that end a word of letters in all patterns that CutsAtSpaces accepts, and that compose
// with no letter: blank, line end, and the full stops, commas and marks of Chinese and Japanese.
constexpr std::array<std::string_view, 7> kAfterLetters = {" ", "\n", "。", "、", "，", "！", "？"};

// Names of the end-of-document token in the vocabularies of GPT-2, Qwen, Llama 3 and others.
constexpr std::array kEnds = {"<|endoftext|>", "<|end_of_text|>", "</s>"};

// The tokenizer's tables, which do not change.
struct Tables {
  Tables(const Files& source, const std::string& where)
      : files(source), definition(ReadBpe(source, where)), model(definition.vocabulary, where) {
    std::int64_t size = 0;
    for (const auto& [name, id] : definition.vocabulary.ids) {
      size = std::max<std::int64_t>(size, id + 1);
    }
    for (const AddedToken& token : definition.added) {
      size = std::max<std::int64_t>(size, token.id + 1);
    }
    pieces.resize(static_cast<std::size_t>(size));
    for (const auto& [name, id] : definition.vocabulary.ids) {
      pieces[static_cast<std::size_t>(id)] = BytesOf(name).value_or(name);
    }
    std::vector<AddedToken> first, second;
    for (const AddedToken& token : definition.added) {
      pieces[static_cast<std::size_t>(token.id)] = token.content;
      if (!token.normalized) {
        first.push_back(token);
        continue;
      }
      second.push_back(token);
      if (definition.form_c) {
        std::string room;
        second.back().content = NormalizeC(token.content, room);
      }
    }
    added = {AddedTokens(std::move(first)), AddedTokens(std::move(second))};
    safe_cuts = definition.splits.size() == 1 && !definition.add_prefix_space &&
                CutsAtSpaces(definition.splits.front().pattern.Expression()) &&
                std::none_of(definition.added.begin(), definition.added.end(), SpansCut);
  }

  // Whether the token may extend across a cut after a letter.
  static bool SpansCut(const AddedToken& token) {
    return token.lstrip || (token.rstrip && EndsWithLetter(token.content)) ||
           std::any_of(kAfterLetters.begin(), kAfterLetters.end(), [&](std::string_view mark) {
             return token.content.find(mark) != std::string::npos;
           });
  }

  Files files;
  BpeDefinition definition;
  BpeModel model;
  std::vector<std::string> pieces;  // by id
  AddedLists added;
  bool safe_cuts = false;  // a text may be cut after a letter, before a character of kAfterLetters
};

class Bpe : public Tokenizer {
 public:
  Bpe(const Files& files, const std::string& where)
      : tables_(files, where), prefixed_(tables_.definition.splits.size() + 1) {}

  const char* Kind() const override { return "bpe"; }
  const Files& Source() const override { return tables_.files; }
  std::int64_t VocabularySize() const override { return std::ssize(tables_.pieces); }

  std::string Piece(std::int32_t id) const override {
    return id < 0 || id >= VocabularySize() ? "" : tables_.pieces[static_cast<std::size_t>(id)];
  }

  std::optional<std::int32_t> IdOf(std::string_view name) const override {
    for (const AddedToken& token : tables_.definition.added) {
      if (token.content == name) return token.id;
    }
    const auto& ids = tables_.definition.vocabulary.ids;
    const auto found = ids.find(std::string(name));
    return found == ids.end() ? std::nullopt : std::optional(found->second);
  }

  std::optional<std::int32_t> Eos() const override {
    for (const char* name : kEnds) {
      if (const auto id = IdOf(name)) return id;
    }
    return std::nullopt;
  }

  std::optional<std::int32_t> Unk() const override {
    const std::int32_t unk = tables_.definition.vocabulary.unk;
    return unk < 0 ? std::nullopt : std::optional(unk);
  }

  void Encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    search_.Begin(text);
    Around(tables_.added.raw, text, ids, [&](std::string_view part) {
      if (tables_.definition.form_c) part = NormalizeC(part, room_);
      Around(tables_.added.normalized, part, ids,
             [&](std::string_view rest) { Cut(rest, 0, ids); });
    });
  }

  void Template(std::vector<std::int32_t>& prefix,
                std::vector<std::int32_t>& suffix) const override {
    const BpeDefinition& definition = tables_.definition;
    prefix.insert(prefix.end(), definition.prefix.begin(), definition.prefix.end());
    suffix.insert(suffix.end(), definition.suffix.begin(), definition.suffix.end());
  }

  std::string Decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids) text += Piece(id);
    return text;
  }

  std::size_t SafeCut(std::string_view text) const override {
    for (std::size_t cut = tables_.safe_cuts ? text.size() : 0; cut-- > 1;) {
      const std::string_view rest = text.substr(cut);
      const bool marked =
          std::any_of(kAfterLetters.begin(), kAfterLetters.end(),
                      [rest](std::string_view mark) { return rest.starts_with(mark); });
      if (marked && EndsWithLetter(text.substr(0, cut))) return cut;
    }
    return CertainCut(text, tables_.definition, tables_.added, search_);
  }

 private:
  // Appends the ids of the added tokens in a text, and calls `body` for each text between them.
  template <typename Body>
  static void Around(const AddedTokens& added, std::string_view text,
                     std::vector<std::int32_t>& ids, const Body& body) {
    std::size_t from = 0;
    for (std::size_t next = 0;;) {
      const AddedTokens::Found found = added.First(text, next, from);
      if (found.begin > from) body(text.substr(from, found.begin - from));
      if (found.id < 0) return;
      next = found.next;
      // White space that a token absorbed may contain further tokens, which count as well; but
      // nothing is left of one that absorbs the white space before it, too.
      if (found.begin >= found.end) continue;
      ids.push_back(found.id);
      from = found.end;
    }
  }

  // Appends the ids of a piece, from step number `step` of pre-tokenization on.
  void Cut(std::string_view piece, std::size_t step, std::vector<std::int32_t>& ids) {
    const BpeDefinition& definition = tables_.definition;
    if (definition.add_prefix_space && step == definition.prefix_space_before &&
        !piece.starts_with(' ')) {
      prefixed_[step] = ' ';
      prefixed_[step] += piece;
      piece = prefixed_[step];
    }
    if (step == definition.splits.size()) return EncodeWord(piece, ids);
    const PatternSplit& split = definition.splits[step];
    for (std::size_t from = 0; from < piece.size();) {
      const auto [begin, end] = search_.First(split.pattern, piece, from);
      if (begin > from && split.between) Cut(piece.substr(from, begin - from), step + 1, ids);
      if (end > begin && split.matches) Cut(piece.substr(begin, end - begin), step + 1, ids);
      from = end;
    }
  }

  void EncodeWord(std::string_view word, std::vector<std::int32_t>& ids) {
    if (cache_.Find(word, ids)) return;
    const auto before = static_cast<std::ptrdiff_t>(ids.size());
    tables_.model.Encode(word, scratch_, ids);
    cache_.Add(word, std::span(ids.begin() + before, ids.end()));
  }

  const Tables tables_;
  mutable Pattern::Search search_;
  BpeModel::Scratch scratch_;
  WordCache cache_;
  std::string room_;                   // holds the normalised text
  std::vector<std::string> prefixed_;  // by step: the piece with a blank put before it
};

}  // namespace

std::unique_ptr<Tokenizer> MakeBpe(const Files& files, const std::string& where) {
  return std::make_unique<Bpe>(files, where);
}

std::array<std::string, 256> ByteAlphabet() {
  std::array<std::string, 256> characters;
  const std::array<char32_t, 256> codes = CodePoints();
  for (std::size_t byte = 0; byte < 256; ++byte) AppendUtf8(codes[byte], characters[byte]);
  return characters;
}

}  // namespace trireme::data
