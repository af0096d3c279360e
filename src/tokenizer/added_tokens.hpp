// Added tokens: special and other tokens that are found in a text before it is cut into words.
#ifndef TRIREME_SRC_TOKENIZER_ADDED_TOKENS_HPP_
#define TRIREME_SRC_TOKENIZER_ADDED_TOKENS_HPP_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "bpe_definition.hpp"

namespace trireme::tokenizer {

class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);

  struct Found {
    std::size_t begin = 0, end = 0;  // bytes of the text
    std::int32_t id = -1;            // -1: none; both are the text's end
  };
  // The leftmost token of text[from, ...), and of several that begin there the longest. The white
  // space that it takes is part of it.
  Found First(std::string_view text, std::size_t from) const;

 private:
  std::vector<AddedToken> tokens_;                // longest first
  std::array<std::vector<std::size_t>, 256> at_;  // places in tokens_ by the first byte
};

}  // namespace trireme::tokenizer

#endif  // TRIREME_SRC_TOKENIZER_ADDED_TOKENS_HPP_
