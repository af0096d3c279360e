// The documents of a unit: files, lines, paragraphs or records, handed on piece by piece.
#ifndef TRIREME_SRC_DATA_TEXT_DOCUMENTS_HPP_
#define TRIREME_SRC_DATA_TEXT_DOCUMENTS_HPP_

#include <cstdint>
#include <functional>
#include <string_view>

#include "text_source.hpp"
#include "trireme/data/options.hpp"
#include "units.hpp"

namespace trireme::data {

// Takes documents. One of which no byte comes is none.
class DocumentSink {
 public:
  virtual ~DocumentSink() = default;
  // The next piece of the document; `offset`: of the piece in its file's text.
  virtual void Text(std::string_view piece, std::int64_t offset) = 0;
  virtual void End() = 0;  // of the document
};

// Takes records: documents with a text before their own, which may be empty and opens the document.
class RecordSink : public DocumentSink {
 public:
  virtual void Prompt(std::string_view text, std::int64_t offset) = 0;
};

// Called about every MiB with the bytes of the unit that are done; may throw.
using UnitProgress = std::function<void(std::int64_t)>;

// Hands the unit's documents to `sink`. A plain text's byte order mark is dropped. A document of
// lines or paragraphs is without the end of its last line; a record of JSON lines is its line.
void ForEachDocument(const TextFile& file, const TextUnit& unit, DocumentEnd document,
                     DocumentSink& sink, const UnitProgress& progress);

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TEXT_DOCUMENTS_HPP_
