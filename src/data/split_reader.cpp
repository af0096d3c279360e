// SplitReader: positioned reads, or the tokens in memory.
#include "trireme/data/split_reader.hpp"

#include <algorithm>

#include "window_reader.hpp"

namespace trireme::data {

SplitReader::SplitReader(const TokenFile& file, Split split) : file_(file), split_(split) {
  if (file.Keeps(split)) return;
  reader_ = std::make_unique<WindowReader>(file.Path(), file.Layout());
}

SplitReader::~SplitReader() = default;

std::int64_t SplitReader::Size() const { return file_.Size(split_); }

void SplitReader::Read(std::int64_t begin, std::int64_t count, Window& window) {
  if (!reader_) return file_.Read(split_, begin, count, window);
  reader_->Read(split_, begin, count, window);
  reader_->RequireUnchanged();
}

std::vector<std::int64_t> SplitReader::Documents() {
  std::vector<std::int64_t> documents;
  if (!file_.HasDocuments(split_)) return documents;
  if (reader_) return reader_->Documents(split_);
  Window all;
  Read(0, Size(), all);
  return all.documents;
}

}  // namespace trireme::data
