// Reads a token file's arrays into memory (ReadArrays), or copies them onto nodes (StageOnNodes).
#include "stage.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/base/clock.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/comm/flight_recorder.hpp"

namespace trireme::data {

static std::int64_t Aligned(std::int64_t bytes) {
  return CeilDivide(bytes, kTokenAlignment) * kTokenAlignment;
}

std::int64_t BytesInMemory(const TokenLayout& layout, Split split) {
  std::int64_t bytes = 0;
  for (const Array array : kArrays) bytes += Aligned(layout.Of(split, array).Bytes());
  return bytes;
}

TokenMemory::TokenMemory(const comm::Communicator& world, const comm::Communicator& node,
                         const TokenLayout& layout, const Keeping& keeping)
    : node_(node) {
  if (IsStream(keeping.staging)) return;
  keeps_ = keeping.splits;
  for (const Split split : kSplits) {
    if (Keeps(split)) bytes_ += BytesInMemory(layout, split);
  }
  if (bytes_ == 0) return;
  void* base = nullptr;
  if (keeping.staging == Staging::kSharedMemory) {
    base = AllocateShared(world);
  } else {
    world.Together([&] {
      own_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes_));
    });
    base = own_.get();
  }
  auto* next = static_cast<std::byte*>(base);
  for (std::size_t split = 0; split < keeps_.size(); ++split) {
    for (std::size_t a = 0; a < kArrays.size() && keeps_.at(split); ++a) {
      const StoredArray& array = layout.arrays.at(split).at(a);
      if (array.There()) bases_.at(split).at(a) = next;
      next += Aligned(array.Bytes());
    }
  }
}

void* TokenMemory::AllocateShared(const comm::Communicator& world) {
  fills_ = node_.IsRoot();
  shared_.emplace(node_, bytes_);
  world.Together([&] {
    if (shared_->Error() == 0) return;
    throw RunError(
        fmt::format("data.staging = shared_memory: {} of tokens for the {} ranks of a node: {}",
                    Mebibytes(bytes_), node_.Size(), ErrorText(shared_->Error())),
        comm::RoomForSharedMemory() +
            " data.staging = none keeps a copy per rank instead, data.staging = stream none.");
  });
  return shared_->Data();
}

void TokenMemory::Publish() {
  if (shared_) node_.Barrier();
}

// Reading the arrays: the readers (every rank that fills a copy) divide the file among themselves,
// so that the file system delivers it once, and exchange their parts through MPI. Each reader opens
// the file itself and not through MPI-IO: with Open MPI 4.1.4, an open that fails on one rank
// leaves the others waiting, and a failed read may be reported as done.

