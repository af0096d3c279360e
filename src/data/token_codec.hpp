// Text to ids and back, with the tokenizer that a token file names.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "trireme/data/token_file.hpp"
#include "trireme/data/tokenizer.hpp"

namespace trireme::data {

// Each code point replaced by its simple lower case in the C.UTF-8 locale. text: valid UTF-8.
// Throws RunError on a system without that locale.
std::string LowerCased(std::string_view text);

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

// Any tokenizer that a token file may name.
class TokenCodec : public Tokenizer {
 public:
  // tokenizer: a value of the attribute. files: of a subword tokenizer, which is only built when it
  // is first needed, since that takes a second. Throws InputError, naming `path`, for an unknown
  // tokenizer, a word that occurs twice, and a byte vocabulary other than the 256 bytes in order.
  TokenCodec(Vocabulary vocabulary, std::string tokenizer, std::string path, Files files = {});

  const char* Kind() const override { return kind_.c_str(); }
  const Files& Source() const override { return files_; }
  std::int64_t VocabularySize() const override { return std::ssize(vocabulary_.words); }
  std::string Piece(std::int32_t id) const override;
  std::optional<std::int32_t> Eos() const override { return static_cast<std::int32_t>(eos_); }
  std::optional<std::int32_t> Unk() const override;
  // Encode and Decode work as those of TokenFile, but without the template.
  void Encode(std::string_view text, std::vector<std::int32_t>& ids) override;
  void Template(std::vector<std::int32_t>& prefix,
                std::vector<std::int32_t>& suffix) const override {
    if (!files_.empty()) Subwords().Template(prefix, suffix);
  }
  std::string Decode(std::span<const std::int32_t> ids) const override;

 private:
  std::int32_t IdOfWord(std::string_view word) const;
  void EncodePieces(std::string_view text, std::vector<std::int32_t>& ids) const;
  Tokenizer& Subwords() const;

  Vocabulary vocabulary_;
  std::string kind_, path_;  // path: for messages
  std::int32_t eos_;
  Files files_;                                  // empty: not a subword tokenizer
  mutable std::unique_ptr<Tokenizer> subwords_;  // null until first needed
  bool bytes_ = false;
  bool pieces_ = false;      // numerals: words follow one another without blanks
  std::size_t longest_ = 0;  // bytes of the longest word (numerals)
  bool lower_case_ = false;  // fold texts to lower case
  std::unordered_map<std::string_view, std::int32_t> ids_;  // views of vocabulary_.words
};

}  // namespace trireme::data
