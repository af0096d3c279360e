// StageOnNodes: chunks are read by the first ranks of nodes in turn, passed on, written and read
// back.
#include "stage.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "element_checks.hpp"
#include "node_file.hpp"
#include "positioned_file.hpp"
#include "token_file_read.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {

namespace {

using Hash = std::array<std::int64_t, 2>;
constexpr auto kHashBytes = static_cast<std::int64_t>(sizeof(Hash));

Hash HashOf(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {static_cast<std::int64_t>(hash.low64), static_cast<std::int64_t>(hash.high64)};
}

// Whether a failure to write means that the folder is full.
bool IsFull(int error) { return error == ENOSPC || error == EDQUOT || error == EFBIG; }

Error CannotHold(const std::string& folder, std::int64_t bytes, int error) {
  const std::string what =
      fmt::format("{}: cannot hold {} bytes of tokens: {}", folder, bytes, ErrorText(error));
  if (!IsFull(error)) return RunError(what);
  return InputError(what,
                    "data.staging_path names another folder of the nodes; data.staging = "
                    "stream needs none.");
}

// The copy on this node while it is filled.
class Copy {
 public:
  Copy(const std::string& folder, const Descriptor& file) : folder_(folder), file_(file.Get()) {}

  // Gives the file its length, and real space to [offset, offset + bytes) where that is possible;
  // where it is not, the writing tells.
  void Reserve(std::int64_t length, std::int64_t offset, std::int64_t bytes) {
    if (bytes == 0) return;
    if (Retry([&] { return ::ftruncate(file_, length); }) != 0) Fail(bytes);
    if (Retry([&] { return ::fallocate(file_, 0, offset, bytes); }) == 0) return;
    if (errno != EOPNOTSUPP && errno != EINVAL && errno != ENOSYS) Fail(bytes);
  }

  void Write(std::int64_t offset, std::span<const std::byte> bytes) {
    errno = WriteAt(file_, bytes.data(), bytes.size(), offset);
    if (errno != 0) Fail(std::ssize(bytes));
  }

  // Hash of `bytes` bytes as they are read back.
  Hash ReadBack(std::int64_t offset, std::int64_t bytes) {
    back_.resize(static_cast<std::size_t>(bytes));
    const std::int64_t got = ReadAt(file_, offset, back_);
    if (got < bytes) {
      throw RunError(fmt::format("{}: tokens cannot be read back: {}", folder_,
                                 got < 0 ? ErrorText(errno) : "the copy ends early"));
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
  // copy: null on ranks that fill none. layout: of the source.
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

  // Collective. Copies an array.
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

  // Collective. The source as its readers have found it, and one hash on all nodes.
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
  // Elements [first, end) of an array, in chunks of `most`.
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

  // Fills `to` with elements [begin, end) and their hash. Returns the first bad one.
  BadValue ReadChunk(const ArrayName& name, std::int64_t begin, std::int64_t end, std::byte* to) {
    const auto& [split, array] = name;
    if (!source_) source_.emplace(request_.path, layout_);
    source_->Read(layout_, split, array, begin, end, to);
    const std::int64_t next = nodes_ * (end - begin);  // to this rank's next chunk, if it is full
    source_->Prefetch(layout_, split, array, begin + next, end + next);
    const StoredArray& stored = layout_.Of(split, array);
    Elements elements{to, begin, end};
    if (array == Array::kDocuments && begin > 0) {
      source_->Read(layout_, split, array, begin - 1, begin, &elements.before);
    }
    const std::int64_t bad = FirstBad(layout_, split, array, elements);
    source_->RequireUnchanged();  // a file that is written to may show anything
    const auto bytes = static_cast<std::size_t>((end - begin) * stored.width);
    const Hash hash = HashOf({to, bytes});
    std::memcpy(to + bytes, hash.data(), sizeof hash);
    if (bad == kNoElement) return {kNoElement, 0};
    return {bad, ValueAt(stored, elements, bad)};
  }

  // Writes a chunk to the copy, and checks what it reads back.
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
  std::int64_t nodes_;    // that get a copy
  std::int64_t at_once_;  // chunks in a round
  std::vector<std::byte> room_;
  std::optional<PositionedFile> source_;  // once it is this rank's turn to read
  std::int64_t turn_ = 0;                 // chunks before this round
  Hash hash_{};                           // of the hashes so far
};

// Calls visit({split, array}) for each array that is kept.
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

std::unique_ptr<const PositionedFile> StageOnNodes(const StagingRequest& request,
                                                   TokenLayout& layout, StagedCopies& staged,
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
  std::unique_ptr<const PositionedFile> opened;
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
    opened =
        std::make_unique<PositionedFile>(fmt::format("{} (its copy on the node)", request.path),
                                         std::move(file.read ? *file.read : *file.filled));
  });
  staged.seconds = world.Max(Seconds() - start);
  return opened;
}

}  // namespace trireme::data