namespace {

// Reads elements [begin, end) of an array to `to`; returns the first bad one.
BadValue ReadChecked(const TokenArrays& file, const StoredArray& array, std::int64_t begin,
                     std::int64_t end, void* to) {
  if (begin == end) return {};
  return FirstBad(array, file.ReadElements(array, begin, end, to));
}

// Throws AgreedError on all ranks for the first bad element that any rank found; returns if none
// did. bad: this rank's first one. Collective over `world`.
void AgreeOnBad(const comm::Communicator& world, const std::string& path, const StoredArray& array,
                BadValue bad) {
  const std::int64_t first = world.Min(bad.offset);
  if (first == kNoElement) return;
  const auto finder =
      static_cast<int>(world.Min(std::int64_t{bad.offset == first ? world.Rank() : world.Size()}));
  world.Broadcast(&bad.value, sizeof bad.value, finder);
  world.Together([&] { throw BadElement(path, array, {first, bad.value}); });
}

// Calls visit(array) for each array of the kept splits (by Split) that the file has.
template <typename Layout, typename Visit>
void EachArray(Layout& layout, const std::array<bool, 3>& kept, Visit visit) {
  for (std::size_t split = 0; split < kept.size(); ++split) {
    for (auto& array : layout.arrays.at(split)) {
      if (kept.at(split) && array.There()) visit(array);
    }
  }
}

constexpr std::string_view kPrefix = "trireme_tokens_";
constexpr std::string_view kUnique = "XXXXXX";  // replaced by mkostemp(3)

// A file's name, which is removed (unlinked) at the end of the scope.
struct Name {
  Name() = default;
  Name(const Name&) = delete;
  Name& operator=(const Name&) = delete;
  ~Name() {
    if (!path.empty()) ::unlink(path.c_str());
  }
  std::string path = {};
};

// Creates a file that is locked while it is open here: the lock tells RemoveLeftovers that the
// maker is alive.
Descriptor MakeLocked(const std::string& folder, Name& name) {
  // A try fails only if RemoveLeftovers runs between the next two calls.
  constexpr int kTries = 100;
  for (int i = 0; i < kTries; ++i) {
    std::string path = fmt::format("{}/{}{}", folder, kPrefix, kUnique);
    Descriptor file(::mkostemp(path.data(), O_CLOEXEC));
    if (!file.Valid()) {
      throw InputError(
          fmt::format("{}: no file for tokens can be made here: {}", folder, ErrorText(errno)),
          "data.staging_path names another folder.");
    }
    name.path = path;
    // If locks do not work here, RemoveLeftovers cannot lock the file either, and leaves it.
    Retry([&] { return ::flock(file.Get(), LOCK_EX); });
    struct stat status = {};
    if (::fstat(file.Get(), &status) != 0 || status.st_nlink > 0) return file;
  }
  throw RunError(fmt::format("{}: each new file vanishes at once", folder),
                 "data.staging_path names another folder.");
}

// Removes a folder's entry if it is an empty file of this user that no process has locked.
bool RemoveIfLeft(int folder, const char* name) {
  const Descriptor file(::openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status = {};
  if (!file.Valid() || ::fstat(file.Get(), &status) != 0) return false;
  const bool ours = S_ISREG(status.st_mode) && status.st_uid == ::geteuid();
  if (!ours || status.st_size > 0) return false;
  if (::flock(file.Get(), LOCK_EX | LOCK_NB) != 0) return false;
  return ::unlinkat(folder, name, 0) == 0;
}

using Hash = std::array<std::int64_t, 2>;
constexpr auto kHashBytes = static_cast<std::int64_t>(sizeof(Hash));

Hash HashOf(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {static_cast<std::int64_t>(hash.low64), static_cast<std::int64_t>(hash.high64)};
}

// A node's copy while it is being filled.
class Copy {
 public:
  Copy(const std::string& folder, const Descriptor& file) : folder_(folder), file_(file.Get()) {}

  // Sets the file's length and reserves disk space for [offset, offset + bytes). If the file system
  // cannot reserve, a full disk shows when writing.
  void Reserve(std::int64_t length, std::int64_t offset, std::int64_t bytes) {
    if (bytes == 0) return;
    if (Retry([&] { return ::ftruncate(file_, length); }) != 0) Fail(bytes);
    if (Retry([&] { return ::fallocate(file_, 0, offset, bytes); }) == 0) return;
    if (errno != EOPNOTSUPP && errno != EINVAL && errno != ENOSYS) Fail(bytes);
  }

  void Write(std::int64_t offset, std::span<const std::byte> bytes) {
    const std::int64_t count = std::ssize(bytes);
    if (WriteAt(file_, bytes.data(), count, offset) < count) Fail(count);
  }

  // Hash of `bytes` bytes read back from the copy.
  Hash ReadBack(std::int64_t offset, std::int64_t bytes) {
    back_.resize(static_cast<std::size_t>(bytes));
    if (ReadAt(file_, back_.data(), bytes, offset) < bytes) {
      throw RunError(fmt::format("{}: tokens cannot be read back: {}", folder_,
                                 errno != 0 ? ErrorText(errno) : "the copy ends early"));
    }
    return HashOf(back_);
  }

 private:
  [[noreturn]] void Fail(std::int64_t bytes) const {
    const int error = errno;
    const std::string what =
        fmt::format("{}: cannot hold {} bytes of tokens: {}", folder_, bytes, ErrorText(error));
    if (error != ENOSPC && error != EDQUOT && error != EFBIG) throw RunError(what);
    throw InputError(what,
                     "data.staging_path names another folder of the nodes; data.staging = stream "
                     "needs none.");
  }

  const std::string& folder_;
  int file_;
  std::vector<std::byte> back_;
};

class Stager {
 public:
  // copy: null on ranks that fill none. layout: that of the source.
  Stager(const StagingRequest& request, const TokenLayout& layout, Copy* copy)
      : request_(request),
        layout_(layout),
        copy_(copy),
        fillers_(request.world.Split(copy != nullptr ? 0 : 1, request.world.Rank(), "stagers")),
        nodes_(request.world.Max(std::int64_t{copy != nullptr ? fillers_.Size() : 0})),
        at_once_(std::min<std::int64_t>(nodes_, kMostReaders)),
        room_(copy != nullptr
                  ? static_cast<std::size_t>(at_once_ * (request.chunk_bytes + kHashBytes))
                  : 0) {}

  std::int64_t Nodes() const { return nodes_; }

  // Copies an array. Collective.
  void Stage(const StoredArray& array, const std::function<void()>& after_round) {
    const std::int64_t most = std::max<std::int64_t>(1, request_.chunk_bytes / array.width);
    for (std::int64_t first = 0; first < array.count;) {
      const std::int64_t end = std::min(array.count, first + at_once_ * most);
      std::vector<Chunk> chunks;
      for (std::byte* slot = room_.data(); first < end; first += most, ++turn_) {
        if (copy_ == nullptr) continue;
        const auto reader = static_cast<int>(turn_ % nodes_);
        chunks.push_back({array, first, std::min(end, first + most), reader, slot});
        slot += request_.chunk_bytes + kHashBytes;
      }
      first = end;
      StageRound(array, chunks);
      if (after_round) after_round();
    }
  }

  // Checks that the source is unchanged and that all copies have the same hash. Collective.
  void Finish() const {
    Hash least = hash_, largest = hash_;
    for (std::size_t i = 0; copy_ != nullptr && i < hash_.size(); ++i) {
      least[i] = fillers_.Min(hash_[i]);
      largest[i] = fillers_.Max(hash_[i]);
    }
    request_.world.Together([&] {
      if (source_) source_->RequireUnchanged();
      if (least == largest) return;
      throw RunError(request_.path + ": its copies on the nodes are not the same",
                     "A node's memory, its disk or the network has changed them.");
    });
  }

 private:
  // Elements [begin, end) of an array on their way from one node to all: at `data`, followed by
  // their hash.
  struct Chunk {
    const StoredArray& array;
    std::int64_t begin, end;
    int reader;  // rank of fillers_
    std::byte* data;
    std::int64_t Bytes() const { return (end - begin) * array.width; }
  };

  void StageRound(const StoredArray& array, std::span<const Chunk> chunks) {
    BadValue bad;
    request_.world.Together([&] {
      for (const Chunk& chunk : chunks) {
        if (chunk.reader == fillers_.Rank()) bad = ReadChunk(chunk);
      }
    });
    AgreeOnBad(request_.world, request_.path, array, bad);
    for (const Chunk& chunk : chunks) {
      fillers_.Broadcast(chunk.data, chunk.Bytes() + kHashBytes, chunk.reader);
    }
    request_.world.Together([&] {
      for (const Chunk& chunk : chunks) KeepChunk(chunk);
    });
  }

  // Reads a chunk from the source. Returns the first bad element.
  BadValue ReadChunk(const Chunk& chunk) {
    if (!source_) source_.emplace(request_.path, layout_);
    const BadValue bad = ReadChecked(*source_, chunk.array, chunk.begin, chunk.end, chunk.data);
    // Distance to this rank's next chunk, if that is full.
    const std::int64_t next = nodes_ * (chunk.end - chunk.begin);
    source_->Prefetch(chunk.array, chunk.begin + next, chunk.end + next);
    source_->RequireUnchanged();  // a file that is being written to may show anything
    const Hash hash = HashOf({chunk.data, static_cast<std::size_t>(chunk.Bytes())});
    std::memcpy(chunk.data + chunk.Bytes(), hash.data(), sizeof hash);
    return bad;
  }

  // Writes a chunk to the copy, reads it back and compares the hashes.
  void KeepChunk(const Chunk& chunk) {
    const std::int64_t offset = chunk.array.offset + chunk.begin * chunk.array.width;
    Hash sent{};
    std::memcpy(sent.data(), chunk.data + chunk.Bytes(), sizeof sent);
    copy_->Write(offset, {chunk.data, static_cast<std::size_t>(chunk.Bytes())});
    const Hash kept = copy_->ReadBack(offset, chunk.Bytes());
    if (kept != sent) {
      throw RunError(
          fmt::format("{}: {}: the copy in {} has another hash than the file, from offset {} on",
                      request_.path, chunk.array.Path(), request_.keeping.folder, chunk.begin),
          "A node's memory, its disk or the network has changed it.");
    }
    const std::array<Hash, 2> both = {hash_, kept};
    hash_ = HashOf(std::as_bytes(std::span(both)));
  }

  const StagingRequest& request_;
  const TokenLayout& layout_;
  Copy* copy_;
  comm::Communicator fillers_;
  std::int64_t nodes_;    // number that get a copy
  std::int64_t at_once_;  // chunks per round
  std::vector<std::byte> room_;
  std::optional<TokenArrays> source_;  // opened when this rank first reads
  std::int64_t turn_ = 0;              // chunks so far
  Hash hash_{};                        // combined hash of all chunks so far
};

}  // namespace

void ReadArrays(const comm::Communicator& world, const std::string& path, const TokenLayout& layout,
                TokenMemory& memory, const std::function<void()>& after_round,
                std::int64_t round_bytes) {
  const bool reads = memory.Fills();
  const comm::Communicator readers = world.Split(reads ? 0 : 1, world.Rank(), "readers");
  std::optional<TokenArrays> file;
  world.Together([&] {
    if (reads) file.emplace(path, layout);
  });
  EachArray(layout, memory.Kept(), [&](const StoredArray& array) {
    const std::int64_t most = std::max<std::int64_t>(round_bytes / array.width, 1);
    for (std::int64_t first = 0; first < array.count; first += most) {
      // In this round, reader r reads the elements from begin_of(r) on, counted from `first`.
      const std::int64_t count = std::min(most, array.count - first);
      const auto begin_of = [&](int reader) { return count * reader / readers.Size(); };
      auto* const to =
          static_cast<std::byte*>(memory.At(array.split, array.array)) + first * array.width;
      BadValue bad;
      world.Together([&] {
        if (!reads) return;
        const std::int64_t begin = begin_of(readers.Rank()), end = begin_of(readers.Rank() + 1);
        bad = ReadChecked(*file, array, first + begin, first + end, to + begin * array.width);
      });
      AgreeOnBad(world, path, array, bad);
      if (reads && readers.Size() > 1) {
        std::vector<int> counts, begins;
        for (int reader = 0; reader < readers.Size(); ++reader) {
          begins.push_back(static_cast<int>(begin_of(reader) * array.width));
          counts.push_back(static_cast<int>(begin_of(reader + 1) * array.width) - begins.back());
        }
        const comm::Recorded recorded(readers, comm::Call::kAllGather, count * array.width);
        MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_BYTE, to, counts.data(), begins.data(), MPI_BYTE,
                       readers.Handle());
      }
      if (after_round) after_round();
    }
  });
  world.Together([&] {
    if (reads) file->RequireUnchanged();
  });
  memory.Publish();
}

