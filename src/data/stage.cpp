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
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
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
  for (const Split split : kSplits) {
    if (!Keeps(split)) continue;
    for (const Array array : kArrays) {
      const StoredArray& stored = layout.Of(split, array);
      if (!stored.There()) continue;
      bases_[static_cast<std::size_t>(split)][static_cast<std::size_t>(array)] = next;
      next += Aligned(stored.Bytes());
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
            " data.staging = none keeps a copy a rank instead, data.staging = stream none.");
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

// One round of reading: reader r reads elements [Begin(r), Begin(r + 1)) of the array.
struct Round {
  std::int64_t first = 0, count = 0;  // elements
  int readers = 1;
  std::int64_t Begin(int reader) const { return first + count * reader / readers; }
};

// Reads one array of the file on one reader.
class ArrayReader {
 public:
  ArrayReader(const std::string& path, const TokenLayout& layout, const TokenMemory& memory,
              Split split, Array array)
      : path_(path),
        layout_(layout),
        stored_(layout.Of(split, array)),
        split_(split),
        array_(array),
        base_(static_cast<std::byte*>(memory.At(split, array))) {}

  // Reads elements [begin, end); returns the offset of the first bad one, or kNoElement. Serial.
  std::int64_t Read(const TokenArrays& file, std::int64_t begin, std::int64_t end) const {
    if (begin == end) return kNoElement;
    file.Read(layout_, split_, array_, begin, end, At(begin));
    Elements elements{At(begin), begin, end};
    if (array_ == Array::kDocuments && begin > 0) {
      file.Read(layout_, split_, array_, begin - 1, begin, &elements.before);
    }
    return FirstBad(layout_, split_, array_, elements);
  }

  // Exchanges the parts of a round, so that every reader has all. Collective over the readers.
  void PassOn(const comm::Communicator& readers, const Round& round) const {
    if (readers.Size() == 1) return;
    std::vector<int> counts, begins;
    for (int reader = 0; reader < readers.Size(); ++reader) {
      const std::int64_t begin = round.Begin(reader) - round.first;
      const std::int64_t end = round.Begin(reader + 1) - round.first;
      begins.push_back(static_cast<int>(begin * stored_.width));
      counts.push_back(static_cast<int>((end - begin) * stored_.width));
    }
    const comm::Recorded recorded(readers, comm::Call::kAllGather, round.count * stored_.width);
    MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_BYTE, At(round.first), counts.data(), begins.data(),
                   MPI_BYTE, readers.Handle());
  }

  // Throws on all ranks if any of them found a bad element; the error names the first. bad: offset
  // of this rank's first bad element, or kNoElement. Collective.
  void RequireGood(const comm::Communicator& world, std::int64_t bad) const {
    BadValue found{bad, 0};
    if (bad != kNoElement) found.value = ValueAt(stored_, {At(bad), bad, bad + 1}, bad);
    AgreeOnBad(world, path_, layout_, {split_, array_}, found);
  }

 private:
  void* At(std::int64_t element) const { return base_ + element * stored_.width; }

  const std::string& path_;
  const TokenLayout& layout_;
  const StoredArray& stored_;
  const Split split_;
  const Array array_;
  std::byte* const base_;
};

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

// Whether the error means that the folder is full.
bool IsFull(int error) { return error == ENOSPC || error == EDQUOT || error == EFBIG; }

