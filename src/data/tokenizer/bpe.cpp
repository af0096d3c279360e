// Byte-level BPE: added tokens are found, the rest is normalised, cut into words by patterns, and
// each word's bytes are merged, as Hugging Face's `tokenizers` does it.
#include "bpe.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "bpe_cut.hpp"
#include "bpe_definition.hpp"
#include "byte_alphabet.hpp"
#include "normalize.hpp"
#include "trireme/base/error.hpp"
#include "word_cache.hpp"

namespace trireme::data {

namespace {

// Characters that end a word of letters in all patterns of safe cuts, and compose with none: blank,
// end of line, and the stops and commas of Chinese and Japanese texts.
constexpr std::array<std::string_view, 7> kAfterLetters = {" ", "\n", "。", "、", "，", "！", "？"};

// Names of the end of a document in the vocabularies of GPT-2, Qwen, Llama 3 and others.
constexpr std::array kEnds = {"<|endoftext|>", "<|end_of_text|>", "</s>"};

// All clones share it; never changed.
struct Tables {
  Tables(const Files& source, const std::string& where)
      : files(source), definition(ReadBpe(source, where)), model(definition.vocabulary, where) {
    std::int64_t size = 0;
    for (const auto& [name, id] : definition.vocabulary.ids) {
      size = std::max<std::int64_t>(size, id + 1);
    }
    for (const AddedToken& token : definition.added) {
      size = std::max<std::int64_t>(size, token.id + 1);
    }
    pieces.resize(static_cast<std::size_t>(size));
    for (const auto& [name, id] : definition.vocabulary.ids) {
      pieces[static_cast<std::size_t>(id)] = BytesOf(name).value_or(name);
    }
    std::vector<AddedToken> first, second;
    for (const AddedToken& token : definition.added) {
      pieces[static_cast<std::size_t>(token.id)] = token.content;
      if (!token.normalized) {
        first.push_back(token);
        continue;
      }
      second.push_back(token);
      if (definition.form_c) {
        std::string room;
        second.back().content = NormalizeC(token.content, room);
      }
    }
    added = {AddedTokens(std::move(first)), AddedTokens(std::move(second))};
    safe_cuts = definition.splits.size() == 1 && !definition.add_prefix_space &&
                CutsAtSpaces(definition.splits.front().pattern.Expression()) &&
                std::none_of(definition.added.begin(), definition.added.end(), SpansCut);
  }

  // True for a token that may span a cut after a letter.
  static bool SpansCut(const AddedToken& token) {
    return token.lstrip || (token.rstrip && EndsWithLetter(token.content)) ||
           std::any_of(kAfterLetters.begin(), kAfterLetters.end(), [&](std::string_view mark) {
             return token.content.find(mark) != std::string::npos;
           });
  }

  Files files;
  BpeDefinition definition;
  BpeModel model;
  std::vector<std::string> pieces;  // by id
  AddedLists added;
  bool safe_cuts = false;  // letters end words
};

class Bpe : public Tokenizer {
 public:
  explicit Bpe(std::shared_ptr<const Tables> tables)
      : tables_(std::move(tables)), prefixed_(tables_->definition.splits.size() + 1) {}

  std::unique_ptr<Tokenizer> Clone() const override { return std::make_unique<Bpe>(tables_); }
  const char* Kind() const override { return "bpe"; }
  const Files& Source() const override { return tables_->files; }
  std::int64_t VocabularySize() const override { return std::ssize(tables_->pieces); }

  std::string Piece(std::int32_t id) const override {
    return id < 0 || id >= VocabularySize() ? "" : tables_->pieces[static_cast<std::size_t>(id)];
  }

  std::optional<std::int32_t> IdOf(std::string_view name) const override {
    for (const AddedToken& token : tables_->definition.added) {
      if (token.content == name) return token.id;
    }
    const auto& ids = tables_->definition.vocabulary.ids;
    const auto found = ids.find(std::string(name));
    return found == ids.end() ? std::nullopt : std::optional(found->second);
  }

