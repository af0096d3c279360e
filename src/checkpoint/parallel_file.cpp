// One file that all ranks of a communicator read or write at explicit offsets.
#include "parallel_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

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

void ParallelFile::Transfer(bool write, std::int64_t offset, std::int64_t bytes, const Move& move) {
  std::int64_t done = 0;
  int failures = 0;
  while (done < bytes) {
    const int count = static_cast<int>(std::min(bytes - done, transfer_bytes_));
    MPI_Status status = {};
    int moved = 0;
    const int code = move(offset + done, done, count, &status);
    if (code == MPI_SUCCESS) MPI_Get_count(&status, MPI_BYTE, &moved);
    if (moved > 0) {
      done += moved;
      failures = 0;
    } else if (++failures == kAttempts) {
      const char* nothing = write ? "the disk takes no more" : "the file ends there";
      throw Error(blame_, fmt::format("{}: cannot be {} at offset {}: {}", path_,
                                      write ? "written" : "read", offset + done,
                                      code == MPI_SUCCESS ? nothing : MpiErrorText(code)));
    }
  }
}

void ParallelFile::WriteAt(std::int64_t offset, const void* data, std::int64_t bytes) {
  Transfer(true, offset, bytes,
           [&](MPI_Offset at, std::int64_t done, int count, MPI_Status* status) {
             return MPI_File_write_at(file_, at, static_cast<const char*>(data) + done, count,
                                      MPI_BYTE, status);
           });
}

void ParallelFile::ReadAt(std::int64_t offset, void* data, std::int64_t bytes) {
  Transfer(false, offset, bytes,
           [&](MPI_Offset at, std::int64_t done, int count, MPI_Status* status) {
             return MPI_File_read_at(file_, at, static_cast<char*>(data) + done, count, MPI_BYTE,
                                     status);
           });
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
