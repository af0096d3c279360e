// Added tokens, found by their first byte.
#include "added_tokens.hpp"

#include <algorithm>

#include "byte_alphabet.hpp"

namespace trireme::data {

namespace {

// Unicode's White_Space.
bool IsSpace(char32_t code) {
  return (code >= 9 && code <= 13) || code == 0x20 || code == 0x85 || code == 0xa0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 ||
         code == 0x202f || code == 0x205f || code == 0x3000;
}

// End of the white space that begins at `from`.
std::size_t AfterSpaces(std::string_view text, std::size_t from) {
  while (from < text.size()) {
    std::size_t next = from;
    if (!IsSpace(NextCodePoint(text, next))) break;
    from = next;
  }
  return from;
}

}  // namespace

std::size_t BeforeSpaces(std::string_view text, std::size_t from, std::size_t end) {
  while (end > from) {
    std::size_t begin = end - 1;
    while (begin > from && (text[begin] & 0xc0) == 0x80) --begin;
    std::size_t next = begin;
    if (!IsSpace(NextCodePoint(text, next))) break;
    end = begin;
  }
  return end;
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::stable_sort(tokens_.begin(), tokens_.end(), [](const AddedToken& a, const AddedToken& b) {
    return a.content.size() > b.content.size();
  });
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    at_[static_cast<unsigned char>(tokens_[i].content.front())].push_back(i);
    take_before_ = take_before_ || tokens_[i].lstrip;
  }
}

AddedTokens::Found AddedTokens::First(std::string_view text, std::size_t from,
                                      std::size_t free) const {
  const Found none{text.size(), text.size(), text.size(), -1};
  if (tokens_.empty()) return none;
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    for (const std::size_t place : at_[static_cast<unsigned char>(text[begin])]) {
      const AddedToken& token = tokens_[place];
      if (text.compare(begin, token.content.size(), token.content) != 0) continue;
      const std::size_t end = begin + token.content.size();
      return {token.lstrip ? std::max(BeforeSpaces(text, 0, begin), free) : begin,
              token.rstrip ? AfterSpaces(text, end) : end, end, token.id};
    }
  }
  return none;
}

}  // namespace trireme::data
