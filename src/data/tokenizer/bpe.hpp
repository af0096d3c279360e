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

struct pcre2_real_code_8;

namespace trireme::data {

// The printable character, in UTF-8, that stands for each byte in vocabularies (Radford et al.
// 2019, GPT-2's encoder).
std::array<std::string, 256> ByteAlphabet();

struct BpeVocabulary {
  std::unordered_map<std::string, std::int32_t> ids;        // by name, in the byte alphabet
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  bool ignore_merges = false;  // a word that is an entry is one token, whatever merges say
  std::int32_t unk = -1;       // stands for a byte without entry; -1: none
  bool fuse_unk = false;       // neighbours become one
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
    // text.size(). Empty matches do not count. whatever_follows: none, too, unless it stays the
    // first match whatever text follows. Throws RunError if the search hits a limit.
    std::pair<std::size_t, std::size_t> First(const Pattern& pattern, std::string_view text,
                                              std::size_t from, bool whatever_follows = false);

   private:
    struct State;
    std::unique_ptr<State> state_;
    bool late_ = false;  // the text has late characters
  };

 private:
  std::string expression_;
  // For texts without late characters, and for any.
  std::shared_ptr<const pcre2_real_code_8> plain_, any_;
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

// Throws InputError naming `where` and the component that is not supported.
std::unique_ptr<Tokenizer> MakeBpe(const Files& files, const std::string& where);

}  // namespace trireme::data
