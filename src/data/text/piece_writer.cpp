// PieceWriter: document by document, through cursors that write large pieces.
#include "piece_writer.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "file_cursor.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {

namespace {

// The cursors of one split within one unit.
struct SplitCursors {
  FileCursor tokens, documents, mask;
  std::uint64_t token;  // next in the split
};

std::int64_t DocumentsOf(const UnitResult& unit) {
  return unit.documents[0] + unit.documents[1] + unit.documents[2];
}

// Function for Copy.
template <typename Sink>
auto To(Sink& sink) {
  return [&sink](const char* bytes, std::size_t count) { sink.Write(bytes, count); };
}

}  // namespace

PieceWriter::PieceWriter(const WrittenFile& file, Spills& spills, std::function<void()> poll)
    : to_(file), file_(file.path, O_RDWR | O_NOFOLLOW), spills_(spills), poll_(std::move(poll)) {
  if (file_.Valid()) return;
  throw RunError(fmt::format("{}: cannot be opened: {}", file.path, ErrorText(errno)));
}

SpilledDocument PieceWriter::DocumentAt(std::int64_t place) {
  SpilledDocument document;
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof document);
  spills_.documents.Read(place * kBytes, &document, sizeof document);
  return document;
}

template <typename Put>
void PieceWriter::Copy(Spill& from, std::int64_t begin, std::int64_t bytes, Put put) {
  while (bytes > 0) {
    room_.resize(std::min(kWriteBytes, static_cast<std::size_t>(bytes)));
    since_poll_ += room_.size();
    if (since_poll_ >= kWriteBytes) {
      since_poll_ = 0;
      poll_();
    }
    from.Read(begin, room_.data(), room_.size());
    put(room_.data(), room_.size());
    begin += static_cast<std::int64_t>(room_.size());
    bytes -= static_cast<std::int64_t>(room_.size());
  }
}

void PieceWriter::CopyTrain(const UnitResult& unit, std::int64_t before) {
  FileCursor train(to_.path, file_.Get(), to_.places.tokens.at(kTrainAt) + before * to_.width);
  const auto keep = [this](const char* bytes, std::size_t count) {
    spills_.rest.Append(bytes, count);
  };
  const std::int64_t begin = unit.tokens_at * to_.width;
  std::int64_t copied = begin, at = begin;  // bytes of Spills::tokens
  bool trains = true;                       // bytes [copied, at) are of train
  const auto copy = [&] {
    if (trains) {
      Copy(spills_.tokens, copied, at - copied, To(train));
    } else {
      Copy(spills_.tokens, copied, at - copied, keep);
    }
    copied = at;
  };
  const std::int64_t end = unit.documents_at + DocumentsOf(unit);
  for (std::int64_t d = unit.documents_at; d < end; ++d) {
    const SpilledDocument document = DocumentAt(d);
    if (trains != (document.split == kTrainAt)) {
      copy();
      trains = !trains;
    }
    at += static_cast<std::int64_t>(document.tokens) * to_.width;
  }
  copy();
  train.Flush();
  spills_.tokens.Release(begin, at);
}

void PieceWriter::Write(const UnitResult& unit, const SplitSizes& before) {
  std::vector<SplitCursors> cursors;
  for (std::size_t s = 0; s < kSplits.size(); ++s) {
    const std::int64_t tokens = before.tokens.at(s);
    const auto at = [&](std::int64_t offset) { return FileCursor(to_.path, file_.Get(), offset); };
    cursors.push_back({at(to_.places.tokens.at(s) + tokens * to_.width),
                       at(to_.places.documents.at(s) + before.documents.at(s) * 8),
                       at(to_.places.mask.at(s) + tokens), static_cast<std::uint64_t>(tokens)});
  }
  std::int64_t from = unit.tokens_at;
  const std::int64_t end = unit.documents_at + DocumentsOf(unit);
  for (std::int64_t d = unit.documents_at; d < end; ++d) {
    const SpilledDocument document = DocumentAt(d);
    SplitCursors& to = cursors.at(document.split);
    const auto count = static_cast<std::int64_t>(document.tokens);
    to.documents.Write(&to.token, sizeof to.token);
    if (!spills_.copied) {
      Copy(spills_.tokens, from * to_.width, count * to_.width, To(to.tokens));
    } else if (document.split != kTrainAt) {
      Copy(spills_.rest, rest_, count * to_.width, To(to.tokens));
      rest_ += count * to_.width;
    }
    if (to_.masks) Copy(spills_.mask, from, count, To(to.mask));
    to.token += document.tokens;
    from += count;
  }
  for (SplitCursors& to : cursors) {
    to.tokens.Flush();
    to.documents.Flush();
    to.mask.Flush();
  }
}

void PieceWriter::Sync() const {
  if (::fsync(file_.Get()) == 0) return;
  throw RunError(fmt::format("{}: cannot be synced: {}", to_.path, ErrorText(errno)));
}

}  // namespace trireme::data
