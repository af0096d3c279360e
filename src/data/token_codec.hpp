// Text to ids and back, with the tokenizer that a token file names.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "trireme/data/token_file.hpp"
#include "trireme/data/tokenizer.hpp"

namespace trireme::data {

// Replaces each code point by its simple lower case in the C.UTF-8 locale. Text: valid UTF-8.
class LowerCase {
 public:
  LowerCase();  // throws RunError on a system without the C.UTF-8 locale
  ~LowerCase();
  LowerCase(const LowerCase&) = delete;
  LowerCase& operator=(const LowerCase&) = delete;

  std::string operator()(std::string_view text) const;

 private:
  void* locale_ = nullptr;  // a locale_t
};

// Values of the attribute `tokenizer` in a token file.
inline constexpr const char* kWordTokenizer = "word";
inline constexpr const char* kLowercaseTokenizer = "word lowercase";
inline constexpr const char* kByteTokenizer = "byte";
inline constexpr const char* kHarbourTokenizer = "harbour";
inline constexpr const char* kNumeralsTokenizer = "numerals";
inline constexpr const char* kBpeTokenizer = "bpe";
inline constexpr const char* kSentencePieceTokenizer = "sentencepiece";

// Whether it is a subword tokenizer, whose files the token file keeps in /tokenizer.
inline bool IsSubword(const std::string& tokenizer) {
  return tokenizer == kBpeTokenizer || tokenizer == kSentencePieceTokenizer;
}

Vocabulary ByteVocabulary();  // the 256 byte values; eos is "\n"

class TokenCodec {
 public:
  // files: of a subword tokenizer, which is only built at the first text, since that takes a
  // second. Throws InputError, naming `path`, for an unknown tokenizer, a word that occurs twice,
  // and a byte vocabulary other than the 256 bytes in order.
  TokenCodec(const Vocabulary& vocabulary, const std::string& tokenizer, const std::string& path,
             Files files = {});

  // As TokenFile::Encode and Decode. Not thread-safe.
  std::vector<std::int32_t> Encode(std::string_view text) const;
  std::string Decode(const std::vector<std::int32_t>& ids) const;

 private:
  void Index(const std::string& path);
  void CheckId(std::int32_t id) const;
  std::int32_t IdOf(std::string_view word) const;
  std::vector<std::int32_t> EncodePieces(std::string_view text) const;

  Tokenizer& Subwords() const;

  std::vector<std::string> words_;
  std::int32_t eos_, unk_;
  std::string path_;                             // for messages
  Files files_;                                  // empty: not a subword tokenizer
  mutable std::unique_ptr<Tokenizer> subwords_;  // null until first needed
  bool bytes_ = false;
  bool pieces_ = false;      // numerals: words follow one another without blanks
  std::size_t longest_ = 0;  // bytes of the longest word (numerals)
  std::unique_ptr<const LowerCase> lower_case_;             // null: keep case
  std::unordered_map<std::string_view, std::int32_t> ids_;  // views of words_
};

}  // namespace trireme::data
