// SplitReader: positioned reads, or the tokens in memory.
#include "trireme/data/split_reader.hpp"

#include <algorithm>

#include "positioned_file.hpp"
#include "window_reader.hpp"

namespace trireme::data {

SplitReader::SplitReader(const TokenFile& file, Split split, bool documents)
    : file_(file), split_(split) {
  if (file.Keeps(split)) return;
  if (!file.OpenedHolds(split)) {
    opened_ = std::make_unique<PositionedFile>(file.Path(), file.Layout());
  }
  reader_ = std::make_unique<WindowReader>(file.Layout(), opened_ ? *opened_ : file.Opened(), split,
                                           documents);
}

SplitReader::~SplitReader() = default;

std::int64_t SplitReader::Size() const { return file_.Size(split_); }

void SplitReader::Read(std::int64_t begin, std::int64_t count, Window& window) {
  if (!reader_) return file_.Read(split_, begin, count, window);
  reader_->Read(begin, count, window);
  reader_->RequireUnchanged();
}

std::vector<std::int64_t> SplitReader::Documents() {
  std::vector<std::int64_t> documents;
  if (!file_.HasDocuments(split_)) return documents;
  if (reader_) return reader_->Documents();
  Window all;
  Read(0, Size(), all);
  return all.documents;
}

void CountTargets(Window& window, bool document_mask) {
  if (window.counted.empty()) window.counted.assign(window.ids.size(), 1);
  if (!document_mask) return;
  for (const std::int64_t first : window.documents) {
    window.counted[static_cast<std::size_t>(first)] = 0;
  }
}

}  // namespace trireme::data