int RemoveLeftovers(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir(folder.c_str()), ::closedir);
  if (entries == nullptr) return 0;
  int removed = 0;
  while (const dirent* const entry = ::readdir(entries.get())) {
    const std::string_view known = entry->d_name;
    if (!known.starts_with(kPrefix) || known.size() != kPrefix.size() + kUnique.size()) continue;
    if (RemoveIfLeft(::dirfd(entries.get()), entry->d_name)) ++removed;
  }
  return removed;
}

// Creates an empty file in `folder` on each node that has a reading rank, opens it, and removes its
// name: the system frees it when the last of its ranks ends, in whatever way. A SIGKILL in between
// leaves an empty file with a name, which the next call removes. reads: this rank is to read it.
// Returns it on reading ranks and on the node's first rank, which fills it. Collective over
// `world`.
static std::optional<Descriptor> MakeNodeFile(const comm::Communicator& world,
                                              const comm::Communicator& node,
                                              const std::string& folder, bool reads) {
  std::optional<Descriptor> file;
  Name name;
  const bool stages = node.Max(std::int64_t{reads}) > 0;
  world.Together([&] {
    if (!stages || !node.IsRoot()) return;
    RemoveLeftovers(folder);
    file.emplace(MakeLocked(folder, name));
  });
  const std::string path = node.Broadcast(name.path);
  world.Together([&] {
    if (!reads || node.IsRoot()) return;
    file.emplace(path, O_RDONLY);
    if (file->Valid()) return;
    throw RunError(fmt::format("{}: cannot be opened by a rank of the node that made it: {}", path,
                               ErrorText(errno)),
                   "Do these ranks see different folders, as in containers of their own?");
  });
  return file;
}

