// Windows of a token file that is not in memory, by positioned reads.
#ifndef TRIREME_SRC_DATA_WINDOW_READER_HPP_
#define TRIREME_SRC_DATA_WINDOW_READER_HPP_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "document_reader.hpp"
#include "positioned_file.hpp"
#include "trireme/data/window.hpp"

namespace trireme::data {

class WindowReader {
 public:
  // Of a split. documents: whether windows have their beginnings, if the file knows them. The
  // layout and the file must outlive the reader.
  WindowReader(const TokenLayout& layout, const PositionedFile& file, Split split, bool documents);

  // Replaces `window` by tokens [begin, begin + count), and checks them. Reuses its memory. Throws
  // RunError for a bad element, else as PositionedFile::Read does.
  void Read(std::int64_t begin, std::int64_t count, Window& window);
  // Offsets of the beginnings of all documents, checked; empty without documents. Throws as Read.
  std::vector<std::int64_t> Documents() const;
  void RequireUnchanged() const { file_.RequireUnchanged(); }

 private:
  // Elements [begin, end) of an array, checked, at the front of the buffer.
  const void* Load(Array array, std::int64_t begin, std::int64_t end);

  const TokenLayout& layout_;
  const PositionedFile& file_;
  const Split split_;
  std::vector<std::byte> buffer_;
  std::optional<DocumentReader> documents_;
};

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_WINDOW_READER_HPP_
