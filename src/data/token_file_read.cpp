// Reads the tokens: the readers (every rank that fills a copy) split the file among them, so that
// the file system delivers it once, and pass the parts on through MPI. Each reader opens the file
// by itself: under MPI-IO (Open MPI 4.1.4) an open that fails on one rank leaves the others
// waiting, and a read that fails may be reported as done.
#include "token_file_read.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "hdf5.hpp"
#include "plain_dataset.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/flight_recorder.hpp"

namespace trireme::data {

namespace {

constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();

// Readers' parts of one round: reader r has [Begin(r), Begin(r + 1)) of the whole dataset.
struct Round {
  std::int64_t first = 0, tokens = 0;
  int readers = 1;
  std::int64_t Begin(int reader) const { return first + tokens * reader / readers; }
};

// One split of the file as one reader sees it.
class SplitReader {
 public:
  // Serial. `file` must outlive it; invalid: this rank reads nothing.
  SplitReader(const Hdf5Handle& file, const std::string& path, const TokenLayout& layout,
              const TokenMemory& memory, Split split)
      : path_(path),
        name_(TokensOf(split)),
        width_(layout.widths.at(static_cast<std::size_t>(split))),
        words_(std::ssize(layout.vocabulary.words)),
        memory_(memory),
        split_(split) {
    if (!file.Valid()) return;
    hsize_t bytes = 0;
    if (H5Fget_filesize(file.Get(), &bytes) < 0) {
      throw RunError(fmt::format("{}: its size is unknown", path_), Hdf5Reason());
    }
    PlainDataset dataset =
        OpenPlainDataset(file.Get(), path_, name_, {width_}, static_cast<std::int64_t>(bytes));
    const std::int64_t count = layout.counts.at(static_cast<std::size_t>(split));
    if (dataset.count < count) {
      throw InputError(
          fmt::format("{}: {}: {} tokens expected, {} found: another process writes this file",
                      path_, name_, count, dataset.count));
    }
    set_ = std::move(dataset.set);
  }

  // Fills [begin, end) and returns the offset of the first id that is not below the vocabulary, or
  // kNone. Serial.
  std::int64_t Read(std::int64_t begin, std::int64_t end) const {
    if (begin == end) return kNone;
    const auto start = static_cast<hsize_t>(begin), count = static_cast<hsize_t>(end - begin);
    const Hdf5Handle space(H5Dget_space(set_.Get()), H5Sclose);
    const Hdf5Handle memory(H5Screate_simple(1, &count, nullptr), H5Sclose);
    H5Sselect_hyperslab(space.Get(), H5S_SELECT_SET, &start, nullptr, &count, nullptr);
    const hid_t type = width_ == 2 ? H5T_NATIVE_UINT16 : H5T_NATIVE_UINT32;
    if (H5Dread(set_.Get(), type, memory.Get(), space.Get(), H5P_DEFAULT, At(begin)) < 0) {
      throw RunError(fmt::format("{}: {}: cannot be read at offset {}", path_, name_, begin),
                     Hdf5Reason());
    }
    for (std::int64_t i = begin; i < end; ++i) {
      // Ids above 2^31 turn negative in int32.
      const std::int32_t id = memory_.Token(split_, i);
      if (id < 0 || id >= words_) return i;
    }
    return kNone;
  }

  // Collective over the readers: each one's part of a round goes to all.
  void PassOn(const comm::Communicator& readers, const Round& round) const {
    if (readers.Size() == 1) return;
    std::vector<int> counts, begins;
    for (int reader = 0; reader < readers.Size(); ++reader) {
      const std::int64_t begin = round.Begin(reader) - round.first;
      begins.push_back(static_cast<int>(begin * width_));
      counts.push_back(static_cast<int>((round.Begin(reader + 1) - round.first - begin) * width_));
    }
    const comm::Recorded recorded(readers, comm::Call::kAllGather, round.tokens * width_);
    MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_BYTE, At(round.first), counts.data(), begins.data(),
                   MPI_BYTE, readers.Handle());
  }

  // Collective. bad: offset of a bad id on this rank, or kNone. All throw for the first one.
  void RequireGood(const comm::Communicator& world, std::int64_t bad) const {
    const std::int64_t first = world.Min(bad);
    if (first == kNone) return;
    const std::int64_t mine =
        bad == first ? static_cast<std::uint32_t>(memory_.Token(split_, bad)) : 0;
    throw AgreedError(
        ExitCode::kBadInput,
        fmt::format("{}: {}: token at offset {} has id {}, but the vocabulary has {} words", path_,
                    name_, first, world.Max(mine), words_),
        "The file is damaged: write it again with job.task = tokenize.");
  }

 private:
  void* At(std::int64_t token) const {
    return static_cast<std::byte*>(memory_.Tokens(split_)) + token * width_;
  }

  const std::string& path_;
  const std::string name_;
  const std::int64_t width_, words_;  // bytes per token; types
  const TokenMemory& memory_;
  const Split split_;
  Hdf5Handle set_;
};

}  // namespace

void ReadTokens(const comm::Communicator& world, const std::string& path, const TokenLayout& layout,
                TokenMemory& memory, const std::function<void()>& after_round,
                std::int64_t round_bytes) {
  const QuietHdf5 quiet;
  const bool reads = memory.Fills();
  const comm::Communicator readers = world.Split(reads ? 0 : 1, world.Rank(), "readers");
  Hdf5Handle file;
  world.Together([&] {
    if (reads) file = OpenSerially(path);
    if (reads && !file.Valid()) throw RunError(path + ": cannot be opened", Hdf5Reason());
  });
  for (const Split split : kSplits) {
    const auto i = static_cast<std::size_t>(split);
    std::optional<SplitReader> reader;
    world.Together([&] { reader.emplace(file, path, layout, memory, split); });
    const std::int64_t count = layout.counts.at(i);
    const std::int64_t most = std::max<std::int64_t>(round_bytes / layout.widths.at(i), 1);
    for (std::int64_t first = 0; first < count; first += most) {
      const Round round = {first, std::min(most, count - first), readers.Size()};
      std::int64_t bad = kNone;
      world.Together([&] {
        if (reads) bad = reader->Read(round.Begin(readers.Rank()), round.Begin(readers.Rank() + 1));
      });
      reader->RequireGood(world, bad);
      if (reads) reader->PassOn(readers, round);
      if (after_round) after_round();
    }
  }
  memory.Publish();
}

}  // namespace trireme::data
