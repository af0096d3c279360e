// Definition of a byte-level BPE tokenizer, as its files state it.
#ifndef TRIREME_SRC_DATA_TOKENIZER_BPE_DEFINITION_HPP_
#define TRIREME_SRC_DATA_TOKENIZER_BPE_DEFINITION_HPP_

#include <cstdint>
#include <string>
#include <vector>

#include "bpe_model.hpp"
#include "pattern.hpp"
#include "trireme/data/tokenizer.hpp"

namespace trireme::data {

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

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TOKENIZER_BPE_DEFINITION_HPP_
