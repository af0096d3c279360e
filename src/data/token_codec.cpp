// TokenCodec: word, byte and numeral vocabularies, and subword tokenizers.
#include "token_codec.hpp"

#include <fmt/format.h>
#include <locale.h>
#include <wctype.h>
#include <algorithm>
#include <iterator>

#include "trireme/base/error.hpp"
#include "trireme/base/utf8.hpp"
#include "words.hpp"

namespace trireme::data {

LowerCase::LowerCase()
    : locale_(newlocale(LC_CTYPE_MASK, "C.UTF-8", static_cast<locale_t>(nullptr))) {
  if (locale_ == nullptr) {
    throw RunError("tokenize.lowercase: this system has no C.UTF-8 locale",
                   "Lower the text before, or install the locale.");
  }
}

LowerCase::~LowerCase() { freelocale(static_cast<locale_t>(locale_)); }

std::string LowerCase::operator()(std::string_view text) const {
  std::string lower;
  lower.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const auto point = static_cast<wint_t>(NextCodePoint(text, at));
    AppendUtf8(static_cast<char32_t>(towlower_l(point, static_cast<locale_t>(locale_))), lower);
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

TokenCodec::TokenCodec(const Vocabulary& vocabulary, const std::string& tokenizer,
                       const std::string& path, Files files)
    : words_(vocabulary.words),
      eos_(static_cast<std::int32_t>(vocabulary.eos)),
      unk_(static_cast<std::int32_t>(vocabulary.unk)),
      path_(path),
      files_(std::move(files)) {
  if (IsSubword(tokenizer)) return;
  if (tokenizer == kByteTokenizer) {
    bytes_ = true;
    if (words_ == ByteVocabulary().words) return;
    throw InputError(path + ": /vocabulary/bytes: tokenizer 'byte' needs the 256 bytes in order");
  }
  if (tokenizer == kNumeralsTokenizer) {
    pieces_ = true;
    for (const std::string& word : words_) longest_ = std::max(longest_, word.size());
  } else if (tokenizer == kLowercaseTokenizer) {
    lower_case_ = std::make_unique<LowerCase>();
  } else if (tokenizer != kWordTokenizer && tokenizer != kHarbourTokenizer) {
    throw InputError(fmt::format(
        "{}: attribute tokenizer: '{}' is none of '{}', '{}', '{}', '{}', '{}', '{}', '{}'", path,
        tokenizer, kWordTokenizer, kLowercaseTokenizer, kByteTokenizer, kHarbourTokenizer,
        kNumeralsTokenizer, kBpeTokenizer, kSentencePieceTokenizer));
  }
  Index(path);
}

void TokenCodec::Index(const std::string& path) {
  ids_.reserve(words_.size());
  for (std::size_t id = 0; id < words_.size(); ++id) {
    const auto [known, added] = ids_.emplace(words_[id], static_cast<std::int32_t>(id));
    if (added) continue;
    throw InputError(fmt::format("{}: /vocabulary/bytes: words {} and {} are both '{}'", path,
                                 known->second, id, words_[id]));
  }
}

Tokenizer& TokenCodec::Subwords() const {
  if (!subwords_) {
    auto made = Make(files_, path_ + ": /tokenizer");
    if (made->VocabularySize() != std::ssize(words_)) {
      throw InputError(fmt::format("{}: /tokenizer has {} tokens, /vocabulary {}", path_,
                                   made->VocabularySize(), words_.size()));
    }
    subwords_ = std::move(made);
  }
  return *subwords_;
}

std::int32_t TokenCodec::IdOf(std::string_view word) const {
  const auto found = ids_.find(word);
  if (found != ids_.end()) return found->second;
  if (unk_ >= 0) return unk_;
  throw InputError(fmt::format("'{}' is not in the vocabulary, which has no {}", word, kUnknown),
                   "Use words that occur in the corpus.");
}

// Takes the longest matching word at each place; a numeral has only one segmentation.
std::vector<std::int32_t> TokenCodec::EncodePieces(std::string_view text) const {
  std::vector<std::int32_t> ids;
  for (std::size_t at = 0; at < text.size();) {
    auto found = ids_.end();
    for (std::size_t length = std::min(longest_, text.size() - at); length > 0; --length) {
      found = ids_.find(text.substr(at, length));
      if (found != ids_.end() && found->second != eos_) break;
      found = ids_.end();
    }
    if (found == ids_.end()) {
      throw InputError(
          fmt::format("'{}' is no numeral from byte {} on", text, at),
          "A source is as '<de> 342 117', '<en> einundzwanzig', '<digits> forty-two'.");
    }
    ids.push_back(found->second);
    at += found->first.size();
  }
  return ids;
}

std::vector<std::int32_t> TokenCodec::Encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  if (bytes_) {
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  if (const std::size_t bad = FirstInvalidUtf8(text); bad != std::string_view::npos) {
    throw InputError(fmt::format("the text is not valid UTF-8 at byte offset {}", bad));
  }
  if (!files_.empty()) {
    std::vector<std::int32_t> suffix;
    Subwords().Template(ids, suffix);
    Subwords().Encode(text, ids);
    return ids;
  }
  if (pieces_) return EncodePieces(text);
  const std::string folded = lower_case_ ? (*lower_case_)(text) : std::string(text);
  // Each line end within the text becomes <eos>; nothing ends the last line.
  bool first = true;
  ForEachLine(folded, [&](std::string_view line) {
    if (!first) ids.push_back(eos_);
    first = false;
    ForEachWord(line, [&](std::string_view word) { ids.push_back(IdOf(word)); });
  });
  return ids;
}

void TokenCodec::CheckId(std::int32_t id) const {
  if (id >= 0 && static_cast<std::size_t>(id) < words_.size()) return;
  throw RunError(fmt::format("token id {} is not one of the {} words", id, words_.size()));
}

std::string TokenCodec::Decode(const std::vector<std::int32_t>& ids) const {
  std::string text;
  if (!files_.empty()) {
    for (const std::int32_t id : ids) CheckId(id);
    return Subwords().Decode(ids);
  }
  bool line_start = true;
  for (const std::int32_t id : ids) {
    CheckId(id);
    if (pieces_) {
      if (id != eos_) text += words_[static_cast<std::size_t>(id)];
      continue;
    }
    if (!bytes_ && id == eos_) {
      text += '\n';
      line_start = true;
      continue;
    }
    if (!bytes_ && !line_start) text += ' ';
    text += words_[static_cast<std::size_t>(id)];
    line_start = false;
  }
  return text;
}

}  // namespace trireme::data
