// Reads the arrays: the readers (every rank that fills a copy) split the file among them, so that
// the file system delivers it once, and pass the parts on through MPI. Each reader opens the file
// by itself: under MPI-IO (Open MPI 4.1.4) an open that fails on one rank leaves the others
// waiting, and a read that fails may be reported as done.
#include "token_file_read.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include "element_checks.hpp"
#include "positioned_file.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/flight_recorder.hpp"

namespace trireme::data {

namespace {

// Readers' parts of one round: reader r has [Begin(r), Begin(r + 1)) of the whole array.
struct Round {
  std::int64_t first = 0, count = 0;  // elements
  int readers = 1;
  std::int64_t Begin(int reader) const { return first + count * reader / readers; }
};

// One array of the file as one reader sees it.
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

  // Fills [begin, end) and returns the offset of the first bad element, or kNoElement. Serial.
  std::int64_t Read(const PositionedFile& file, std::int64_t begin, std::int64_t end) const {
    if (begin == end) return kNoElement;
    file.Read(layout_, split_, array_, begin, end, At(begin));
    Elements elements{At(begin), begin, end};
    if (array_ == Array::kDocuments && begin > 0) {
      file.Read(layout_, split_, array_, begin - 1, begin, &elements.before);
    }
    return FirstBad(layout_, split_, array_, elements);
  }

  // Collective over the readers: each one's part of a round goes to all.
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

  // Collective. bad: offset of a bad element on this rank, or kNoElement. All throw for the first.
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
  std::optional<PositionedFile> file;
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

}  // namespace trireme::data
