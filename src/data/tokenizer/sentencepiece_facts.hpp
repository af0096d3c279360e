// Facts of a SentencePiece model that the library does not tell, from the model's own bytes.
#ifndef TRIREME_SRC_DATA_TOKENIZER_SENTENCEPIECE_FACTS_HPP_
#define TRIREME_SRC_DATA_TOKENIZER_SENTENCEPIECE_FACTS_HPP_

#include <string>
#include <string_view>

namespace trireme::data {

inline constexpr std::string_view kBlank = "\xE2\x96\x81";  // U+2581, a blank within a piece

// Facts for cuts.
struct SentencePieceFacts {
  // A text may be cut before a blank between two other characters: the model is BPE, takes text as
  // it is, and no piece goes on with a blank after another character.
  bool cuts_before_blanks = false;
  bool blank_first = true;  // a blank is put before each text (add_dummy_prefix)
};

// `model`: a serialized ModelProto. What cannot be read gives no cuts.
SentencePieceFacts FactsOf(std::string_view model);

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TOKENIZER_SENTENCEPIECE_FACTS_HPP_
