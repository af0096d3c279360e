// Reads the tokens through HDF5's MPI-IO driver: the readers (every rank that fills a copy) split
// the file among them, so that the file system delivers it once, and pass the parts on through MPI.
#include "token_file_read.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "hdf5.hpp"
#include "plain_dataset.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {

namespace {

constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();

// Readers' parts of one round: reader r has [Begin(r), Begin(r + 1)) of the whole dataset.
struct Round {
  std::int64_t first = 0, tokens = 0;
  int readers = 1;
  std::int64_t Begin(int reader) const { return first + tokens * reader / readers; }
};

class Reader {
 public:
  Reader(const comm::Communicator& readers, const std::string& path, std::int64_t round_bytes)
      : readers_(readers), round_bytes_(round_bytes) {
    readers_.Together([&] {
      const Hdf5Handle access = MakeProperties(H5P_FILE_ACCESS);
      H5Pset_fapl_mpio(access.Get(), readers_.Handle(), MPI_INFO_NULL);
      file_ = {H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.Get()), H5Fclose};
      if (!file_.Valid()) {
        throw RunError(path + ": cannot be opened through MPI-IO", Hdf5Reason());
      }
      transfer_ = MakeProperties(H5P_DATASET_XFER);
      H5Pset_dxpl_mpio(transfer_.Get(), H5FD_MPIO_COLLECTIVE);
    });
  }

  // Fills [count] tokens of `width` bytes. A failure is agreed on after the last round, so that no
  // reader waits for one that left.
  void Read(const std::string& path, const std::string& name, std::int64_t count,
            std::int64_t width, void* tokens) const {
    PlainDataset dataset;
    readers_.Together([&] {
      hsize_t bytes = 0;
      if (H5Fget_filesize(file_.Get(), &bytes) < 0) {
        throw RunError(fmt::format("{}: its size is unknown", path), Hdf5Reason());
      }
      dataset =
          OpenPlainDataset(file_.Get(), path, name, {width}, static_cast<std::int64_t>(bytes));
      if (dataset.count >= count) return;
      throw InputError(
          fmt::format("{}: {}: {} tokens expected, {} found: another process writes "
                      "this file",
                      path, name, count, dataset.count));
    });
    const Hdf5Handle& set = dataset.set;
    std::int64_t failed_at = kNone;
    std::string reason;
    const std::int64_t most = std::max<std::int64_t>(round_bytes_ / width, 1);  // tokens per round
    for (std::int64_t first = 0; first < count; first += most) {
      const Round round = {first, std::min(most, count - first), readers_.Size()};
      if (!ReadPart(set, round, width, tokens) && failed_at == kNone) {
        failed_at = round.Begin(readers_.Rank());
        reason = Hdf5Reason();
      }
      PassOn(round, width, tokens);
    }
    readers_.Together([&] {
      if (failed_at == kNone) return;
      throw RunError(fmt::format("{}: {}: cannot be read at offset {}", path, name, failed_at),
                     reason);
    });
  }

 private:
  bool ReadPart(const Hdf5Handle& set, const Round& round, std::int64_t width, void* tokens) const {
    const std::int64_t begin = round.Begin(readers_.Rank());
    const auto start = static_cast<hsize_t>(begin);
    const auto count = static_cast<hsize_t>(round.Begin(readers_.Rank() + 1) - begin);
    const Hdf5Handle space(H5Dget_space(set.Get()), H5Sclose);
    const Hdf5Handle memory(H5Screate_simple(1, &count, nullptr), H5Sclose);
    if (count > 0) {
      H5Sselect_hyperslab(space.Get(), H5S_SELECT_SET, &start, nullptr, &count, nullptr);
    } else {
      H5Sselect_none(space.Get());
      H5Sselect_none(memory.Get());
    }
    const hid_t type = width == 2 ? H5T_NATIVE_UINT16 : H5T_NATIVE_UINT32;
    return H5Dread(set.Get(), type, memory.Get(), space.Get(), transfer_.Get(),
                   static_cast<std::byte*>(tokens) + begin * width) >= 0;
  }

  void PassOn(const Round& round, std::int64_t width, void* tokens) const {
    if (readers_.Size() == 1) return;
    std::vector<int> counts, begins;
    for (int reader = 0; reader < readers_.Size(); ++reader) {
      const std::int64_t begin = round.Begin(reader) - round.first;
      begins.push_back(static_cast<int>(begin * width));
      counts.push_back(static_cast<int>((round.Begin(reader + 1) - round.first - begin) * width));
    }
    MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_BYTE, static_cast<std::byte*>(tokens) + round.first * width,
                   counts.data(), begins.data(), MPI_BYTE, readers_.Handle());
  }

  const comm::Communicator& readers_;
  std::int64_t round_bytes_;
  Hdf5Handle file_, transfer_;
};

// Offset of the first token whose id is not below the vocabulary, or kNone. Each reader looks at
// its part of the array; the smallest offset of all counts.
std::int64_t FirstBad(const comm::Communicator& world, const TokenLayout& layout,
                      const TokenMemory& memory, Split split) {
  const auto words = static_cast<std::int64_t>(layout.vocabulary.words.size());
  const std::int64_t count = layout.counts.at(static_cast<std::size_t>(split));
  const Round all = {0, count, world.Size()};
  std::int64_t bad = kNone;
  for (std::int64_t i = all.Begin(world.Rank()); i < all.Begin(world.Rank() + 1); ++i) {
    // Ids above 2^31 turn negative in int32.
    const std::int32_t id = memory.Token(split, i);
    if (id >= 0 && id < words) continue;
    bad = i;
    break;
  }
  return world.Min(bad);
}

}  // namespace

void ReadTokens(const comm::Communicator& world, const std::string& path, const TokenLayout& layout,
                TokenMemory& memory, std::int64_t round_bytes) {
  const QuietHdf5 quiet;
  const comm::Communicator readers = world.Split(memory.Fills() ? 0 : 1, world.Rank());
  world.Together([&] {
    if (!memory.Fills()) return;
    const Reader reader(readers, path, round_bytes);
    for (const Split split : kSplits) {
      const auto i = static_cast<std::size_t>(split);
      reader.Read(path, TokensOf(split), layout.counts.at(i), layout.widths.at(i),
                  memory.Tokens(split));
    }
  });
  memory.Publish();
  for (const Split split : kSplits) {
    const std::int64_t bad = FirstBad(world, layout, memory, split);
    world.Together([&] {
      if (bad == kNone) return;
      throw InputError(
          fmt::format("{}: {}: token at offset {} has id {}, but the vocabulary has {} words", path,
                      TokensOf(split), bad, static_cast<std::uint32_t>(memory.Token(split, bad)),
                      layout.vocabulary.words.size()),
          "The file is damaged: write it again with job.task = tokenize.");
    });
  }
}

}  // namespace trireme::data
