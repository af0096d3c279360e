// Subword tokenizers: text to ids and back. Byte-level BPE from tokenizer.json, or from vocab.json
// and merges.txt; SentencePiece models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

// Files that define a tokenizer: contents by file name, as a token file keeps them in /tokenizer:
// "tokenizer.json"; or "vocab.json" and "merges.txt"; or "tokenizer.model".
using Files = std::map<std::string, std::string>;

// Used by one thread at a time.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual const char* Kind() const = 0;  // "bpe", "sentencepiece"
  virtual const Files& Source() const = 0;

  virtual std::int64_t VocabularySize() const = 0;  // ids are below
  // Bytes that an id stands for in a text; of a special token its name; empty for an id without
  // token.
  virtual std::string Piece(std::int32_t id) const = 0;
  // Id of a token by its name in the vocabulary ("<|endoftext|>", "</s>").
  virtual std::optional<std::int32_t> IdOf(std::string_view /*name*/) const { return {}; }
  // End of a document, where the tokenizer itself names one.
  virtual std::optional<std::int32_t> Eos() const = 0;
  virtual std::optional<std::int32_t> Unk() const = 0;

  // Appends the ids of a text, valid UTF-8, without tokens that a template puts around it.
  virtual void Encode(std::string_view text, std::vector<std::int32_t>& ids) = 0;
  // The same for a text that comes after a cut of SafeCut: the ids that it has in the whole.
  virtual void EncodeRest(std::string_view text, std::vector<std::int32_t>& ids) {
    Encode(text, ids);
  }
  // Appends to `prefix` and `suffix` what the tokenizer's template puts around one text.
  virtual void Template(std::vector<std::int32_t>& /*prefix*/,
                        std::vector<std::int32_t>& /*suffix*/) const {}
  // Text of ids. Bytes as they are: half of a character is not valid UTF-8.
  virtual std::string Decode(std::span<const std::int32_t> ids) const = 0;
  // Largest offset below text.size() at which a long text may be cut, whatever follows the text:
  // the ids of both parts, one after the other, are those of the whole, if EncodeRest encodes what
  // follows a cut. 0: none is known.
  virtual std::size_t SafeCut(std::string_view /*text*/) const { return 0; }
};

enum class TokenizerKind { kBpe, kSentencePiece };

// Reads a tokenizer.json or a folder with one, or with vocab.json and merges.txt; or a
// SentencePiece model, or a folder with a tokenizer.model. Serial. Throws InputError naming the
// file.
Files ReadFiles(const std::string& path, TokenizerKind kind);

// Throws InputError naming `where` (path of the files or of the token file) and the component that
// is not supported.
std::unique_ptr<Tokenizer> Make(const Files& files, const std::string& where);

// Training of SentencePiece models: Kudo and Richardson 2018, arXiv:1808.06226.

enum class ModelType { kBpe, kUnigram };

// Longest sentence that training takes, in bytes.
inline constexpr std::size_t kLongestSentence = 4192;

// Trains a model of `vocabulary` tokens, those for single bytes, <unk>, <s> and </s> among them, on
// sentences of valid UTF-8; the same sentences give the same bytes. Text stays as it is: no
// normalisation, no blanks removed. Serial. Throws InputError, without naming a key, if the
// sentences do not yield such a model.
Files TrainSentencePiece(const std::vector<std::string>& sentences, ModelType type,
                         std::int64_t vocabulary);

}  // namespace trireme::data
