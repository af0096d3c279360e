// TokenCodec: word, byte and numeral vocabularies, and subword tokenizers.
#include "token_codec.hpp"

#include <fmt/format.h>
#include <locale.h>
#include <wctype.h>
#include <algorithm>

#include "trireme/base/error.hpp"
#include "trireme/base/utf8.hpp"
#include "words.hpp"

namespace trireme::data {

std::string LowerCased(std::string_view text) {
  static const locale_t locale =
      newlocale(LC_CTYPE_MASK, "C.UTF-8", static_cast<locale_t>(nullptr));
  if (locale == nullptr) {
    throw RunError("tokenize.lowercase: this system has no C.UTF-8 locale",
                   "Lower the text before, or install the locale.");
  }
  std::string lower;
  lower.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const auto point = static_cast<wint_t>(NextCodePoint(text, at));
    AppendUtf8(static_cast<char32_t>(towlower_l(point, locale)), lower);
  }
  return lower;
}

Vocabulary ByteVocabulary() {
  Vocabulary vocabulary{.words = {}, .eos = '\n', .unk = -1};
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.words.emplace_back(1, static_cast<char>(byte));
  }
  return vocabulary;
}

TokenCodec::TokenCodec(Vocabulary vocabulary, std::string tokenizer, std::string path, Files files)
    : vocabulary_(std::move(vocabulary)),
      kind_(std::move(tokenizer)),
      path_(std::move(path)),
      eos_(static_cast<std::int32_t>(vocabulary_.eos)),
      files_(std::move(files)) {
  const std::vector<std::string>& words = vocabulary_.words;
  if (IsSubword(kind_)) return;
  if (kind_ == kByteTokenizer) {
    bytes_ = true;
    if (words == ByteVocabulary().words) return;
    throw InputError(path_ + ": /vocabulary/bytes: tokenizer 'byte' needs the 256 bytes in order");
  }
  if (kind_ == kNumeralsTokenizer) {
    pieces_ = true;
    for (const std::string& word : words) longest_ = std::max(longest_, word.size());
  } else if (kind_ == kLowercaseTokenizer) {
    lower_case_ = true;
    LowerCased("");  // throws on a system without the locale
  } else if (kind_ != kWordTokenizer && kind_ != kHarbourTokenizer) {
    throw InputError(fmt::format(
        "{}: attribute tokenizer: '{}' is none of '{}', '{}', '{}', '{}', '{}', '{}', '{}'", path_,
        kind_, kWordTokenizer, kLowercaseTokenizer, kByteTokenizer, kHarbourTokenizer,
        kNumeralsTokenizer, kBpeTokenizer, kSentencePieceTokenizer));
  }
  ids_.reserve(words.size());
  for (std::size_t id = 0; id < words.size(); ++id) {
    const auto [known, added] = ids_.emplace(words[id], static_cast<std::int32_t>(id));
    if (added) continue;
    throw InputError(fmt::format("{}: /vocabulary/bytes: words {} and {} are both '{}'", path_,
                                 known->second, id, words[id]));
  }
}

Tokenizer& TokenCodec::Subwords() const {
  if (!subwords_) {
    auto made = Make(files_, path_ + ": /tokenizer");
    if (made->VocabularySize() != VocabularySize()) {
      throw InputError(fmt::format("{}: /tokenizer has {} tokens, /vocabulary {}", path_,
                                   made->VocabularySize(), VocabularySize()));
    }
    subwords_ = std::move(made);
  }
  return *subwords_;
}

std::string TokenCodec::Piece(std::int32_t id) const {
  if (id >= 0 && id < VocabularySize()) return vocabulary_.words[static_cast<std::size_t>(id)];
  throw RunError(fmt::format("token id {} is not one of the {} words", id, VocabularySize()));
}

std::optional<std::int32_t> TokenCodec::Unk() const {
  if (vocabulary_.unk < 0) return std::nullopt;
  return static_cast<std::int32_t>(vocabulary_.unk);
}

std::int32_t TokenCodec::IdOfWord(std::string_view word) const {
  const auto found = ids_.find(word);
  if (found != ids_.end()) return found->second;
  if (const auto unk = Unk()) return *unk;
  throw InputError(fmt::format("'{}' is not in the vocabulary, which has no {}", word, kUnknown),
                   "Use words that occur in the corpus.");
}

// Takes the longest matching word at each place; a numeral has only one segmentation.
void TokenCodec::EncodePieces(std::string_view text, std::vector<std::int32_t>& ids) const {
  for (std::size_t at = 0; at < text.size();) {
    auto found = ids_.end();
    for (std::size_t length = std::min(longest_, text.size() - at); length > 0; --length) {
      found = ids_.find(text.substr(at, length));
      if (found != ids_.end() && found->second != eos_) break;
      found = ids_.end();
    }
    if (found == ids_.end()) {
      throw InputError(
          fmt::format("'{}' is not a numeral from byte {} on", text, at),
          "A source is as '<de> 342 117', '<en> einundzwanzig', '<digits> forty-two'.");
    }
    ids.push_back(found->second);
    at += found->first.size();
  }
}

void TokenCodec::Encode(std::string_view text, std::vector<std::int32_t>& ids) {
  if (bytes_) {
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return;
  }
  if (const std::size_t bad = FirstInvalidUtf8(text); bad != std::string_view::npos) {
    throw InputError(fmt::format("the text is not valid UTF-8 at byte offset {}", bad));
  }
  if (!files_.empty()) return Subwords().Encode(text, ids);
  if (pieces_) return EncodePieces(text, ids);
  std::string folded;
  if (lower_case_) text = folded = LowerCased(text);
  // Each line end within the text becomes <eos>; nothing ends the last line.
  bool first = true;
  ForEachLine(text, [&](std::string_view line) {
    if (!first) ids.push_back(eos_);
    first = false;
    ForEachWord(line, [&](std::string_view word) { ids.push_back(IdOfWord(word)); });
  });
}

std::string TokenCodec::Decode(std::span<const std::int32_t> ids) const {
  std::string text;
  bool line_start = true;
  for (const std::int32_t id : ids) {
    const std::string word = Piece(id);
    if (!files_.empty() || (pieces_ && id == eos_)) continue;
    const bool ends_line = !bytes_ && !pieces_ && id == eos_;
    if (!bytes_ && !pieces_ && !ends_line && !line_start) text += ' ';
    text += ends_line ? "\n" : word;
    line_start = ends_line;
  }
  return files_.empty() ? text : Subwords().Decode(ids);
}

}  // namespace trireme::data
