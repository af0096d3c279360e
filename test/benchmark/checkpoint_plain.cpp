// Plain positioned transfers and MPI-IO.
#include "checkpoint_plain.hpp"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <thread>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>

#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"

namespace trireme::benchmark {

namespace {

// Group of a rank of a node, as checkpoint::Writer forms them.
comm::Communicator GroupOf(const comm::Communicator& world, int writers) {
  const comm::Communicator node = world.SplitNode();
  const int groups = writers == 0 ? node.Size() : std::min(writers, node.Size());
  return node.Split(node.Rank() * groups / node.Size(), node.Rank());
}

void Must(bool done, const std::string& what) {
  if (!done) throw RunError(what + ": " + std::strerror(errno));
}

class File {
 public:
  File(const std::string& path, int flags) : path_(path), fd_(::open(path.c_str(), flags, 0666)) {
    Must(fd_ >= 0, path);
  }
  ~File() { ::close(fd_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int Get() const { return fd_; }

  // Calls transfer(memory, bytes, offset) until the piece is whole.
  template <typename Transfer>
  void Whole(char* memory, std::int64_t bytes, std::int64_t offset,
             const Transfer& transfer) const {
    while (bytes > 0) {
      const ssize_t done = transfer(fd_, memory, static_cast<std::size_t>(bytes), offset);
      Must(done > 0, path_);
      memory += done;
      bytes -= done;
      offset += done;
    }
  }

 private:
  const std::string path_;
  const int fd_;
};

}  // namespace

void Forget(const std::string& path) {
  const File file(path, O_RDONLY);
  ::posix_fadvise(file.Get(), 0, 0, POSIX_FADV_DONTNEED);
}

PlainFile::PlainFile(const comm::Communicator& world, const std::string& path, std::int64_t bytes,
                     int writers)
    : world_(world), path_(path), bytes_(bytes), writes_(GroupOf(world, writers).IsRoot()) {
  std::int64_t index = 0, count = 0;
  for (int rank = 0; const std::string& flag : world.Gather(writes_ ? "w" : "")) {
    if (rank++ < world.Rank() && !flag.empty()) ++index;
    if (!flag.empty()) ++count;
  }
  if (!writes_) return;
  begin_ = bytes * index / count;
  end_ = bytes * (index + 1) / count;
  memory_.resize(static_cast<std::size_t>(end_ - begin_));
  std::iota(memory_.begin(), memory_.end(), static_cast<char>(world.Rank()));
}

void PlainFile::Create() {
  world_.Together([&] {
    if (!world_.IsRoot()) return;
    ::unlink(path_.c_str());
    const File file(path_, O_RDWR | O_CREAT | O_EXCL);
    Must(::fallocate(file.Get(), 0, 0, bytes_) == 0 || ::ftruncate(file.Get(), bytes_) == 0, path_);
  });
}

double PlainFile::Write() { return WriteHashing(nullptr); }

double PlainFile::WriteHashing(double* hash_seconds) {
  Create();
  double hashing = 0, seconds = 0;
  std::uint64_t sum = 0;
  world_.Together([&] {
    if (!writes_) return;
    const double start = Seconds();
    const File file(path_, O_RDWR);
    const auto pieces = [&](const auto& body) {
      for (std::int64_t at = begin_; at < end_; at += kPieceBytes) {
        body(memory_.data() + (at - begin_), std::min(kPieceBytes, end_ - at), at);
      }
    };
    pieces([&](char* from, std::int64_t bytes, std::int64_t at) {
      file.Whole(from, bytes, at, ::pwrite);
    });
    std::jthread hasher;  // beside the flush, as a checkpoint's
    if (hash_seconds != nullptr) {
      hasher = std::jthread([&] {
        const double hash_start = Seconds();
        pieces([&](const char* from, std::int64_t bytes, std::int64_t) {
          sum ^= XXH3_64bits(from, static_cast<std::size_t>(bytes));
        });
        hashing = Seconds() - hash_start;
      });
    }
    Must(::fsync(file.Get()) == 0, path_);
    if (hasher.joinable()) hasher.join();
    seconds = Seconds() - start;
  });
  // A sum that is used cannot be left out by the compiler.
  if (hash_seconds != nullptr) *hash_seconds = world_.Max(hashing + (sum == 1 ? 1e-12 : 0));
  return world_.Max(seconds);
}

double PlainFile::Read(bool cold) {
  world_.Together([&] {
    if (cold && writes_) Forget(path_);
  });
  double seconds = 0;
  world_.Together([&] {
    if (!writes_) return;
    const double start = Seconds();
    const File file(path_, O_RDONLY);
    for (std::int64_t at = begin_; at < end_; at += kPieceBytes) {
      file.Whole(memory_.data() + (at - begin_), std::min(kPieceBytes, end_ - at), at, ::pread);
    }
    seconds = Seconds() - start;
  });
  return world_.Max(seconds);
}

void PlainFile::Remove() {
  world_.Barrier();
  if (world_.IsRoot()) ::unlink(path_.c_str());
  world_.Barrier();
}

namespace {

// Memory of a writer that its group copies into.
class Window {
 public:
  Window(const comm::Communicator& group, std::int64_t bytes) {
    void* base = nullptr;
    MPI_Win_allocate_shared(group.IsRoot() ? bytes : 0, 1, MPI_INFO_NULL, group.Handle(),
                            static_cast<void*>(&base), &window_);
    MPI_Aint size = 0;
    int unit = 0;
    MPI_Win_shared_query(window_, 0, &size, &unit, static_cast<void*>(&base));
    data_ = static_cast<char*>(base);
    if (group.IsRoot()) std::memset(data_, 0, static_cast<std::size_t>(bytes));
    group.Barrier();
  }
  ~Window() { MPI_Win_free(&window_); }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;
  char* Data() const { return data_; }

