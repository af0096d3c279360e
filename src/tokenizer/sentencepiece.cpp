// The Tokenizer of a SentencePiece model.
#include "sentencepiece.hpp"

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <charconv>
#include <utility>

#include "trireme/base/error.hpp"

namespace trireme::tokenizer {

namespace {

constexpr std::string_view kBlank = "\xE2\x96\x81";  // U+2581, a blank within a piece

// Model and file, shared by clones; read only after construction.
struct Model {
  ::sentencepiece::SentencePieceProcessor processor;
  Files files;
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
  // A model says nothing of tokens around a text.
  void Template(std::vector<std::int32_t>&, std::vector<std::int32_t>&) const override {}

  std::string Decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    const auto status = Processor().Decode(std::vector<int>(ids.begin(), ids.end()), &text);
    if (!status.ok()) throw RunError(fmt::format("SentencePiece: {}", status.message()));
    return text;
  }
  // Normalisation and pieces of several words may reach over any place.
  std::size_t SafeCut(std::string_view) const override { return 0; }

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

std::unique_ptr<Tokenizer> MakeSentencePiece(const Files& files, const std::string& where) {
  auto model = std::make_shared<Model>();
  const std::string& bytes = files.at(kSentencePieceFile);
  // The library takes some damaged files, and an empty one, for a model without pieces.
  const auto status = model->processor.LoadFromSerializedProto(bytes);
  if (!status.ok() || model->processor.GetPieceSize() == 0) {
    throw InputError(where + ": this is not a SentencePiece model",
                     status.ok() ? "It has no pieces." : status.message());
  }
  model->files = {{kSentencePieceFile, bytes}};
  return std::make_unique<SentencePiece>(std::move(model));
}

}  // namespace trireme::tokenizer
