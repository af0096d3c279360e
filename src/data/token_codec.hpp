// Text <-> ids by the tokenizer that a token file names.
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

// Each code point's simple lower case, as the C.UTF-8 locale has it. `text` must be valid.
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

// Values of a token file's attribute `tokenizer`.
inline constexpr const char* kWordTokenizer = "word";
inline constexpr const char* kLowercaseTokenizer = "word lowercase";
inline constexpr const char* kByteTokenizer = "byte";
inline constexpr const char* kHarbourTokenizer = "harbour";
inline constexpr const char* kNumeralsTokenizer = "numerals";
inline constexpr const char* kBpeTokenizer = "bpe";
inline constexpr const char* kSentencePieceTokenizer = "sentencepiece";

// True for tokenizers whose files are kept in /tokenizer.
inline bool IsSubword(const std::string& tokenizer) {
  return tokenizer == kBpeTokenizer || tokenizer == kSentencePieceTokenizer;
}

Vocabulary ByteVocabulary();  // the 256 bytes; "\n" is eos

class TokenCodec {
 public:
  // Throws InputError, naming `path`, for an unknown tokenizer, a word that occurs twice, or a byte
  // vocabulary other than the 256 bytes in order. files: of a subword tokenizer, which is made at
  // the first text: to read its tables takes a second.
  TokenCodec(const Vocabulary& vocabulary, const std::string& tokenizer, const std::string& path,
             Files files = {});

  // Same as TokenFile::Encode and Decode. By one thread at a time.
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
  Files files_;                                  // empty: no subwords
  mutable std::unique_ptr<Tokenizer> subwords_;  // null until it is needed
  bool bytes_ = false;
  bool pieces_ = false;      // numerals: texts are words without anything between them
  std::size_t longest_ = 0;  // bytes of a word
  std::unique_ptr<const LowerCase> lower_case_;             // null: case is kept
  std::unordered_map<std::string_view, std::int32_t> ids_;  // of words_
};

}  // namespace trireme::data
