// Windows of a token file that is not in memory, by positioned reads.
#ifndef TRIREME_SRC_DATA_WINDOW_READER_HPP_
#define TRIREME_SRC_DATA_WINDOW_READER_HPP_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "positioned_file.hpp"
#include "trireme/data/window.hpp"

namespace trireme::data {

class WindowReader {
 public:
  // Opens the file; `path` and `layout` must outlive the reader. Throws as PositionedFile does.
  WindowReader(const std::string& path, const TokenLayout& layout);

  // Replaces `window` by tokens [begin, begin + count) of a split, and checks them. Reuses its
  // memory. Throws InputError for a bad element, else as PositionedFile::Read does.
  void Read(Split split, std::int64_t begin, std::int64_t count, Window& window);
  // Offsets of the beginnings of the split's documents, checked.
  std::vector<std::int64_t> Documents(Split split);
  void RequireUnchanged() const { file_.RequireUnchanged(); }

 private:
  // Elements [begin, end) of an array, checked, at the front of the buffer.
  const void* Load(Split split, Array array, std::int64_t begin, std::int64_t end);
  // Offset in the documents of the first that begins at token `token` or after it.
  std::int64_t FirstDocumentFrom(Split split, std::int64_t token);
  void ReadDocuments(Split split, std::int64_t begin, std::int64_t end, Window& window);

  const std::string& path_;
  const TokenLayout& layout_;
  PositionedFile file_;
  std::vector<std::byte> buffer_;
};

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_WINDOW_READER_HPP_