std::unique_ptr<const TokenArrays> StageOnNodes(const StagingRequest& request, TokenLayout& layout,
                                                StagedCopies& staged,
                                                const std::function<void()>& after_round) {
  const double start = Seconds();
  const Keeping& keeping = request.keeping;
  const comm::Communicator& world = request.world;
  std::optional<Descriptor> file = MakeNodeFile(world, request.node, keeping.folder, keeping.reads);
  std::optional<Copy> copy;
  if (file && request.node.IsRoot()) copy.emplace(keeping.folder, *file);
  staged = {.files = 1};
  world.Together([&] {
    EachArray(layout, keeping.splits, [&](const StoredArray& array) {
      staged.bytes += array.Bytes();
      if (copy) copy->Reserve(layout.bytes, array.offset, array.Bytes());
    });
  });
  std::unique_ptr<const TokenArrays> opened;
  {
    Stager stager(request, layout, copy ? &*copy : nullptr);
    staged.nodes = stager.Nodes();
    EachArray(layout, keeping.splits,
              [&](const StoredArray& array) { stager.Stage(array, after_round); });
    stager.Finish();
  }
  EachArray(layout, keeping.splits, [](StoredArray& array) { array.big_endian = false; });
  world.Together([&] {
    if (!keeping.reads) return;
    opened = std::make_unique<TokenArrays>(fmt::format("{} (its copy on the node)", request.path),
                                           std::move(*file));
  });
  staged.seconds = world.Max(Seconds() - start);
  return opened;
}

}  // namespace trireme::data
