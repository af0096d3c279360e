// Subword tokenizers, which turn text into ids and back: byte-level BPE (tokenizer.json, or
// vocab.json and merges.txt) and SentencePiece models.
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

// The files that define a tokenizer, contents by name, as a token file keeps them in /tokenizer:
// "tokenizer.json"; or "vocab.json" and "merges.txt"; or "tokenizer.model".
using Files = std::map<std::string, std::string>;

// Not thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual const char* Kind() const = 0;  // "bpe", "sentencepiece"
  virtual const Files& Source() const = 0;

  virtual std::int64_t VocabularySize() const = 0;  // all ids are below it
  // The bytes that an id stands for in a text; for a special token, its name; empty for an id
  // without a token.
  virtual std::string Piece(std::int32_t id) const = 0;
  // Id of a token by its name in the vocabulary ("<|endoftext|>", "</s>").
  virtual std::optional<std::int32_t> IdOf(std::string_view /*name*/) const { return {}; }
  // The token that ends a document, if the tokenizer names one.
  virtual std::optional<std::int32_t> Eos() const = 0;
  virtual std::optional<std::int32_t> Unk() const = 0;

  // Appends the ids of a text (valid UTF-8), without the template's tokens around it.
  virtual void Encode(std::string_view text, std::vector<std::int32_t>& ids) = 0;
  // The same for the part of a text after a SafeCut: appends the ids that it has in the whole text.
  virtual void EncodeRest(std::string_view text, std::vector<std::int32_t>& ids) {
    Encode(text, ids);
  }
  // Appends to `prefix` and `suffix` what the tokenizer's template puts around one text.
  virtual void Template(std::vector<std::int32_t>& /*prefix*/,
                        std::vector<std::int32_t>& /*suffix*/) const {}
  // Decodes ids to bytes, which need not be valid UTF-8 (a token may be half a character).
  virtual std::string Decode(std::span<const std::int32_t> ids) const = 0;
  // The largest offset < text.size() at which a long text may be cut, whatever follows it: Encode
  // of the first part and EncodeRest of the second give the ids of the whole. 0: no such offset
  // known.
  virtual std::size_t SafeCut(std::string_view /*text*/) const { return 0; }
};

enum class TokenizerKind { kBpe, kSentencePiece };

// Reads the files at `path`: a tokenizer.json, or a folder with it or with vocab.json and
// merges.txt; for kSentencePiece a model file, or a folder with a tokenizer.model. Serial. Throws
// InputError naming the file.
Files ReadFiles(const std::string& path, TokenizerKind kind);

// Builds a tokenizer. where: path of the files or of the token file, for messages. Throws
// InputError naming `where` and the unsupported component.
std::unique_ptr<Tokenizer> Make(const Files& files, const std::string& where);

enum class ModelType { kBpe, kUnigram };

// Upper limit of a sentence in training, in bytes.
inline constexpr std::size_t kLongestSentence = 4192;

// Trains a SentencePiece model (Kudo and Richardson 2018, arXiv:1808.06226) on sentences of valid
// UTF-8. vocabulary: number of tokens, including single bytes, <unk>, <s> and </s>. Text is neither
// normalised nor stripped of blanks; equal sentences give an equal model. Serial. Throws
// InputError, which names no key, if the sentences do not yield such a model.
Files TrainSentencePiece(const std::vector<std::string>& sentences, ModelType type,
                         std::int64_t vocabulary);

}  // namespace trireme::data
