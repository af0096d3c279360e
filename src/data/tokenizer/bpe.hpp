// Byte-level BPE: tokenizer.json, or vocab.json and merges.txt.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trireme/data/tokenizer.hpp"

namespace trireme::data {

// Byte alphabet of byte-level BPE: each byte has a printable character that stands for it in
// vocabularies (Radford et al. 2019, GPT-2's encoder).

// Of each byte its character, in UTF-8.
std::array<std::string, 256> ByteAlphabet();

// Bytes that the characters of a vocabulary's entry stand for; none if one of them stands for none.
std::optional<std::string> BytesOf(std::string_view entry);

// Byte-pair encoding of one word (Sennrich et al. 2016): tables, and the merging of their symbols.

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

// Pre-tokenization patterns: regular expressions of tokenizers by PCRE2, with Unicode's properties.

// A compiled pattern; copies share it.
class Pattern {
 public:
  // Throws InputError naming `where` for what is no expression, or one that PCRE2 may understand
  // otherwise than `tokenizers`.
  Pattern(const std::string& expression, const std::string& where);

  const std::string& Expression() const { return expression_; }
  // True if a match may depend on the text before it.
  bool LooksBehind() const { return looks_behind_; }

  // Memory of one thread's searches with any patterns.
  class Search {
   public:
    Search();
    ~Search();
    Search(const Search&) = delete;
    Search& operator=(const Search&) = delete;
    // Prepares for searches in `text` and parts of it.
    void Begin(std::string_view text);
    // First match in `text`, valid UTF-8, from byte `from` on, as [begin, end); none: both are
    // text.size(). Empty matches do not count. Throws RunError if the search hits a limit.
    std::pair<std::size_t, std::size_t> First(const Pattern& pattern, std::string_view text,
                                              std::size_t from);
    // The same, if it stays the first match whatever text follows; else both are text.size().
    std::pair<std::size_t, std::size_t> FirstWhateverFollows(const Pattern& pattern,
                                                             std::string_view text,
                                                             std::size_t from);

   private:
    struct State;
    std::pair<std::size_t, std::size_t> Find(const Pattern& pattern, std::string_view text,
                                             std::size_t from, std::uint32_t options);

    std::unique_ptr<State> state_;
    bool late_ = false;  // the text has late characters
  };

 private:
  struct Code;
  std::string expression_;
  std::shared_ptr<const Code> code_;
  bool looks_behind_ = false;
};

// The pattern that matches `literal` alone.
std::string QuotePattern(const std::string& literal);

// Definition of a byte-level BPE tokenizer, as its files state it.

// A token that is found in the text before anything else.
struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool lstrip = false, rstrip = false;  // takes the white space beside it
  bool normalized = false;              // looked for in the normalised text
};

// One step of pre-tokenization: each piece is cut at the pattern's matches.
struct PatternSplit {
  Pattern pattern;
  bool matches = true;  // matches are kept, each a piece
  bool between = true;  // the texts between them are kept
};

struct BpeDefinition {
  BpeVocabulary vocabulary;
  std::vector<AddedToken> added;
  std::vector<PatternSplit> splits;
  bool add_prefix_space = false;             // to a piece that does not begin with a blank
  std::size_t prefix_space_before = 0;       // place in `splits`; their number: after them
  bool form_c = false;                       // texts are normalised
  std::vector<std::int32_t> prefix, suffix;  // of the template around one text
};

// GPT-2's pattern (Radford et al. 2019).
extern const char* const kGpt2Pattern;
// True if any cut between an ASCII letter and white space after it is one of the pattern's own.
bool CutsAtSpaces(const std::string& expression);

// From tokenizer.json, or vocab.json and merges.txt. Throws InputError naming `where` and the
// component that is broken or not supported, by its JSON path.
BpeDefinition ReadBpe(const Files& files, const std::string& where);

// Added tokens: special and other tokens that are found in a text before it is cut into words.

// Beginning of the white space that ends at `end`, at `from` at the earliest.
std::size_t BeforeSpaces(std::string_view text, std::size_t from, std::size_t end);

class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);

  struct Found {
    std::size_t begin = 0, end = 0;  // bytes of the text, with the white space that it takes
    std::size_t next = 0;            // end of its own bytes: the next token may begin there
    std::int32_t id = -1;            // -1: none; all are the text's end
  };
  // The leftmost token of text[from, ...), and of several that begin there the longest. White space
  // before `free` is not taken.
  Found First(std::string_view text, std::size_t from, std::size_t free) const;

  std::size_t Longest() const { return tokens_.empty() ? 0 : tokens_.front().content.size(); }
  bool TakeSpaceBefore() const { return take_before_; }  // some of them

 private:
  std::vector<AddedToken> tokens_;  // longest first
  bool take_before_ = false;
  std::array<std::vector<std::size_t>, 256> at_;  // places in tokens_ by the first byte
};

// Cuts of long texts, found by the steps of byte-level BPE themselves.

// Added tokens by the text in which they are found.
struct AddedLists {
  AddedTokens raw, normalized;
};

// Largest place behind the text's last certain word or added token, whatever follows the text; 0:
// none is known. The first pattern's words are searched from the last added token on, so that it
// takes as long as pre-tokenization.
std::size_t CertainCut(std::string_view text, const BpeDefinition& definition,
                       const AddedLists& added, Pattern::Search& search);

// Unicode normalisation of texts before they are cut, by ICU.

// Form C of valid UTF-8 (Unicode Standard Annex 15), by the tables of Unicode 9, those of Hugging
// Face's `tokenizers`: newer characters stay as they are. Returns `text` itself if it has the form,
// else a view of `room`.
std::string_view NormalizeC(std::string_view text, std::string& room);

// Whether the last character of valid UTF-8 is a letter (general category L) of Unicode 9, which
// every later version has as a letter, too.
bool EndsWithLetter(std::string_view text);

// Largest offset in a text before its end such that normalisation changes nothing across it,
// whatever follows; 0: none.
std::size_t LastBoundaryC(std::string_view text);

// Throws InputError naming `where` and the component that is not supported.
std::unique_ptr<Tokenizer> MakeBpe(const Files& files, const std::string& where);

}  // namespace trireme::data
