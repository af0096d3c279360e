// Windows of tokens in an order that is known before: from memory, or read ahead from the files.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/data/token_file.hpp"

namespace trireme::data {

// Corpus: the token files that training takes windows from, one or those of a mixture.

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

// The windows of a turn: from a corpus in memory, or from a buffer.
class Turn {
 public:
  Turn() = default;
  // buffer: the windows of the samples; there may be more.
  Turn(std::span<const Sample> samples, std::span<const Window> buffer)
      : samples_(samples), buffer_(buffer.first(samples.size())) {}
  // documents: whether windows have the beginnings of their documents.
  Turn(std::span<const Sample> samples, const Corpus& corpus, Split split, bool documents = true)
      : samples_(samples), corpus_(corpus), split_(split), documents_(documents) {}

  std::span<const Sample> Samples() const { return samples_; }
  std::span<const Window> Buffer() const { return buffer_; }
  WindowView operator[](std::size_t i) const {
    if (!corpus_) return buffer_[i];
    const Sample& sample = samples_[i];
    return corpus_->Of(sample.source).View(split_, sample.start, sample.targets + 1, documents_);
  }
  // Windows [part.begin, part.end) of it.
  Turn Of(const Part& part) const {
    Turn some = *this;
    const auto begin = static_cast<std::size_t>(part.begin);
    const auto count = static_cast<std::size_t>(part.Size());
    some.samples_ = samples_.subspan(begin, count);
    if (!corpus_) some.buffer_ = buffer_.subspan(begin, count);
    return some;
  }

 private:
  std::span<const Sample> samples_;
  std::span<const Window> buffer_;
  std::optional<Corpus> corpus_;  // none: from the buffer
  Split split_ = Split::kTrain;
  bool documents_ = true;
};

class Windows {
 public:
  // Replaces `samples` by the windows of a turn; false: there is no such turn. A pure function,
  // called by a thread of this object's.
  using Turns = std::function<bool(std::int64_t turn, std::vector<Sample>& samples)>;

  // replica: ranks that take the same windows in the same turns, of which the first one reads. It
  // and the files of `corpus`, all in memory or none, must outlive the object. documents: windows
  // of a stream have those of the file; without, they are not read.
  Windows(const Corpus& corpus, Split split, const comm::Communicator& replica, Turns turns,
          bool documents = true);
  ~Windows();
  Windows(const Windows&) = delete;
  Windows& operator=(const Windows&) = delete;

  // The windows of a turn, as `turns` gives them; valid until the next call. Collective over the
  // replica if the files are streamed; the turns that follow are then read on a thread, as many as
  // data.read_ahead says. None if they cannot be read: see Failed.
  Turn Take(std::int64_t turn);
  // Whether windows could not be read, once and for all; the same on all ranks of the replica. The
  // ranks of other replicas do not know it: they have to agree.
  bool Failed() const { return failed_; }
  // If it failed, throws on the rank that reads: RunError naming file, dataset and offset of a bad
  // element, or the file that has changed or cannot be read.
  void RequireRead() const {
    if (failure_) std::rethrow_exception(failure_);
  }
  // Drops what was read ahead, and calls `change`, after which `turns` may answer otherwise.
  void Change(const std::function<void()>& change);

 private:
  class Reader;

  Turn Read(std::int64_t turn);  // on the rank that reads
  std::size_t PackedSize(std::span<const Sample> samples) const;

  const Corpus corpus_;
  const Split split_;
  const comm::Communicator& replica_;
  const Turns turns_;
  const bool documents_;
  bool failed_ = false;
  std::exception_ptr failure_;      // on the rank that reads
  std::unique_ptr<Reader> reader_;  // on the replica's first rank, if the files are streamed
  std::vector<Sample> samples_;
  std::vector<Window> windows_;  // of the turn, on ranks that get them from the one that reads
  std::vector<std::int32_t> packed_;
};

// Sizes of a stream's windows, and the rank that has them.
struct StreamSizes {
  std::int64_t read_ahead = 0;  // turns
  std::int64_t windows = 0;     // of a turn
  std::int64_t tokens = 0;      // of a window, with the last target
  std::int64_t files = 1;
  bool documents = false, masks = false;
  bool reads = true;    // the first rank of its replica
  bool passes = false;  // the replica has other ranks
};
// Bytes that an object of class Windows takes for them.
std::int64_t StreamBytes(const StreamSizes& sizes);

// Internal.
class TokenArrays;
class DocumentIndex;
enum class Array;

// Ranges of a split read one after another, whether they lie in memory, in the token file or in a
// copy on the node.
class TokenReader {
 public:
  // Serial; of a stream, on ranks that read it. Opens the file by itself unless it is a stream,
  // keeps the split in memory or in a copy on the node. `file` must outlive the reader. Throws
  // InputError if another file has taken its name. documents: whether windows have the beginnings
  // of their documents.
  TokenReader(const TokenFile& file, Split split, bool documents = true);
  ~TokenReader();
  TokenReader(TokenReader&&) noexcept;

  std::int64_t Size() const { return file_.Size(split_); }  // tokens
  // Tokens [begin, begin + count): in memory, or else in `window`, whose memory is reused. Throws
  // RunError for a bad element, and if the file cannot be read.
  WindowView Read(std::int64_t begin, std::int64_t count, Window& window);
  // Reads the tokens at which documents [first, first + begins.size()) begin. Throws as Read.
  void ReadBeginnings(std::int64_t first, std::span<std::int64_t> begins) const;
  // Reads those of all documents, ascending; there are none if the file does not know them.
  std::vector<std::int64_t> Documents() const;
  // Throws RunError if the file was written to since it was opened.
  void RequireUnchanged() const;

 private:
  // Elements [begin, end) of an array of the file, checked, at the front of the buffer.
  const void* Load(Array array, std::int64_t begin, std::int64_t end);

  const TokenFile& file_;
  const Split split_;
  const bool with_documents_;
  std::unique_ptr<TokenArrays> own_;     // null: from memory, or the stream's
  const TokenArrays* arrays_ = nullptr;  // null: from memory
  std::vector<std::byte> buffer_;
  std::unique_ptr<DocumentIndex> documents_;  // null: windows have none, or memory has them
};

// Calls visit(i, begins, counts) for the tokens of a window until it returns false: whether token i
// begins a document, and whether it counts as a target: the loss mask leaves it and, with
// document_mask, it begins no document. A split's first token is no target either way.
template <typename Visit>
void VisitTokens(const WindowView& window, bool document_mask, Visit visit) {
  auto next = window.documents.begin();
  for (std::int64_t i = 0; i < window.size; ++i) {
    const bool begins = next != window.documents.end() && *next - window.origin == i;
    if (begins) ++next;
    const bool masked = !window.counted.empty() && window.counted[static_cast<std::size_t>(i)] == 0;
    if (!visit(i, begins, !masked && !(document_mask && begins))) return;
  }
}

}  // namespace trireme::data
