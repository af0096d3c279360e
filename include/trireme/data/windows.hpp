// Token windows in an order known in advance, taken from memory or read ahead from the files; and
// Entry: windows side by side, padded to one length, as a training step consumes them.
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

#include "trireme/base/partition.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/data/token_file.hpp"

namespace trireme::data {

// The token files that training takes windows from: one, or those of a mixture. A view: the files
// must outlive it and must not move.
class Corpus {
 public:
  // A single file; implicit, so that a file can be passed as a corpus.
  Corpus(const TokenFile& file) : files_(&file, 1) {}
  // The files of data.mixture, in its order; at least one.
  explicit Corpus(std::span<const TokenFile> files) : files_(files) {}

  std::int64_t Size() const { return std::ssize(files_); }
  // The file with index `source`, as in Sample::source.
  const TokenFile& Of(int source) const { return files_[static_cast<std::size_t>(source)]; }
  // Whether any file has a loss mask for the split.
  bool HasMask(Split split) const { return Any(&TokenFile::HasMask, split); }
  // Whether any file knows the split's document boundaries.
  bool HasDocuments(Split split) const { return Any(&TokenFile::HasDocuments, split); }
  // The file that supplies vocabulary, valid and test split.
  const TokenFile& First() const { return files_.front(); }

 private:
  bool Any(bool (TokenFile::*has)(Split) const, Split split) const {
    return std::any_of(files_.begin(), files_.end(),
                       [&](const TokenFile& file) { return (file.*has)(split); });
  }

  std::span<const TokenFile> files_;
};

// The windows that one turn consumes, taken from a corpus in memory or from a buffer.
class Turn {
 public:
  Turn() = default;
  // buffer: holds the samples' windows first; anything after them is ignored.
  Turn(std::span<const Sample> samples, std::span<const Window> buffer)
      : samples_(samples), buffer_(buffer.first(samples.size())) {}
  // documents: whether windows say where documents begin.
  Turn(std::span<const Sample> samples, const Corpus& corpus, Split split, bool documents = true)
      : samples_(samples), corpus_(corpus), split_(split), documents_(documents) {}

  std::span<const Sample> Samples() const { return samples_; }
  std::span<const Window> Buffer() const { return buffer_; }
  WindowView operator[](std::size_t i) const {
    if (!corpus_) return buffer_[i];
    const Sample& sample = samples_[i];
    return corpus_->Of(sample.source).View(split_, sample.start, sample.targets + 1, documents_);
  }
  // The part [part.begin, part.end) of these windows.
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
  std::optional<Corpus> corpus_;  // nullopt: windows are in the buffer
  Split split_ = Split::kTrain;
  bool documents_ = true;
};

class Windows {
 public:
  // Replaces `samples` by those of a turn; false: there is no such turn. Must be a pure function: a
  // thread of this object calls it.
  using Turns = std::function<bool(std::int64_t turn, std::vector<Sample>& samples)>;

  // replica: ranks that take the same windows in the same turns, the first of which reads. The
  // files of `corpus` are all in memory or all streamed; they and `replica` must outlive the
  // object. documents: whether windows of a stream say where documents begin; otherwise that is not
  // read.
  Windows(const Corpus& corpus, Split split, const comm::Communicator& replica, Turns turns,
          bool documents = true);
  ~Windows();
  Windows(const Windows&) = delete;
  Windows& operator=(const Windows&) = delete;

  // The windows of a turn, in the order of its samples; valid until the next call. If the files are
  // streamed: collective over the replica, and a thread then reads the next turns, up to
  // data.read_ahead. No windows if reading failed: see Failed.
  Turn Take(std::int64_t turn);
  // Whether reading has failed, which is final. The replica's ranks all know; other replicas do
  // not, so the ranks have to agree.
  bool Failed() const { return failed_; }
  // After a failure, throws on the rank that reads: RunError naming file, dataset and offset of a
  // bad element, or a file that has changed or is unreadable.
  void RequireRead() const {
    if (failure_) std::rethrow_exception(failure_);
  }
  // Discards what was read ahead and calls `change`, which may alter what `turns` returns.
  void Change(const std::function<void()>& change);

 private:
  class Reader;

  Turn Read(std::int64_t turn);  // only on the rank that reads

