// The Tokenizer of a SentencePiece model.
#include "sentencepiece.hpp"

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <charconv>
#include <utility>

#include "sentencepiece_facts.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {

namespace {

// Model and file, shared by clones; read only after construction.
struct Model {
  ::sentencepiece::SentencePieceProcessor processor;
  Files files;
  SentencePieceFacts facts;
};

std::string WithBlanks(std::string_view piece) {
  std::string text;
  while (!piece.empty()) {
    const std::size_t at = piece.find(kBlank);
    text += piece.substr(0, at);
    if (at == std::string_view::npos) break;
    text += ' ';
    piece.remove_prefix(at + kBlank.size());
  }
  return text;
}

class SentencePiece : public Tokenizer {
 public:
  explicit SentencePiece(std::shared_ptr<const Model> model) : model_(std::move(model)) {}

  std::unique_ptr<Tokenizer> Clone() const override {
    return std::make_unique<SentencePiece>(model_);
  }
  const char* Kind() const override { return "sentencepiece"; }
  const Files& Source() const override { return model_->files; }
  std::int64_t VocabularySize() const override { return Processor().GetPieceSize(); }

  std::string Piece(std::int32_t id) const override {
    const std::string& piece = Processor().IdToPiece(id);
    if (Processor().IsByte(id)) return std::string(1, ByteOf(piece));
    if (Processor().IsControl(id) || Processor().IsUnknown(id) || Processor().IsUnused(id)) {
      return piece;
    }
    return WithBlanks(piece);
  }

  std::optional<std::int32_t> IdOf(std::string_view name) const override {
    const int id = Processor().PieceToId(name);
    // The library answers <unk> for what it does not know.
    if (Processor().IdToPiece(id) != name) return std::nullopt;
    return id;
  }
  std::optional<std::int32_t> Eos() const override { return Known(Processor().eos_id()); }
  std::optional<std::int32_t> Unk() const override { return Known(Processor().unk_id()); }

  void Encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    const auto status = Processor().Encode(text, &found_);
    if (!status.ok()) throw RunError(fmt::format("SentencePiece: {}", status.message()));
    ids.insert(ids.end(), found_.begin(), found_.end());
  }
  // The blank before which a text was cut is the one that the library puts there.
  void EncodeRest(std::string_view text, std::vector<std::int32_t>& ids) override {
    Encode(model_->facts.blank_first && text.starts_with(' ') ? text.substr(1) : text, ids);
  }
  // A model says nothing of tokens around a text.
  void Template(std::vector<std::int32_t>&, std::vector<std::int32_t>&) const override {}

  std::string Decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    const auto status = Processor().Decode(std::vector<int>(ids.begin(), ids.end()), &text);
    if (!status.ok()) throw RunError(fmt::format("SentencePiece: {}", status.message()));
    return text;
  }
  // Else normalisation and pieces of several words may reach over any place.
  std::size_t SafeCut(std::string_view text) const override {
    if (!model_->facts.cuts_before_blanks || text.size() < 3) return 0;
    const auto is_blank = [&](std::size_t at) { return text[at] == ' '; };
    for (std::size_t cut = text.size() - 1; --cut > 0;) {
      if (!is_blank(cut) || is_blank(cut - 1) || is_blank(cut + 1)) continue;
      if (text.substr(0, cut).ends_with(kBlank) || text.substr(cut + 1).starts_with(kBlank)) {
        continue;
      }
      // Half a character may be the beginning of U+2581.
      if (text.size() - cut - 1 < kBlank.size() && kBlank.starts_with(text.substr(cut + 1)))
        continue;
      return cut;
    }
    return 0;
  }

 private:
  const ::sentencepiece::SentencePieceProcessor& Processor() const { return model_->processor; }

  static std::optional<std::int32_t> Known(int id) {
    return id < 0 ? std::nullopt : std::optional<std::int32_t>(id);
  }
  // Of a piece "<0xAB>".
  static char ByteOf(const std::string& piece) {
    unsigned value = 0;
    if (piece.size() == 6) std::from_chars(piece.data() + 3, piece.data() + 5, value, 16);
    return static_cast<char>(value);
  }

  std::shared_ptr<const Model> model_;
  std::vector<int> found_;  // room
};

}  // namespace

namespace {

// A line a token: base64, a blank, its number.
bool IsTiktoken(std::string_view bytes) {
  const std::string_view line = bytes.substr(0, bytes.find('\n'));
  const std::size_t blank = line.find(' ');
  if (blank == 0 || blank == std::string_view::npos || blank + 1 == line.size()) return false;
  constexpr std::string_view kDigits = "0123456789";
  constexpr std::string_view kBase64 =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=";
  return line.substr(0, blank).find_first_not_of(kBase64) == std::string_view::npos &&
         line.substr(blank + 1).find_first_not_of(kDigits) == std::string_view::npos;
}

}  // namespace

std::unique_ptr<Tokenizer> MakeSentencePiece(const Files& files, const std::string& where) {
  auto model = std::make_shared<Model>();
  const std::string& bytes = files.at(kSentencePieceFile);
  // The library takes some damaged files, and an empty one, for a model without pieces.
  const auto status = model->processor.LoadFromSerializedProto(bytes);
  if (IsTiktoken(bytes)) {
    throw InputError(
        where + ": this is a file of tiktoken (Llama 3's, for one), not a SentencePiece model",
        "tokenize.kind = bpe reads the tokenizer.json that is published with it.");
  }
  if (!status.ok() || model->processor.GetPieceSize() == 0) {
    throw InputError(where + ": this is not a SentencePiece model",
                     status.ok() ? "It has no pieces." : status.message());
  }
  model->files = {{kSentencePieceFile, bytes}};
  model->facts = FactsOf(bytes);
  return std::make_unique<SentencePiece>(std::move(model));
}

}  // namespace trireme::data
