// Counts of the bytes, words and lines that tokens stand for. Losses per such unit can be compared
// across tokenizers.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/data/token_file.hpp"

namespace trireme::data {

struct TextUnits {
  std::int64_t bytes = 0;    // UTF-8
  std::int64_t words = 0;    // separated by white space
  std::int64_t lines = 0;    // line ends
  std::int64_t unknown = 0;  // <unk> tokens, whose original bytes are lost
};

// ASCII white space: blank, tab, line feed, vertical tab, form feed, carriage return.
inline constexpr std::string_view kWhiteSpace = " \t\n\v\f\r";

TextUnits UnitsOf(std::string_view text);

// Whether the file's tokens are words, with <eos> as the end of a line.
bool IsWordLevel(const TokenFile& file);

// Counts the units of tokens as the file's tokenizer decodes them. Word level: a word counts as its
// bytes plus the blank before it, <eos> as a line end of one byte. Subwords: <eos> and the tokens
// of the tokenizer's template around a document count as no text, but end a word; a blank that the
// tokenizer adds before a document does not count either.
class TextMeter {
 public:
  // Serial. Throws InputError if /tokenizer in the file is broken.
  explicit TextMeter(const TokenFile& file);

  // Adds to `units` what token `id` contributes when it follows token `previous`. A word is counted
  // in the token in which it begins. Ids are below the vocabulary size.
  void Add(std::int32_t previous, std::int32_t id, TextUnits& units) const;

 private:
  // What one token contributes.
  struct Piece {
    std::int32_t bytes = 0, lines = 0;
    std::int32_t words = 0;  // words that begin in it, counting one at its first byte
    std::int32_t extra = 0;  // blanks among `bytes` that are dropped at the start of a document
    bool inside = false;     // its first byte is part of a word
    bool breaks = false;     // a word cannot continue after it
    bool mark = false;       // no text (<eos>, template tokens)
  };

  const Piece& Of(std::int32_t id) const { return pieces_[static_cast<std::size_t>(id)]; }
  void FillWords(const Vocabulary& vocabulary);
  void FillPieces(const TokenFile& file);

  std::vector<Piece> pieces_;  // by id
  std::int32_t unk_;
  bool words_ = false;  // word level
};

// Calls visit(offset in the split, previous token, token) for the targets that count, in order.
// These are all tokens except the first, those that the loss mask excludes and, with document_mask,
// the first token of each document. Serial; reads the split piece by piece.
using VisitTarget = std::function<void(std::int64_t token, std::int32_t previous, std::int32_t id)>;
void VisitTargets(const TokenFile& file, Split split, bool document_mask, const VisitTarget& visit);

// Losses of all documents of a split, in their order; written to an HDF5 file.
struct DocumentLosses {
  std::string group;                      // name in the file: "/valid"
  std::vector<std::int64_t> first_token;  // offset in the split
  std::vector<std::int64_t> targets;      // that count
  std::vector<std::int64_t> bytes;        // text bytes of those targets
  std::vector<double> nats;               // loss, summed over them
};

// Writes one group per split with the datasets above plus `document`, numbered from 0. texts: names
// and values of the file's attributes. Serial; equal values give equal bytes. Writes a temporary
// file first and renames it to `path`. Throws InputError if that cannot be created, RunError if the
// disk is full.
void WriteDocumentLosses(const std::string& path, const std::vector<DocumentLosses>& splits,
                         const std::vector<std::pair<std::string, std::string>>& texts);

}  // namespace trireme::data