  const Corpus corpus_;
  const Split split_;
  const comm::Communicator& replica_;
  const Turns turns_;
  const bool documents_;
  bool failed_ = false;
  std::exception_ptr failure_;  // only on the rank that reads
  // On the replica's first rank, if the files are streamed; otherwise null.
  std::unique_ptr<Reader> reader_;
  std::vector<Sample> samples_;
  std::vector<Window> windows_;  // those of the turn, on ranks that receive them from the reader
  std::vector<std::int32_t> packed_;
};

// Sizes of a stream's windows, and this rank's role.
struct StreamSizes {
  std::int64_t read_ahead = 0;  // turns
  std::int64_t windows = 0;     // per turn
  std::int64_t tokens = 0;      // per window, including the last target
  std::int64_t files = 1;
  bool documents = false, masks = false;
  bool reads = true;    // this is the first rank of its replica
  bool passes = false;  // the replica has other ranks
};
// Bytes of memory that an object of class Windows needs for them.
std::int64_t StreamBytes(const StreamSizes& sizes);

// Internal.
class TokenArrays;
class DocumentIndex;
struct Elements;
enum class Array;

// Reads ranges of a split one after another, wherever it lies: in memory, in the token file, or in
// a copy on the node.
class TokenReader {
 public:
  // Opens the file anew unless the split is in memory, streamed, or in a copy on the node. `file`
  // must outlive the reader. documents: whether windows say where documents begin. Serial; if the
  // file is streamed, only on ranks that read it. Throws InputError if another file has taken its
  // name.
  TokenReader(const TokenFile& file, Split split, bool documents = true);
  ~TokenReader();
  TokenReader(TokenReader&&) noexcept;

  std::int64_t Size() const { return file_.Size(split_); }  // tokens
  // Tokens [begin, begin + count): a view of memory, or of `window`, which is filled and whose
  // memory is reused. Throws RunError for a bad element and if the file cannot be read.
  WindowView Read(std::int64_t begin, std::int64_t count, Window& window);
  // Fills in the offsets at which documents first, first + 1, ... begin. Throws as Read does.
  void ReadBeginnings(std::int64_t first, std::span<std::int64_t> begins) const;
  // Offsets at which all documents begin, ascending; empty if unknown.
  std::vector<std::int64_t> Documents() const;
  // Throws RunError if the file was modified since it was opened.
  void RequireUnchanged() const;

 private:
  // Reads elements [begin, end) of an array into the front of buffer_ and checks them.
  Elements Load(Array array, std::int64_t begin, std::int64_t end);

  const TokenFile& file_;
  const Split split_;
  const bool with_documents_;
  std::unique_ptr<TokenArrays> own_;     // null: split is in memory, or the stream's file is used
  const TokenArrays* arrays_ = nullptr;  // null: split is in memory
  std::vector<std::byte> buffer_;
  std::unique_ptr<DocumentIndex> documents_;  // null: not wanted, or in memory
};

// Calls visit(i, begins, counts) for each token of a window until it returns false. begins: token i
// begins a document. counts: it is a target of the loss, so the loss mask includes it and, with
// document_mask, it does not begin a document. (The caller excludes a split's first token.)
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

// Whether a split has any target that counts, without which its loss is undefined. Reads the
// split's loss mask and, with document_mask, its document boundaries, up to the first such target.
// Serial; the calling rank must have the split in memory or read its stream. Throws RunError for a
// bad element in a stream and for a file that has changed.
bool HasTarget(const TokenFile& file, Split split, bool document_mask);

inline constexpr std::int32_t kMasked = -1;  // a target that does not count: no loss, no gradient

// One entry: B windows side by side; in a context group, each rank holds T positions of each
// window. A micro-batch of the schedule is one entry or, with canonical sums, ModelPlan::leaves
// entries.
struct Entry {
  std::int64_t sequences = 0;        // B
  std::int64_t length = 0;           // T: positions of each window that this rank holds
  std::vector<std::int32_t> inputs;  // [B, T]; 0 after a short window's end
  // [B, T]; kMasked past the end of a short window, where the loss mask excludes the target and,
  // with document masks, where the target is the first token of a document.
  std::vector<std::int32_t> targets;
  std::vector<std::uint64_t> ordinals;  // [B]: each window's Sample::ordinal, for dropout
  // [B, T]: for each position, where in the window its document begins (0 if before the window).
  // Never decreases along a window. Empty without document masks.
  std::vector<std::int32_t> begins;
  // Canonical sums: group of this entry's leaf, counted from the rank's first group.
  std::int64_t group = 0;
  std::int64_t step = 0;   // of training, from 0; draws for a step depend on it
  std::int64_t valid = 0;  // unmasked targets that this rank holds
  // Number of (query, key) pairs that attention computes for these inputs: each input sees its
  // document up to itself. Padding is excluded; 0 without document masks.
  std::int64_t visible_keys = 0;
  Positions positions = {};  // which positions of each window this rank holds
  // Only for pairs of texts to translate, whose targets are padded at the end; otherwise empty.
  std::int64_t source_length = 0;            // S
  std::vector<std::int32_t> sources;         // [B, S]; 0 after a text's end
  std::vector<std::int32_t> source_lengths;  // [B]: tokens of each source text
  std::vector<std::int32_t> target_lengths;  // [B]: targets of each pair
};

// Fills `batch` with the windows of `turn`, padded to `length` targets each, restricted to the
// `positions` in [0, length) (by default all). document_mask: also fills `begins`, and masks
// targets that begin a document. Loss masks always apply. Reuses the memory of `batch`.
void FillEntry(const Turn& turn, std::int64_t length, Entry& batch, const Positions& positions = {},
               bool document_mask = false);

}  // namespace trireme::data
