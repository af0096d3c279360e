// Counts bytes, words and lines of text, token by token.
#include "trireme/data/text_units.hpp"

#include <algorithm>
#include <numeric>

#include "hdf5.hpp"
#include "token_codec.hpp"
#include "token_file_draft.hpp"
#include "token_layout.hpp"
#include "trireme/data/tokenizer.hpp"
#include "trireme/data/windows.hpp"

namespace trireme::data {

namespace {

constexpr std::int64_t kReadTokens = std::int64_t{1} << 16;  // tokens per read

bool IsWhite(char byte) { return kWhiteSpace.find(byte) != std::string_view::npos; }

}  // namespace

TextUnits UnitsOf(std::string_view text) {
  TextUnits units{.bytes = std::ssize(text)};
  bool before = true;  // previous byte is white space, or there is none
  for (const char byte : text) {
    const bool white = IsWhite(byte);
    if (before && !white) ++units.words;
    if (byte == '\n') ++units.lines;
    before = white;
  }
  return units;
}

bool IsWordLevel(const TokenFile& file) {
  return !IsSubword(file.Tokenizer()) && file.Tokenizer() != kByteTokenizer;
}

TextMeter::TextMeter(const TokenFile& file)
    : pieces_(file.Words().words.size()),
      unk_(static_cast<std::int32_t>(file.Words().unk)),
      words_(IsWordLevel(file)) {
  words_ ? FillWords(file.Words()) : FillPieces(file);
}

void TextMeter::FillWords(const Vocabulary& vocabulary) {
  for (std::size_t id = 0; id < pieces_.size(); ++id) {
    Piece& piece = pieces_[id];
    if (static_cast<std::int64_t>(id) == vocabulary.eos) {
      piece = {.bytes = 1, .lines = 1, .breaks = true};
    } else {
      piece = {.bytes = static_cast<std::int32_t>(vocabulary.words[id].size()), .words = 1};
    }
  }
}

void TextMeter::FillPieces(const TokenFile& file) {
  const Vocabulary& vocabulary = file.Words();
  for (std::size_t id = 0; id < pieces_.size(); ++id) {
    const std::string& text = vocabulary.words[id];
    const TextUnits units = UnitsOf(text);
    pieces_[id] = {.bytes = static_cast<std::int32_t>(units.bytes),
                   .lines = static_cast<std::int32_t>(units.lines),
                   .words = static_cast<std::int32_t>(units.words),
                   .inside = !text.empty() && !IsWhite(text.front()),
                   .breaks = text.empty() || IsWhite(text.back())};
  }
  if (!IsSubword(file.Tokenizer())) return;
  const auto tokenizer = Make(file.Layout().tokenizer_files, file.Path());
  std::vector<std::int32_t> marks, suffix;
  tokenizer->Template(marks, suffix);
  marks.insert(marks.end(), suffix.begin(), suffix.end());
  marks.push_back(static_cast<std::int32_t>(vocabulary.eos));
  for (const std::int32_t id : marks) {
    pieces_.at(static_cast<std::size_t>(id)) = {.breaks = true, .mark = true};
  }
  for (std::size_t id = 0; id < pieces_.size(); ++id) {
    const std::string& text = vocabulary.words[id];
    if (pieces_[id].mark || !text.starts_with(' ')) continue;
    const auto token = static_cast<std::int32_t>(id);
    const auto shown = static_cast<std::int32_t>(tokenizer->Decode({&token, 1}).size());
    pieces_[id].extra = std::max(0, pieces_[id].bytes - shown);
  }
}

void TextMeter::Add(std::int32_t previous, std::int32_t id, TextUnits& units) const {
  const Piece& piece = Of(id);
  const Piece& before = Of(previous);
  units.unknown += id == unk_ ? 1 : 0;
  units.bytes += piece.bytes;
  units.lines += piece.lines;
  units.words += piece.words;
  if (words_) {
    units.bytes += piece.words == 1 && !before.breaks ? 1 : 0;
    return;
  }
  if (before.mark) units.bytes -= piece.extra;
  if (piece.inside && !before.breaks) --units.words;
}

void VisitTargets(const TokenFile& file, Split split, bool document_mask,
                  const VisitTarget& visit) {
  TokenReader reader(file, split, document_mask);
  Window window;
  for (std::int64_t at = 1; at < reader.Size(); at += kReadTokens) {
    const std::int64_t count = std::min(kReadTokens, reader.Size() - at);
    const WindowView piece = reader.Read(at - 1, count + 1, window);
    reader.RequireUnchanged();
    VisitTokens(piece, document_mask, [&](std::int64_t i, bool, bool counts) {
      if (i > 0 && counts) visit(at + i - 1, piece.Id(i - 1), piece.Id(i));
      return true;
    });
  }
}

void WriteDocumentLosses(const std::string& path, const std::vector<DocumentLosses>& splits,
                         const std::vector<std::pair<std::string, std::string>>& texts) {
  constexpr std::int64_t kFormat = 1;
  constexpr std::size_t kArrays = 5;
  std::size_t rows = 0, longest = 0;
  for (const DocumentLosses& split : splits) {
    rows += split.nats.size();
    longest = std::max(longest, split.nats.size());
  }
  std::vector<std::int64_t> numbers(longest);
  std::iota(numbers.begin(), numbers.end(), 0);
  const QuietHdf5 quiet;
  TokenFileDraft draft(path, "evaluate.documents");
  draft.Reserve(rows * kArrays * sizeof(double) + (splits.size() + 1) * kHdf5MetadataBytes, false);
  Hdf5Writer file(draft.Path());
  file.Attribute("format", kFormat);
  for (const auto& [name, value] : texts) file.Attribute(name.c_str(), value);
  for (const DocumentLosses& split : splits) {
    const auto plan = [&](const char* name, const std::vector<std::int64_t>& values) {
      file.Plan(split.group + "/" + name, H5T_STD_U64LE, H5T_NATIVE_INT64, split.nats.size(),
                values.data());
    };
    plan("document", numbers);
    plan("first_token", split.first_token);
    plan("targets", split.targets);
    plan("bytes", split.bytes);
    file.Plan(split.group + "/nats", H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, split.nats.size(),
              split.nats.data());
  }
  draft.Reserve(file.Bytes(), true);
  file.WriteAndClose();
  draft.Sync();
  draft.Place();
}

}  // namespace trireme::data
