// The token file that all ranks fill: rank 0 makes it.
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

// Writing to one place of a token file after the other, in large pieces.

inline constexpr std::size_t kWriteBytes = std::size_t{1} << 20;  // at once

// A place in the file that moves on with what is written there.
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
    if (buffer_.empty()) return;  // to sync_file_range no bytes are all bytes to the end
    const std::int64_t count = std::ssize(buffer_);
    if (WriteAt(file_, buffer_.data(), count, offset_) < count) {
      const int error = errno;
      throw RunError(fmt::format("{}: cannot be written: {}", path_, ErrorText(error)),
                     error == ENOSPC || error == EDQUOT
                         ? "Free some space, or let data.file name another disk."
                         : "");
    }
    // The disk begins now, not when all is written.
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

// Copies from a rank's temporary files to the token file.

// First bytes of the datasets in the file, by split.
struct Places {
  PerText<std::array<std::int64_t, 3>> tokens{}, documents{};
  std::array<std::int64_t, 3> mask{};
};

// The token file, as a writer sees it.
struct WrittenFile {
  std::string path;
  Places places;
  std::size_t texts = 1;          // of a document
  PerText<std::int64_t> width{};  // bytes of an id
  bool masks = false;
};

// All throw RunError with the path.
class PieceWriter {
 public:
  // poll: called about every MiB.
  PieceWriter(const WrittenFile& file, Spills& spills, std::function<void()> poll);

  // Copies a unit's tokens of train, after `before` of earlier units, keeps its other tokens in
  // Spills::rest, and gives back the space of both. Units ascend.
  void CopyTrain(const UnitResult& unit, std::int64_t before);
  // Copies the whole unit, but for what CopyTrain has copied if Spills::copied. Units ascend.
  // before: what earlier units hold.
  void Write(const UnitResult& unit, const SplitSizes& before);
  void Sync() const;

 private:
  // From byte `begin` of a temporary file; put: void(const char*, std::size_t).
  template <typename Put>
  void Copy(Spill& from, std::int64_t begin, std::int64_t bytes, Put put);

  WrittenFile to_;
  Descriptor file_;
  Spills& spills_;
  std::function<void()> poll_;
  std::size_t since_poll_ = 0;  // bytes
  std::int64_t rest_ = 0;       // bytes of Spills::rest that Write has read
  std::vector<char> room_;
};

// Tokens of train at which their place is known before their number is. HDF5 packs smaller
// datasets together.
inline constexpr std::int64_t kEarlyTokens = 1 << 12;

// Outcome of encoding.
struct EncodedUnits {
  std::span<const UnitResult> results;  // of all units, in order, the same on every rank
  std::span<const UnitResult> mine;     // of those in `spills`, in order
  Spills& spills;                       // copied: the same on every rank
  std::string source_sha256;
  std::int64_t copied_to = 0;  // if spills.copied: first byte of train's tokens in the file
};

// A temporary name beside the file's own, until all is written: an error leaves nothing behind.
class ParallelTokenFile {
 public:
  // Collective. The tokenizers must live longer.
  ParallelTokenFile(const comm::Communicator& world, const std::string& path,
                    const TextTokenizers& tokenizers, const EncodeSettings& settings);
  ~ParallelTokenFile();
  ParallelTokenFile(const ParallelTokenFile&) = delete;
  ParallelTokenFile& operator=(const ParallelTokenFile&) = delete;

  // The file with the place of train's tokens that HDF5 will give at least kEarlyTokens of them;
  // none if it depends on their number, and for pairs.
  std::optional<WrittenFile> Early() const;

  // Collective. Writes what was not copied, and gives the file its name. stop: asked about every
  // MiB; true ends all with an error. An error on one rank is thrown by all. False: tokens of train
  // were copied to a place that is not theirs; nothing is written.
  bool Write(const EncodedUnits& encoded, const std::function<bool()>& stop);

 private:
  struct Root;

  const comm::Communicator& world_;
  WrittenFile file_;
  bool early_ = false;
  std::unique_ptr<Root> root_;  // of rank 0
};

}  // namespace trireme::data
