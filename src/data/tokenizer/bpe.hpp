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

// By byte: the printable character, in UTF-8, that stands for it in vocabularies (Radford et al.
// 2019, GPT-2's encoder).
std::array<std::string, 256> ByteAlphabet();

struct BpeVocabulary {
  std::unordered_map<std::string, std::int32_t> ids;        // by name, written in the byte alphabet
  std::vector<std::pair<std::string, std::string>> merges;  // in the order of their rank
  bool ignore_merges = false;  // a word that is an entry becomes one token, whatever the merges say
  std::int32_t unk = -1;       // for bytes without an entry; -1: none
  bool fuse_unk = false;       // several unk in a row become one
};

// A compiled pre-tokenization pattern of `tokenizers`, run by PCRE2 with Unicode's properties.
// Copies share the compiled code.
class Pattern {
 public:
  // Throws InputError naming `where` for an invalid expression, and for one that PCRE2 may
  // understand differently from `tokenizers`.
  Pattern(const std::string& expression, const std::string& where);

  const std::string& Expression() const { return expression_; }
  // Whether a match may depend on the text before it.
  bool LooksBehind() const { return looks_behind_; }

  // Working memory for one thread's searches, with any patterns.
  class Search {
   public:
    Search();
    ~Search();
    Search(const Search&) = delete;
    Search& operator=(const Search&) = delete;
    // Prepares for searches in `text` and parts of it.
    void Begin(std::string_view text);
    // First match in `text` (valid UTF-8) from byte `from` on, as [begin, end); both are
    // text.size() if there is none. Empty matches do not count. whatever_follows: only a match
    // counts that stays the first whatever text follows. Throws RunError if the search hits a
    // limit.
    std::pair<std::size_t, std::size_t> First(const Pattern& pattern, std::string_view text,
                                              std::size_t from, bool whatever_follows = false);

   private:
    struct State;
    std::unique_ptr<State> state_;
    bool late_ = false;  // the text has late characters (see pattern.cpp)
  };

 private:
  std::string expression_;
  // Compiled for texts without late characters, and for any text.
  std::shared_ptr<const pcre2_real_code_8> plain_, any_;
  bool looks_behind_ = false;
};

// A pattern that matches `literal` and nothing else.
std::string QuotePattern(const std::string& literal);

// A token that is searched for in the text before it is split into words.
struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool lstrip = false, rstrip = false;  // absorbs white space on that side
  bool normalized = false;              // searched for in the normalised text
};

// One step of pre-tokenization: splits each piece at the matches of a pattern.
struct PatternSplit {
  Pattern pattern;
  bool matches = true;  // keep the matches, each as a piece
  bool between = true;  // keep the texts between them
};

struct BpeDefinition {
  BpeVocabulary vocabulary;
  std::vector<AddedToken> added;
  std::vector<PatternSplit> splits;
  bool add_prefix_space = false;  // put a blank before a piece that does not begin with one
  // Index of the split before which the blank is put; the number of splits: after all.
  std::size_t prefix_space_before = 0;
  bool form_c = false;                       // normalise texts to form C
  std::vector<std::int32_t> prefix, suffix;  // ids that the template puts around one text
};

// GPT-2's pattern (Radford et al. 2019).
extern const char* const kGpt2Pattern;
// Whether the pattern is one of those known always to split between a letter and a blank after it.
bool CutsAtSpaces(const std::string& expression);

// Reads a tokenizer.json, or vocab.json and merges.txt. Throws InputError naming `where` and, by
// its JSON path, the component that is broken or not supported.
BpeDefinition ReadBpe(const Files& files, const std::string& where);

// Throws InputError naming `where` and the unsupported component.
std::unique_ptr<Tokenizer> MakeBpe(const Files& files, const std::string& where);

}  // namespace trireme::data