  std::optional<std::int32_t> Eos() const override {
    for (const char* name : kEnds) {
      if (const auto id = IdOf(name)) return id;
    }
    return std::nullopt;
  }

  std::optional<std::int32_t> Unk() const override {
    const std::int32_t unk = tables_->definition.vocabulary.unk;
    return unk < 0 ? std::nullopt : std::optional(unk);
  }

  void Encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    search_.Begin(text);
    Around(tables_->added.raw, text, ids, [&](std::string_view part) {
      if (tables_->definition.form_c) part = NormalizeC(part, room_);
      Around(tables_->added.normalized, part, ids,
             [&](std::string_view rest) { Cut(rest, 0, ids); });
    });
  }

  void Template(std::vector<std::int32_t>& prefix,
                std::vector<std::int32_t>& suffix) const override {
    const BpeDefinition& definition = tables_->definition;
    prefix.insert(prefix.end(), definition.prefix.begin(), definition.prefix.end());
    suffix.insert(suffix.end(), definition.suffix.begin(), definition.suffix.end());
  }

  std::string Decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids) text += Piece(id);
    return text;
  }

  std::size_t SafeCut(std::string_view text) const override {
    for (std::size_t cut = tables_->safe_cuts ? text.size() : 0; cut-- > 1;) {
      const std::string_view rest = text.substr(cut);
      const bool marked =
          std::any_of(kAfterLetters.begin(), kAfterLetters.end(),
                      [rest](std::string_view mark) { return rest.starts_with(mark); });
      if (marked && EndsWithLetter(text.substr(0, cut))) return cut;
    }
    return CertainCut(text, tables_->definition, tables_->added, search_);
  }

 private:
  // Appends the added tokens of a text, and gives `body` what lies between them.
  template <typename Body>
  static void Around(const AddedTokens& added, std::string_view text,
                     std::vector<std::int32_t>& ids, const Body& body) {
    std::size_t from = 0;
    for (std::size_t next = 0;;) {
      const AddedTokens::Found found = added.First(text, next, from);
      if (found.begin > from) body(text.substr(from, found.begin - from));
      if (found.id < 0) return;
      next = found.next;
      // White space that a token has taken may hold other tokens, which count once more, unless
      // they take the white space before them, too: nothing is left of those.
      if (found.begin >= found.end) continue;
      ids.push_back(found.id);
      from = found.end;
    }
  }

  // Appends the ids of a piece, from step number `step` of pre-tokenization on.
  void Cut(std::string_view piece, std::size_t step, std::vector<std::int32_t>& ids) {
    const BpeDefinition& definition = tables_->definition;
    if (definition.add_prefix_space && step == definition.prefix_space_before &&
        !piece.starts_with(' ')) {
      prefixed_[step] = ' ';
      prefixed_[step] += piece;
      piece = prefixed_[step];
    }
    if (step == definition.splits.size()) return EncodeWord(piece, ids);
    const PatternSplit& split = definition.splits[step];
    for (std::size_t from = 0; from < piece.size();) {
      const auto [begin, end] = search_.First(split.pattern, piece, from);
      if (begin > from && split.between) Cut(piece.substr(from, begin - from), step + 1, ids);
      if (end > begin && split.matches) Cut(piece.substr(begin, end - begin), step + 1, ids);
      from = end;
    }
  }

  void EncodeWord(std::string_view word, std::vector<std::int32_t>& ids) {
    if (cache_.Find(word, ids)) return;
    const auto before = static_cast<std::ptrdiff_t>(ids.size());
    tables_->model.Encode(word, scratch_, ids);
    cache_.Add(word, std::span(ids.begin() + before, ids.end()));
  }

  std::shared_ptr<const Tables> tables_;
  mutable Pattern::Search search_;
  BpeModel::Scratch scratch_;
  WordCache cache_;
  std::string room_;                   // of the normalised text
  std::vector<std::string> prefixed_;  // by step
};

}  // namespace

std::unique_ptr<Tokenizer> MakeBpe(const Files& files, const std::string& where) {
  return std::make_unique<Bpe>(std::make_shared<const Tables>(files, where));
}

}  // namespace trireme::data
