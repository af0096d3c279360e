// Corpus: the token files that training takes windows from, one or those of a mixture.
#ifndef TRIREME_DATA_CORPUS_HPP_
#define TRIREME_DATA_CORPUS_HPP_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "trireme/data/token_file.hpp"

namespace trireme::data {

// A view: the files must outlive it, at the same addresses.
class Corpus {
 public:
  // One file, which may be passed where a corpus is expected.
  Corpus(const TokenFile& file) : files_(&file, 1) {}
  // In the order of data.mixture; at least one.
  explicit Corpus(std::span<const TokenFile> files) : files_(files) {}

  std::int64_t Size() const { return std::ssize(files_); }
  // Of Sample::source.
  const TokenFile& Of(int source) const { return files_[static_cast<std::size_t>(source)]; }
  // True if the split of any file says which targets count.
  bool HasMask(Split split) const {
    return std::any_of(files_.begin(), files_.end(),
                       [&](const TokenFile& file) { return file.HasMask(split); });
  }
  // True if the split of any file says where documents begin.
  bool HasDocuments(Split split) const {
    return std::any_of(files_.begin(), files_.end(),
                       [&](const TokenFile& file) { return file.HasDocuments(split); });
  }
  // Gives the vocabulary, the valid and the test split.
  const TokenFile& First() const { return files_.front(); }

 private:
  std::span<const TokenFile> files_;
};

}  // namespace trireme::data

#endif  // TRIREME_DATA_CORPUS_HPP_
