// A token file that all ranks fill: rank 0 creates it, and each rank writes at the places of its
// documents.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "encoder.hpp"
#include "token_file_draft.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/comm/communicator.hpp"

namespace trireme::data {

inline constexpr std::size_t kWriteBytes = std::size_t{1} << 20;  // bytes per write

// A place in the file that advances with what is written there, in large pieces.
class FileCursor {
 public:
  FileCursor(const std::string& path, int file, std::int64_t offset)
      : path_(path), file_(file), offset_(offset) {}
  FileCursor(FileCursor&&) = default;
  FileCursor(const FileCursor&) = delete;
  FileCursor& operator=(const FileCursor&) = delete;

  void Write(const void* bytes, std::size_t count) {
    const char* const begin = static_cast<const char*>(bytes);
    buffer_.insert(buffer_.end(), begin, begin + count);
    if (buffer_.size() >= kWriteBytes) Flush();
  }
  void Flush() {
    if (buffer_.empty()) return;  // sync_file_range would take 0 bytes as all bytes to the end
    const std::int64_t count = std::ssize(buffer_);
    if (WriteAt(file_, buffer_.data(), count, offset_) < count) {
      const int error = errno;
      throw RunError(fmt::format("{}: cannot be written: {}", path_, ErrorText(error)),
                     error == ENOSPC || error == EDQUOT
                         ? "Free some space, or let data.file name another disk."
                         : "");
    }
    // The disk starts now instead of when everything is written.
    ::sync_file_range(file_, offset_, count, SYNC_FILE_RANGE_WRITE);
    offset_ += count;
    buffer_.clear();
  }

 private:
  const std::string& path_;
  int file_;
  std::int64_t offset_;
  std::vector<char> buffer_;
};

// Bytes at which the datasets begin in the file, by Split.
struct Places {
  PerText<std::array<std::int64_t, 3>> tokens{}, documents{};
  std::array<std::int64_t, 3> mask{};
};

// What a writer has to know about the token file.
struct WrittenFile {
  std::string path;
  Places places;
  std::size_t texts = 1;          // per document
  PerText<std::int64_t> width{};  // bytes per id
  bool masks = false;
};

// Copies documents from a rank's temporary files to the token file. All functions throw RunError
// with the path.
class PieceWriter {
 public:
  // poll: called about once per MiB.
  PieceWriter(const WrittenFile& file, Spills& spills, std::function<void()> poll);

  // Copies a unit's train tokens behind the `before` tokens of earlier units, moves its other
  // tokens to Spills::rest, and frees the space of both. Units must ascend.
  void CopyTrain(const UnitResult& unit, std::int64_t before);
  // Copies a whole unit, except for what CopyTrain has copied if Spills::copied. before: sizes of
  // all earlier units. Units must ascend.
  void Write(const UnitResult& unit, const SplitSizes& before);
  void Sync() const;

 private:
  // Copies bytes from offset `begin` of a temporary file; put: void(const char*, std::size_t).
  template <typename Put>
  void Copy(Spill& from, std::int64_t begin, std::int64_t bytes, Put put);

  WrittenFile to_;
  Descriptor file_;
  Spills& spills_;
  std::function<void()> poll_;
  std::size_t since_poll_ = 0;  // bytes since the last poll
  std::int64_t rest_ = 0;       // bytes of Spills::rest that Write has used
  std::vector<char> room_;
};

// From this number of train tokens on, their place in the file does not depend on the number: HDF5
// packs smaller datasets together.
inline constexpr std::int64_t kEarlyTokens = 1 << 12;

// What encoding has produced.
struct EncodedUnits {
  std::span<const UnitResult> results;  // all ranks' units, in order; the same on every rank
  std::span<const UnitResult> mine;     // this rank's units, which are in `spills`, in order
  Spills& spills;                       // its `copied` is the same on every rank
  std::string source_sha256;
  std::int64_t copied_to = 0;  // if spills.copied: where train's tokens begin in the file
};

// A token file with a temporary name until all is written: an error leaves nothing behind.
class ParallelTokenFile {
 public:
  // tokenizers: must outlive the object. Collective.
  ParallelTokenFile(const comm::Communicator& world, const std::string& path,
                    const TextTokenizers& tokenizers, const EncodeSettings& settings);
  ~ParallelTokenFile();
  ParallelTokenFile(const ParallelTokenFile&) = delete;
  ParallelTokenFile& operator=(const ParallelTokenFile&) = delete;

  // The file with the place that HDF5 will give train's tokens if there are at least kEarlyTokens;
  // nullopt if that depends on their number, and for pairs.
  std::optional<WrittenFile> Early() const;

  // Writes what was not copied before, and renames the file. stop: asked about once per MiB; true
  // ends all ranks with an error. Returns false, with nothing written, if train tokens were copied
  // to a place that is not theirs. Collective; an error on one rank is thrown on all.
  bool Write(const EncodedUnits& encoded, const std::function<bool()>& stop);

 private:
  struct Root;

  const comm::Communicator& world_;
  WrittenFile file_;
  bool early_ = false;
  std::unique_ptr<Root> root_;  // on rank 0
};

}  // namespace trireme::data
