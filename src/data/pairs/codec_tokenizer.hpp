// Word, byte and numeral vocabularies as tokenizers of single texts.
#ifndef TRIREME_SRC_DATA_PAIRS_CODEC_TOKENIZER_HPP_
#define TRIREME_SRC_DATA_PAIRS_CODEC_TOKENIZER_HPP_

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "token_codec.hpp"
#include "trireme/data/tokenizer.hpp"

namespace trireme::data {

class CodecTokenizer : public Tokenizer {
 public:
  // kind: as of the attribute `tokenizer`.
  CodecTokenizer(Vocabulary vocabulary, std::string kind)
      : vocabulary_(std::move(vocabulary)),
        kind_(std::move(kind)),
        codec_(vocabulary_, kind_, kind_) {}

  std::unique_ptr<Tokenizer> Clone() const override {
    return std::make_unique<CodecTokenizer>(vocabulary_, kind_);
  }
  const char* Kind() const override { return kind_.c_str(); }
  const Files& Source() const override { return none_; }
  std::int64_t VocabularySize() const override { return std::ssize(vocabulary_.words); }
  std::string Piece(std::int32_t id) const override {
    return vocabulary_.words.at(static_cast<std::size_t>(id));
  }
  std::optional<std::int32_t> IdOf(std::string_view) const override { return std::nullopt; }
  std::optional<std::int32_t> Eos() const override {
    return static_cast<std::int32_t>(vocabulary_.eos);
  }
  std::optional<std::int32_t> Unk() const override {
    if (vocabulary_.unk < 0) return std::nullopt;
    return static_cast<std::int32_t>(vocabulary_.unk);
  }
  void Encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    const std::vector<std::int32_t> more = codec_.Encode(text);
    ids.insert(ids.end(), more.begin(), more.end());
  }
  void Template(std::vector<std::int32_t>&, std::vector<std::int32_t>&) const override {}
  std::string Decode(std::span<const std::int32_t> ids) const override {
    return codec_.Decode({ids.begin(), ids.end()});
  }
  std::size_t SafeCut(std::string_view) const override { return 0; }

 private:
  Vocabulary vocabulary_;
  std::string kind_;
  TokenCodec codec_;
  Files none_;
};

// <eos>, <unk>, then words by falling number of occurrences, equal ones by their bytes; words that
// occur less than `least` times are left out.
Vocabulary RankedWords(const std::unordered_map<std::string, std::int64_t>& counts,
                       std::int64_t least);
Vocabulary ByteVocabulary();  // the 256 bytes; "\n" is eos

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_PAIRS_CODEC_TOKENIZER_HPP_