Error CannotHold(const std::string& folder, std::int64_t bytes, int error) {
  const std::string what =
      fmt::format("{}: cannot hold {} bytes of tokens: {}", folder, bytes, ErrorText(error));
  if (!IsFull(error)) return RunError(what);
  return InputError(what,
                    "data.staging_path names another folder of the nodes; data.staging = "
                    "stream needs none.");
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
  [[noreturn]] void Fail(std::int64_t bytes) const { throw CannotHold(folder_, bytes, errno); }

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
  void Stage(const ArrayName& name, const std::function<void()>& after_round) {
    const StoredArray& stored = layout_.Of(name.split, name.array);
    const std::int64_t most = std::max<std::int64_t>(1, request_.chunk_bytes / stored.width);
    for (std::int64_t first = 0; first < stored.count;) {
      const std::int64_t end = std::min(stored.count, first + at_once_ * most);
      StageRound(name, {first, end, most});
      turn_ += (end - first + most - 1) / most;
      first = end;
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
  // Elements [first, end) of an array, in chunks of up to `most` elements.
  struct Round {
    std::int64_t first = 0, end = 0, most = 0;
  };

  std::byte* Slot(std::int64_t chunk) {
    return room_.data() + chunk * (request_.chunk_bytes + kHashBytes);
  }
  int ReaderOf(std::int64_t chunk) const { return static_cast<int>((turn_ + chunk) % nodes_); }

  void StageRound(const ArrayName& name, const Round& round) {
    const std::int64_t chunks = (round.end - round.first + round.most - 1) / round.most;
    const std::int64_t width = layout_.Of(name.split, name.array).width;
    const auto end_of = [&](std::int64_t chunk) {
      return std::min(round.end, round.first + (chunk + 1) * round.most);
    };
    BadValue bad{kNoElement, 0};
    request_.world.Together([&] {
      for (std::int64_t chunk = 0; copy_ != nullptr && chunk < chunks; ++chunk) {
        if (ReaderOf(chunk) != fillers_.Rank()) continue;
        bad = ReadChunk(name, round.first + chunk * round.most, end_of(chunk), Slot(chunk));
      }
    });
    AgreeOnBad(request_.world, request_.path, layout_, name, bad);
    for (std::int64_t chunk = 0; copy_ != nullptr && chunk < chunks; ++chunk) {
      const std::int64_t begin = round.first + chunk * round.most;
      fillers_.Broadcast(Slot(chunk), (end_of(chunk) - begin) * width + kHashBytes,
                         ReaderOf(chunk));
    }
    request_.world.Together([&] {
      for (std::int64_t chunk = 0; copy_ != nullptr && chunk < chunks; ++chunk) {
        KeepChunk(name, round.first + chunk * round.most, end_of(chunk), Slot(chunk));
      }
    });
  }

  // Reads elements [begin, end) to `to`, followed by their hash. Returns the first bad element.
  BadValue ReadChunk(const ArrayName& name, std::int64_t begin, std::int64_t end, std::byte* to) {
    const auto& [split, array] = name;
    if (!source_) source_.emplace(request_.path, layout_);
    source_->Read(layout_, split, array, begin, end, to);
    // Distance to this rank's next chunk, if that is full.
    const std::int64_t next = nodes_ * (end - begin);
    source_->Prefetch(layout_, split, array, begin + next, end + next);
    const StoredArray& stored = layout_.Of(split, array);
    Elements elements{to, begin, end};
    if (array == Array::kDocuments && begin > 0) {
      source_->Read(layout_, split, array, begin - 1, begin, &elements.before);
    }
    const std::int64_t bad = FirstBad(layout_, split, array, elements);
    source_->RequireUnchanged();  // a file that is being written to may show anything
    const auto bytes = static_cast<std::size_t>((end - begin) * stored.width);
    const Hash hash = HashOf({to, bytes});
    std::memcpy(to + bytes, hash.data(), sizeof hash);
    if (bad == kNoElement) return {kNoElement, 0};
    return {bad, ValueAt(stored, elements, bad)};
  }

  // Writes a chunk to the copy, reads it back and compares the hashes.
  void KeepChunk(const ArrayName& name, std::int64_t begin, std::int64_t end,
                 const std::byte* from) {
    const StoredArray& stored = layout_.Of(name.split, name.array);
    const std::int64_t offset = stored.offset + begin * stored.width;
    const std::int64_t bytes = (end - begin) * stored.width;
    Hash sent{};
    std::memcpy(sent.data(), from + bytes, sizeof sent);
    copy_->Write(offset, {from, static_cast<std::size_t>(bytes)});
    const Hash kept = copy_->ReadBack(offset, bytes);
    if (kept != sent) {
      throw RunError(
          fmt::format("{}: {}: the copy in {} has another hash than the file, from offset {} on",
                      request_.path, layout_.PathOf(name.split, name.array),
                      request_.keeping.folder, begin),
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
  std::int64_t turn_ = 0;              // chunks before this round
  Hash hash_{};                        // combined hash of all chunks so far
};

// Calls visit({split, array}) for each array of the kept splits that the file has.
template <typename Visit>
void EachArray(const TokenLayout& layout, const Keeping& keeping, Visit visit) {
  for (const Split split : kSplits) {
    if (!keeping.splits.at(static_cast<std::size_t>(split))) continue;
    for (const Array array : kArrays) {
      if (layout.Of(split, array).There()) visit(ArrayName{split, array});
    }
  }
}

}  // namespace

void AgreeOnBad(const comm::Communicator& world, const std::string& path, const TokenLayout& layout,
                const ArrayName& array, BadValue bad) {
  const std::int64_t first = world.Min(bad.offset);
  if (first == kNoElement) return;
  const auto finder =
      static_cast<int>(world.Min(std::int64_t{bad.offset == first ? world.Rank() : world.Size()}));
  world.Broadcast(&bad.value, sizeof bad.value, finder);
  world.Together([&] {
    throw BadElement(path, layout, array.split, array.array, {first, bad.value});
  });
}

void ReadArrays(const comm::Communicator& world, const std::string& path, const TokenLayout& layout,
                TokenMemory& memory, const std::function<void()>& after_round,
                std::int64_t round_bytes) {
  const bool reads = memory.Fills();
  const comm::Communicator readers = world.Split(reads ? 0 : 1, world.Rank(), "readers");
  std::optional<TokenArrays> file;
  world.Together([&] {
    if (reads) file.emplace(path, layout);
  });
  for (const Split split : kSplits) {
    for (const Array array : kArrays) {
      if (!memory.Keeps(split)) continue;
      const StoredArray& stored = layout.Of(split, array);
      if (!stored.There()) continue;
      const ArrayReader reader(path, layout, memory, split, array);
      const std::int64_t most = std::max<std::int64_t>(round_bytes / stored.width, 1);
      for (std::int64_t first = 0; first < stored.count; first += most) {
        const Round round = {first, std::min(most, stored.count - first), readers.Size()};
        std::int64_t bad = kNoElement;
        world.Together([&] {
          if (!reads) return;
          bad = reader.Read(*file, round.Begin(readers.Rank()), round.Begin(readers.Rank() + 1));
        });
        reader.RequireGood(world, bad);
        if (reads) reader.PassOn(readers, round);
        if (after_round) after_round();
      }
    }
  }
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

NodeFile MakeNodeFile(const comm::Communicator& world, const comm::Communicator& node,
                      const std::string& folder, bool reads) {
  NodeFile made;
  Name name;
  const bool stages = node.Max(std::int64_t{reads}) > 0;
  world.Together([&] {
    if (!stages || !node.IsRoot()) return;
    RemoveLeftovers(folder);
    made.filled.emplace(MakeLocked(folder, name));
  });
  const std::string path = node.Broadcast(name.path);
  world.Together([&] {
    if (!reads || node.IsRoot()) return;
    made.read.emplace(path, O_RDONLY);
    if (made.read->Valid()) return;
    throw RunError(fmt::format("{}: cannot be opened by a rank of the node that made it: {}", path,
                               ErrorText(errno)),
                   "Do these ranks see different folders, as in containers of their own?");
  });
  return made;
}

std::unique_ptr<const TokenArrays> StageOnNodes(const StagingRequest& request, TokenLayout& layout,
                                                StagedCopies& staged,
                                                const std::function<void()>& after_round) {
  const double start = Seconds();
  const Keeping& keeping = request.keeping;
  const comm::Communicator& world = request.world;
  NodeFile file = MakeNodeFile(world, request.node, keeping.folder, keeping.reads);
  std::optional<Copy> copy;
  if (file.filled) copy.emplace(keeping.folder, *file.filled);
  staged = {.files = 1};
  EachArray(layout, keeping, [&](const ArrayName& name) {
    staged.bytes += layout.Of(name.split, name.array).Bytes();
  });
  world.Together([&] {
    if (!copy) return;
    EachArray(layout, keeping, [&](const ArrayName& name) {
      const StoredArray& stored = layout.Of(name.split, name.array);
      copy->Reserve(layout.bytes, stored.offset, stored.Bytes());
    });
  });
  std::unique_ptr<const TokenArrays> opened;
  {
    Stager stager(request, layout, copy ? &*copy : nullptr);
    staged.nodes = stager.Nodes();
    EachArray(layout, keeping, [&](const ArrayName& name) { stager.Stage(name, after_round); });
    stager.Finish();
  }
  for (const Split split : kSplits) {
    if (!keeping.splits.at(static_cast<std::size_t>(split))) continue;
    for (StoredArray& array : layout.arrays.at(static_cast<std::size_t>(split))) {
      array.big_endian = false;
    }
  }
  world.Together([&] {
    if (!keeping.reads) return;
    opened = std::make_unique<TokenArrays>(fmt::format("{} (its copy on the node)", request.path),
                                           std::move(file.read ? *file.read : *file.filled));
  });
  staged.seconds = world.Max(Seconds() - start);
  return opened;
}

}  // namespace trireme::data
