// Ranges of a split read one after another, whether the file keeps it in memory or not.
#ifndef TRIREME_DATA_SPLIT_READER_HPP_
#define TRIREME_DATA_SPLIT_READER_HPP_

#include <cstdint>
#include <memory>
#include <vector>

#include "trireme/data/token_file.hpp"
#include "trireme/data/window.hpp"

namespace trireme::data {

class WindowReader;

class SplitReader {
 public:
  // Serial; of a stream, on ranks that read it. Opens the file by itself unless it is a stream,
  // keeps the split in memory or in a copy on the node. `file` must outlive the reader. Throws
  // InputError if another file has taken its name. documents: whether windows that are not in
  // memory have their beginnings.
  SplitReader(const TokenFile& file, Split split, bool documents = true);
  ~SplitReader();
  SplitReader(const SplitReader&) = delete;
  SplitReader& operator=(const SplitReader&) = delete;

  std::int64_t Size() const;  // tokens
  // Replaces `window` by tokens [begin, begin + count). Throws as class Windows does.
  void Read(std::int64_t begin, std::int64_t count, Window& window);
  // Offsets of the beginnings of all documents, ascending; empty without documents.
  std::vector<std::int64_t> Documents();

 private:
  const TokenFile& file_;
  const Split split_;
  std::unique_ptr<PositionedFile> opened_;  // null: from memory, or the stream's
  std::unique_ptr<WindowReader> reader_;    // null: from memory
};

// Fills window.counted by what counts as a target: what the loss mask leaves, and with
// document_mask no token that begins a document. A split's first token is no target either way.
void CountTargets(Window& window, bool document_mask);

}  // namespace trireme::data

#endif  // TRIREME_DATA_SPLIT_READER_HPP_
