// Added tokens: special and other tokens that are found in a text before it is cut into words.
#ifndef TRIREME_SRC_DATA_TOKENIZER_ADDED_TOKENS_HPP_
#define TRIREME_SRC_DATA_TOKENIZER_ADDED_TOKENS_HPP_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "bpe_definition.hpp"

namespace trireme::data {

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

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TOKENIZER_ADDED_TOKENS_HPP_