 private:
  MPI_Win window_ = MPI_WIN_NULL;
  char* data_ = nullptr;
};

// The pieces of a share on their way.
class Pieces {
 public:
  Pieces(MPI_File file, const char* memory, std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; at += kPieceBytes) {
      MPI_File_iwrite_at(file, at, memory + (at - begin),
                         static_cast<int>(std::min(kPieceBytes, end - at)), MPI_BYTE,
                         &requests_.emplace_back());
    }
    indices_.resize(requests_.size());
  }
  // True once all are written.
  bool Test() {
    int done = 0;
    if (!requests_.empty()) {
      MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &done, indices_.data(),
                   MPI_STATUSES_IGNORE);
    }
    return requests_.empty() || done == MPI_UNDEFINED;
  }

 private:
  std::vector<MPI_Request> requests_;
  std::vector<int> indices_;
};

}  // namespace

Overlapped WriteByMpi(const comm::Communicator& world, const std::string& path, int writers,
                      const std::vector<char>& mine, const std::function<void()>& step) {
  const comm::Communicator group = GroupOf(world, writers);
  const comm::Communicator leaders = world.Split(group.IsRoot() ? 0 : 1, world.Rank());
  std::int64_t place = 0, share = 0, begin = 0;  // in the group, of the group, in the file
  for (int rank = 0; const std::string& bytes : group.Gather(std::to_string(mine.size()))) {
    if (rank++ < group.Rank()) place += std::stoll(bytes);
    share += std::stoll(bytes);
  }
  for (int rank = 0; const std::string& bytes : leaders.Gather(std::to_string(share))) {
    if (rank++ < leaders.Rank()) begin += std::stoll(bytes);
  }
  const Window window(group, share);
  if (world.IsRoot()) ::unlink(path.c_str());
  world.Barrier();

  Overlapped result;
  const double start = Seconds();
  std::memcpy(window.Data() + place, mine.data(), mine.size());
  group.Barrier();
  MPI_File file = MPI_FILE_NULL;
  if (group.IsRoot()) {
    const int code = MPI_File_open(leaders.Handle(), path.c_str(),
                                   MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &file);
    if (code != MPI_SUCCESS) throw RunError(path + ": MPI cannot open it");
  }
  Pieces pieces(file, window.Data(), begin, group.IsRoot() ? begin + share : begin);
  result.stall = Seconds() - start;
  for (bool done = false; !done;) {
    step();
    const double moved = Seconds();
    done = pieces.Test();
    result.stall += Seconds() - moved;
    done = world.Max(done ? std::int64_t{0} : 1) == 0;
    ++result.steps;
  }
  const double flushed = Seconds();
  if (group.IsRoot()) {
    MPI_File_sync(file);
    MPI_File_close(&file);
  }
  world.Barrier();
  result.stall = world.Max(result.stall + Seconds() - flushed);
  result.to_disk = world.Max(Seconds() - start);
  return result;
}

}  // namespace trireme::benchmark
