// One file that all ranks of a communicator read or write together at explicit offsets.
#include "parallel_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <type_traits>
#include <utility>

#include "posix_file.hpp"

namespace trireme::checkpoint {

namespace {

// A transfer at an explicit offset may be repeated without harm; signals interrupt it on some
// network file systems, and MPI does not say so.
constexpr int kAttempts = 4;

std::string MpiErrorText(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return {text.data(), static_cast<std::size_t>(length)};
}

// Name of a failed transfer, for its message.
struct Words {
  std::string path, verb, nothing_moved;
};

// This rank's way through its pieces, round by round, in step with the other ranks. T: Piece or
// Target.
template <typename T>
class Transfer {
 public:
  Transfer(const std::vector<T>& pieces, std::int64_t round_bytes, Words words, ExitCode blame)
      : pieces_(pieces), round_bytes_(round_bytes), words_(std::move(words)), blame_(blame) {}

  // Collective. `move` moves one part (of zero bytes, too) and returns MPI's code.
  template <typename Move>
  void Run(const comm::Communicator& group, const Move& move,
           const std::function<void(std::size_t)>& use) {
    // Parts that moved only partly, or that are tried again, make another pass necessary.
    for (auto rounds = group.Max(RoundsLeft()); rounds > 0; rounds = group.Max(RoundsLeft())) {
      for (; rounds > 0; --rounds) {
        const T part = Next();
        MPI_Status status = {};
        const int code = move(part, status);
        if (part.bytes > 0) Account(code, status, use);
      }
    }
    group.Together([&] {
      if (failure_) std::rethrow_exception(failure_);
    });
  }

 private:
  std::int64_t RoundsLeft() const {
    if (failure_) return 0;
    std::int64_t rounds = 0, done = done_;
    for (std::size_t i = at_; i < pieces_.size(); ++i, done = 0) {
      rounds += (pieces_[i].bytes - done + round_bytes_ - 1) / round_bytes_;
    }
    return rounds;
  }

  // The next piece; nothing at the end, or after a failure.
  T Next() {
    while (at_ < pieces_.size() && pieces_[at_].bytes == 0) ++at_;
    if (failure_ || at_ == pieces_.size()) return {};
    T part = pieces_[at_];
    using Byte = std::conditional_t<std::is_same_v<T, Piece>, const char, char>;
    part.data = static_cast<Byte*>(part.data) + done_;
    part.offset += done_;
    part.bytes = std::min(part.bytes - done_, round_bytes_);
    return part;
  }

  void Account(int code, const MPI_Status& status, const std::function<void(std::size_t)>& use) {
    int moved = 0;
    if (code == MPI_SUCCESS) MPI_Get_count(&status, MPI_BYTE, &moved);
    try {
      if (moved <= 0) {
        if (++attempts_ < kAttempts) return;
        throw Error(blame_,
                    fmt::format("{}: cannot be {} at offset {}: {}", words_.path, words_.verb,
                                pieces_[at_].offset + done_,
                                code == MPI_SUCCESS ? words_.nothing_moved : MpiErrorText(code)));
      }
      attempts_ = 0;
      done_ += moved;
      if (done_ < pieces_[at_].bytes) return;
      use(at_);
      done_ = 0;
      ++at_;
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  const std::vector<T>& pieces_;
  std::int64_t round_bytes_;
  Words words_;
  ExitCode blame_;
  std::size_t at_ = 0;     // the current piece
  std::int64_t done_ = 0;  // bytes of it that have moved
  int attempts_ = 0;       // that moved nothing, in a row
  std::exception_ptr failure_;
};

// Neighbours in file and memory become one piece, for long transfers.
std::vector<Piece> Merge(const std::vector<Piece>& pieces) {
  std::vector<Piece> merged;
  for (const Piece& piece : pieces) {
    if (!merged.empty()) {
      Piece& last = merged.back();
      if (last.offset + last.bytes == piece.offset &&
          static_cast<const char*>(last.data) + last.bytes == piece.data) {
        last.bytes += piece.bytes;
        continue;
      }
    }
    merged.push_back(piece);
  }
  return merged;
}

}  // namespace

ParallelFile::ParallelFile(const comm::Communicator& group, const std::string& path, Access access,
                           ExitCode blame, std::int64_t transfer_bytes)
    : group_(&group), path_(path), blame_(blame), transfer_bytes_(transfer_bytes) {
  const bool write = access == Access::kWrite;
  // The plain call names the reason (missing, forbidden), which MPI does not.
  group.Together([&] {
    if (::access(path.c_str(), write ? R_OK | W_OK : R_OK) != 0) {
      throw Error(blame_, fmt::format("{}: cannot be opened: {}", path_, ErrorText(errno)));
    }
  });
  const int code = MPI_File_open(group.Handle(), path.c_str(),
                                 write ? MPI_MODE_RDWR : MPI_MODE_RDONLY, MPI_INFO_NULL, &file_);
  // If only some ranks could open it, the handle is abandoned: closing is collective and would
  // hang.
  group.Together([&] {
    if (code != MPI_SUCCESS) {
      throw Error(blame_, fmt::format("{}: cannot be opened: {}", path_, MpiErrorText(code)));
    }
  });
}

ParallelFile::~ParallelFile() {
  if (file_ != MPI_FILE_NULL) MPI_File_close(&file_);
}

std::int64_t ParallelFile::Size() const {
  MPI_Offset size = 0;
  if (const int code = MPI_File_get_size(file_, &size); code != MPI_SUCCESS) {
    throw Error(blame_, fmt::format("{}: its size is unknown: {}", path_, MpiErrorText(code)));
  }
  return size;
}

void ParallelFile::WriteAll(const std::vector<Piece>& pieces) {
  const std::vector<Piece> merged = Merge(pieces);
  Transfer<Piece> transfer(merged, transfer_bytes_, {path_, "written", "the disk takes no more"},
                           blame_);
  transfer.Run(
      *group_,
      [&](const Piece& part, MPI_Status& status) {
        return MPI_File_write_at_all(file_, part.offset, part.data, static_cast<int>(part.bytes),
                                     MPI_BYTE, &status);
      },
      [](std::size_t) {});
}

void ParallelFile::ReadAll(const std::vector<Target>& targets,
                           const std::function<void(std::size_t)>& use) {
  // MPI may call a collective read past the end a success.
  group_->Together([&] {
    const std::int64_t size = Size();
    for (const Target& target : targets) {
      if (target.bytes <= 0 || target.offset + target.bytes <= size) continue;
      throw Error(blame_, fmt::format("{}: cannot be read at offset {}: the file ends there", path_,
                                      std::max(size, target.offset)));
    }
  });
  Transfer<Target> transfer(targets, transfer_bytes_, {path_, "read", "the file ends there"},
                            blame_);
  transfer.Run(
      *group_,
      [&](const Target& part, MPI_Status& status) {
        return MPI_File_read_at_all(file_, part.offset, part.data, static_cast<int>(part.bytes),
                                    MPI_BYTE, &status);
      },
      use);
}

void ParallelFile::SyncAndClose() {
  const int synced = MPI_File_sync(file_);
  const int closed = MPI_File_close(&file_);
  group_->Together([&] {
    if (synced != MPI_SUCCESS || closed != MPI_SUCCESS) {
      throw Error(blame_, fmt::format("{}: cannot be flushed to the disk: {}", path_,
                                      MpiErrorText(synced != MPI_SUCCESS ? synced : closed)));
    }
  });
}

}  // namespace trireme::checkpoint
