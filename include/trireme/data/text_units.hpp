// Bytes, words and line ends of the text that tokens stand for: units in which losses of different
// tokenizers compare.
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
  std::int64_t unknown = 0;  // tokens <unk>, whose bytes are not those of the original
};

// White space of ASCII: blank, tab, line feed, vertical tab, form feed, carriage return.
inline constexpr std::string_view kWhiteSpace = " \t\n\v\f\r";

TextUnits UnitsOf(std::string_view text);

// Whether the file's tokens are words, and <eos> the end of a line.
bool IsWordLevel(const TokenFile& file);

// Units of tokens as their file's tokenizer decodes them. Word level: a word is its bytes and the
// blank before it, <eos> a line end of one byte. Subwords: <eos> and the tokens that the
// tokenizer's template puts around a document are no text, and end a word; a blank that the
// tokenizer puts before a document is none either.
class TextMeter {
 public:
  // Serial. Throws InputError for a broken /tokenizer.
  explicit TextMeter(const TokenFile& file);

  // Adds what token `id` adds to the text after token `previous`: a word that goes on counts where
  // it began. Ids are below the vocabulary.
  void Add(std::int32_t previous, std::int32_t id, TextUnits& units) const;

 private:
  // Of one token.
  struct Piece {
    std::int32_t bytes = 0, lines = 0;
    std::int32_t words = 0;  // begun in it, a first one at its first byte included
    std::int32_t extra = 0;  // of `bytes`: blanks that are left out where a document begins
    bool inside = false;     // the first byte belongs to a word
    bool breaks = false;     // nothing after it continues a word
    bool mark = false;       // no text
  };

  const Piece& Of(std::int32_t id) const { return pieces_[static_cast<std::size_t>(id)]; }
  void FillWords(const Vocabulary& vocabulary);
  void FillPieces(const TokenFile& file);

  std::vector<Piece> pieces_;  // by id
  std::int32_t unk_;
  bool words_ = false;  // word level
};

// Calls visit(offset in the split, token before, token) for the targets of a split that count, in
// order: all tokens but the first, those that the loss mask leaves out and, with document_mask,
// first tokens of documents. Serial; reads the split in pieces.
using VisitTarget = std::function<void(std::int64_t token, std::int32_t previous, std::int32_t id)>;
void VisitTargets(const TokenFile& file, Split split, bool document_mask, const VisitTarget& visit);

// The file of an evaluation's losses by document, HDF5.

// Of all documents of a split, in its order.
struct DocumentLosses {
  std::string group;                      // in the file: "/valid"
  std::vector<std::int64_t> first_token;  // offset in the split
  std::vector<std::int64_t> targets;      // counted ones
  std::vector<std::int64_t> bytes;        // of text, of these
  std::vector<double> nats;               // summed loss
};

// Writes a group per split with datasets of these names and `document`, their numbers from 0;
// texts: attributes of the file, name and value. Serial. The same bytes for the same values. By way
// of a temporary file, which takes the place of `path` when it is whole. Throws InputError if none
// can be made there, RunError for a full disk.
void WriteDocumentLosses(const std::string& path, const std::vector<DocumentLosses>& splits,
                         const std::vector<std::pair<std::string, std::string>>& texts);

}  // namespace trireme::data
