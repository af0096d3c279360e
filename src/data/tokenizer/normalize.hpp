// Unicode normalisation of texts before they are cut, by ICU.
#ifndef TRIREME_SRC_DATA_TOKENIZER_NORMALIZE_HPP_
#define TRIREME_SRC_DATA_TOKENIZER_NORMALIZE_HPP_

#include <string>
#include <string_view>

namespace trireme::data {

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

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TOKENIZER_NORMALIZE_HPP_
