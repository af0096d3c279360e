// The wire format of protocol buffers, and the fields of sentencepiece_model.proto that count here.
#include "sentencepiece_facts.hpp"

#include <cstdint>
#include <optional>

namespace trireme::data {

namespace {

// A field of a message; bytes: of a text or a message within.
struct Field {
  std::uint64_t number = 0, value = 0;
  std::string_view bytes;
};

// Fields of a message, one after the other.
class Fields {
 public:
  explicit Fields(std::string_view message) : rest_(message) {}

  // Nothing at the end, and for what is not the format.
  std::optional<Field> Next() {
    Field field;
    const auto key = rest_.empty() ? std::nullopt : Varint();
    if (!key) return std::nullopt;
    field.number = *key >> 3U;
    const std::uint64_t kind = *key & 7U;
    std::optional<std::uint64_t> length;
    if (kind == 0) {
      const auto value = Varint();
      if (!value) return std::nullopt;
      field.value = *value;
      return field;
    }
    if (kind == 1) length = 8;
    if (kind == 2) length = Varint();
    if (kind == 5) length = 4;
    if (!length || *length > rest_.size()) return std::nullopt;
    field.bytes = rest_.substr(0, *length);
    rest_.remove_prefix(*length);
    return field;
  }

 private:
  std::optional<std::uint64_t> Varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= std::uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) return value;
    }
    return std::nullopt;
  }

  std::string_view rest_;
};

// Numbers of fields in sentencepiece_model.proto.
constexpr std::uint64_t kPieces = 1, kTrainer = 2, kNormalizer = 3;                 // ModelProto
constexpr std::uint64_t kModelType = 3, kBlankAsSuffix = 24;                        // TrainerSpec
constexpr std::uint64_t kCharsMap = 2, kDummyPrefix = 3, kRemove = 4, kEscape = 5;  // Normalizer
constexpr std::uint64_t kBpe = 2;                                                   // ModelType

// A blank after another character.
bool BlankInside(std::string_view piece) {
  while (piece.starts_with(kBlank)) piece.remove_prefix(kBlank.size());
  return piece.find(kBlank) != std::string_view::npos || piece.find(' ') != std::string_view::npos;
}

}  // namespace

SentencePieceFacts FactsOf(std::string_view model) {
  SentencePieceFacts facts;
  bool bpe = false, suffix = false, removes = true, escapes = true, maps = false;
  bool inside = false, blank = false;
  Fields fields(model);
  while (const auto field = fields.Next()) {
    Fields inner(field->bytes);
    while (const auto part = inner.Next()) {
      if (field->number == kPieces && part->number == 1) {
        inside = inside || BlankInside(part->bytes);
        blank = blank || part->bytes == kBlank;
      } else if (field->number == kTrainer) {
        if (part->number == kModelType) bpe = part->value == kBpe;
        if (part->number == kBlankAsSuffix) suffix = part->value != 0;
      } else if (field->number == kNormalizer) {
        if (part->number == kCharsMap) maps = !part->bytes.empty();
        if (part->number == kDummyPrefix) facts.blank_first = part->value != 0;
        if (part->number == kRemove) removes = part->value != 0;
        if (part->number == kEscape) escapes = part->value != 0;
      }
    }
  }
  facts.cuts_before_blanks = bpe && !suffix && !removes && escapes && !maps && !inside && blank;
  return facts;
}

}  // namespace trireme::data
