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
  // Serial. Opens the file by itself unless it keeps the split in memory. `file` must outlive the
  // reader. Throws RunError for a file that has changed.
  SplitReader(const TokenFile& file, Split split);
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
  std::unique_ptr<WindowReader> reader_;  // null: from memory
};

}  // namespace trireme::data

#endif  // TRIREME_DATA_SPLIT_READER_HPP_
