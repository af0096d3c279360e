// Staging of token files: copies per node, few reads, and faults on the way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hdf5.h>
#include <mpi.h>
#include <sys/file.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>

#include "call_count.hpp"
#include "folders.hpp"
#include "scratch.hpp"
#include "stage.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/data/options.hpp"
#include "trireme/data/windows.hpp"

namespace trireme::test {

// A network that changes a byte: MPI_Bcast as a test program's own function, by way of MPI's
// profiling interface.

// While it lives, this rank gets each broadcast message of more than `least` bytes with one of them
// changed; 0: no message.
class SpoiledBroadcast {
 public:
  explicit SpoiledBroadcast(long least);
  ~SpoiledBroadcast();
  SpoiledBroadcast(const SpoiledBroadcast&) = delete;
  SpoiledBroadcast& operator=(const SpoiledBroadcast&) = delete;
};

// MPI_Bcast that spoils what arrives.

namespace {
long spoiled_above = 0;
}  // namespace

SpoiledBroadcast::SpoiledBroadcast(long least) { spoiled_above = least; }
SpoiledBroadcast::~SpoiledBroadcast() { spoiled_above = 0; }

}  // namespace trireme::test

extern "C" int MPI_Bcast(void* data, int count, MPI_Datatype type, int root, MPI_Comm group) {
  const int result = PMPI_Bcast(data, count, type, root, group);
  const bool spoils = trireme::test::spoiled_above > 0 && count > trireme::test::spoiled_above;
  if (spoils) static_cast<unsigned char*>(data)[count / 2] ^= 1;
  return result;
}

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

// Copies of token files on nodes, which groups of the ranks stand in for: the windows are those of
// tokens in memory, the source is read once, no name is left, and what goes wrong is agreed.

constexpr std::int64_t kTokens = 30'011;
constexpr std::int64_t kSmallChunk = 1000;  // bytes: many rounds, and a part of one at the end

enum class Kind { kNarrow, kWide, kBigEndian };

TokenData MakeData(Kind kind) {
  TokenData data;
  const std::int64_t words = kind == Kind::kWide ? 80'000 : 100;
  const std::array<std::int64_t, 3> counts = {kTokens, 1017, 2};
  for (const Split split : kSplits) {
    const auto s = static_cast<std::size_t>(split);
    for (std::int64_t i = 0; i < counts[s]; ++i) {
      const PhiloxCounter counter = {static_cast<std::uint32_t>(i),
                                     static_cast<std::uint32_t>(split)};
      const std::uint32_t random = Philox(counter, MakeKey(1, Purpose::kVerify))[0];
      data.tokens[s].push_back(static_cast<std::int32_t>(random % words));
      if (i == 0 || random % 20 == 0) data.documents[s].push_back(i);
      data.counted[s].push_back(random % 3 == 0 ? 0 : 1);
    }
  }
  for (std::int64_t i = 0; i < words; ++i) data.vocabulary.words.push_back("w" + std::to_string(i));
  data.tokenizer = "word";
  data.source_sha256 = std::string(64, 'b');
  return data;
}

// Replaces the training tokens by the same ones with their bytes swapped.
void StoreBigEndian(const std::string& path, const TokenData& data) {
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  H5Ldelete(file, "/train/tokens", H5P_DEFAULT);
  const hsize_t count = data.tokens[0].size();
  const hid_t space = H5Screate_simple(1, &count, nullptr);
  const hid_t set = H5Dcreate2(file, "/train/tokens", H5T_STD_U16BE, space, H5P_DEFAULT,
                               H5P_DEFAULT, H5P_DEFAULT);
  H5Dwrite(set, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, data.tokens[0].data());
  H5Dclose(set);
  H5Sclose(space);
  H5Fclose(file);
}

class StagedFile : public testing::Test {
 protected:
  StagedFile() {
    if (world_.IsRoot()) {
      fs::create_directory(folder_);
      fs::create_directory(source_folder_);
    }
    world_.Barrier();
  }

  void WriteSource(Kind kind) const {
    world_.Together([&] {
      if (!world_.IsRoot()) return;
      const TokenData data = MakeData(kind);
      WriteTokenFile(path_, data, true);
      if (kind == Kind::kBigEndian) StoreBigEndian(path_, data);
    });
  }

  Keeping OnNodes(std::array<bool, 3> splits = {true, true, true}) const {
    Keeping keeping(Staging::kNode, splits, 2);
    keeping.folder = folder_;
    return keeping;
  }

  // A node of `ranks` of them.
  comm::Communicator NodesOf(int ranks) const {
    return world_.Split(world_.Rank() / ranks, world_.Rank());
  }

  void ExpectEmpty() const { EXPECT_TRUE(fs::is_empty(folder_)) << "a name is left"; }

  // Every rank must get the same error, and nothing is left.
  std::string Refusal(const std::function<void()>& body, ExitCode code) const {
    std::string message = "no error";
    try {
      body();
      ADD_FAILURE() << "no error";
    } catch (const AgreedError& error) {
      EXPECT_EQ(error.Code(), code);
      message = error.what();
    }
    for (const std::string& each : world_.Gather(message)) EXPECT_EQ(each, message);
    ExpectEmpty();
    return message;
  }

  comm::Communicator world_ = comm::Communicator::Adopt(MPI_COMM_WORLD);
  const test::SharedFolder shared_{world_};
  const std::string folder_ = fs::canonical(shared_.Path()).string() + "/node";
  const std::string source_folder_ = fs::canonical(shared_.Path()).string() + "/source";
  const std::string path_ = source_folder_ + "/tokens.h5";
};

// All of a split, as a stream is read: the same on every rank.
void ExpectSame(const TokenFile& memory, const TokenFile& staged, Split split) {
  const comm::Communicator self = comm::Communicator::Adopt(MPI_COMM_SELF);
  const std::int64_t length = 500, size = memory.Size(split);
  const Windows::Turns turns = [&](std::int64_t turn, std::vector<Sample>& samples) {
    const std::int64_t start = turn * length;
    if (start + 1 >= size) return false;
    samples.assign(1, {.start = start, .targets = std::min(length, size - 1 - start)});
    return true;
  };
  Windows wanted(memory, split, self, turns), found(staged, split, self, turns);
  for (std::int64_t turn = 0; turn * length + 1 < size; ++turn) {
    const Turn there = wanted.Take(turn), here = found.Take(turn);
    ASSERT_EQ(here.Samples().size(), 1U);
    const Window right = Copy(there[0]), mine = Copy(here[0]);
    EXPECT_EQ(mine.ids, right.ids);
    EXPECT_EQ(mine.documents, right.documents);
    EXPECT_EQ(mine.counted, right.counted);
  }
}

TEST_F(StagedFile, HasTheWindowsOfTokensInMemory) {
  for (const Kind kind : {Kind::kNarrow, Kind::kWide, Kind::kBigEndian}) {
    WriteSource(kind);
    const TokenFile memory(world_, world_, path_, Staging::kNone);
    for (int ranks = 1; ranks <= world_.Size(); ranks *= 2) {
      const comm::Communicator node = NodesOf(ranks);
      const TokenFile staged(world_, node, path_, OnNodes());
      ExpectEmpty();
      EXPECT_TRUE(staged.Streams());
      EXPECT_EQ(staged.MemoryBytes(), 0);
      EXPECT_EQ(staged.Staged().nodes, world_.Size() / ranks);
      for (const Split split : kSplits) ExpectSame(memory, staged, split);
    }
  }
}

// Chunks of a few hundred elements: rounds of all nodes, and their ends.
TEST_F(StagedFile, ChunksMeetWithoutAGap) {
  WriteSource(Kind::kBigEndian);
  TokenLayout source;
  world_.Together([&] { source = InspectTokenFile(path_); });
  const Keeping keeping = OnNodes();
  for (int ranks = 1; ranks <= world_.Size(); ranks *= 2) {
    const comm::Communicator node = NodesOf(ranks);
    TokenLayout layout = source;
    StagedCopies staged;
    const auto copy = StageOnNodes({path_, keeping, world_, node, kSmallChunk}, layout, staged, {});
    const TokenArrays original(path_, source);
    std::int64_t bytes = 0;
    for (const Split split : kSplits) {
      for (const Array array : kArrays) {
        const StoredArray& stored = source.Of(split, array);
        std::vector<std::byte> right(static_cast<std::size_t>(stored.Bytes())), mine(right.size());
        original.Read(stored, 0, stored.count, right.data());
        copy->Read(layout.Of(split, array), 0, stored.count, mine.data());
        EXPECT_EQ(mine, right) << PathOf(split, array);
        bytes += stored.Bytes();
      }
    }
    EXPECT_EQ(staged.bytes, bytes);
  }
}

// Splits that are not kept come from the source; ranks that do not read have no copy open, and a
// node without one that reads gets none.
TEST_F(StagedFile, TakesWhatIsKeptToWhereItIsRead) {
  WriteSource(Kind::kBigEndian);
  const TokenFile memory(world_, world_, path_, Staging::kNone);
  const comm::Communicator node = NodesOf(1);
  Keeping keeping = OnNodes({false, true, false});
  keeping.reads = world_.IsRoot();
  const TokenFile staged(world_, node, path_, keeping);
  EXPECT_EQ(staged.Staged().nodes, 1);
  EXPECT_LT(staged.Staged().bytes, kTokens);
  if (world_.IsRoot()) ExpectSame(memory, staged, Split::kValid);
  if (!world_.IsRoot()) {
    EXPECT_THROW(staged.Opened(), std::logic_error);
  }
  TokenReader train(staged, Split::kTrain);
  Window window;
  EXPECT_EQ(Copy(train.Read(0, kTokens, window)).ids, MakeData(Kind::kNarrow).tokens[0]);
}

// Bytes that the source's file system delivers while a file is opened: those of the arrays once,
// and for each node that reads some of them parts by which it knows the file.
TEST_F(StagedFile, IsReadOnceWhateverTheNumberOfRanks) {
  WriteSource(Kind::kWide);
  TokenLayout layout;
  world_.Together([&] { layout = InspectTokenFile(path_); });
  std::int64_t arrays = 0, sample = 0;
  for (const Split split : kSplits) {
    for (const Array array : kArrays) {
      arrays += layout.Of(split, array).Bytes();
      sample += 3 * std::min<std::int64_t>(4096, layout.Of(split, array).Bytes());
    }
  }
  const auto count = [&](const comm::Communicator& node, const Keeping& keeping) {
    world_.Barrier();
    test::CallCount counted(source_folder_);
    const TokenFile file(world_, node, path_, keeping);
    const test::CallCounts counts = counted.Stop();
    const auto sum = [&](test::Counted kind) {
      return world_.Sum(counts[static_cast<std::size_t>(kind)]);
    };
    return std::array<std::int64_t, 2>{sum(test::Counted::kReadBytes), sum(test::Counted::kOpen)};
  };
  // Reads of rank 0 that get to know the file, alone.
  const auto inspected = count(world_, Keeping(Staging::kStream, {false, false, false}, 2));
  for (int ranks = 1; ranks <= world_.Size(); ranks *= 2) {
    const comm::Communicator node = NodesOf(ranks);
    const int nodes = world_.Size() / ranks;
    const auto [bytes, opens] = count(node, OnNodes());
    const std::int64_t readers = opens - inspected[1];
    EXPECT_LE(readers, nodes);
    EXPECT_EQ(bytes - inspected[0], arrays + readers * sample) << nodes << " nodes";
  }
  // Of ranks that stream, each reads for itself.
  const auto streamed = count(world_, Keeping(Staging::kStream));
  EXPECT_EQ(streamed[1] - inspected[1], world_.Size());
}

TEST_F(StagedFile, BadTokensAreRefusedAtOnce) {
  WriteSource(Kind::kNarrow);
  world_.Together([&] {
    if (!world_.IsRoot()) return;
    const hid_t file = H5Fopen(path_.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    const hid_t set = H5Dopen2(file, "/train/tokens", H5P_DEFAULT);
    std::vector<std::int32_t> tokens(kTokens, 1);
    tokens[20'001] = tokens[30'000] = 100;
    H5Dwrite(set, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, tokens.data());
    H5Dclose(set);
    H5Fclose(file);
  });
  const comm::Communicator node = NodesOf(1);
  EXPECT_THAT(Refusal([&] { TokenFile(world_, node, path_, OnNodes()); }, ExitCode::kBadInput),
              AllOf(HasSubstr("/train/tokens: token at offset 20001 has id 100"),
                    testing::Not(HasSubstr("(on rank"))));
}

TEST_F(StagedFile, AFileThatChangesMeanwhileIsNamed) {
  WriteSource(Kind::kNarrow);
  const comm::Communicator node = NodesOf(1);
  const auto touch = [&] {
    if (world_.IsRoot()) fs::last_write_time(path_, fs::file_time_type::clock::now());
    world_.Barrier();
  };
  EXPECT_THAT(Refusal([&] { TokenFile(world_, node, path_, OnNodes(), touch); }, ExitCode::kFailed),
              HasSubstr("tokens.h5: the file was written to since this job opened it"));
}

// A byte that the network changes, on the last of the nodes.
TEST_F(StagedFile, AChangedByteIsFoundByTheHash) {
  WriteSource(Kind::kNarrow);
  const comm::Communicator node = NodesOf(1);
  const test::SpoiledBroadcast spoiled(world_.Rank() == world_.Size() - 1 ? kTokens : 0);
  EXPECT_THAT(Refusal([&] { TokenFile(world_, node, path_, OnNodes()); }, ExitCode::kFailed),
              HasSubstr("/train/tokens: the copy in " + folder_ + " has another hash"));
}

TEST_F(StagedFile, AFolderThatFillsUpIsOneMessage) {
  WriteSource(Kind::kNarrow);
  const comm::Communicator node = NodesOf(1);
  const test::FullDisk full(1 << 14);
  EXPECT_THAT(Refusal([&] { TokenFile(world_, node, path_, OnNodes()); }, ExitCode::kBadInput),
              HasSubstr(folder_ + ": cannot hold "));
}

TEST_F(StagedFile, APlaceNeedsRoomOnEveryNode) {
  const comm::Communicator node = NodesOf(1);
  StagingPlace place;
  const std::string missing = folder_ + "/missing";
  // Each node has another one of two folders: no place for all.
  std::vector<std::string> folders = {folder_, missing};
  if (world_.Rank() % 2 == 1) std::swap(folders[0], folders[1]);
  const auto choose = [&](std::int64_t bytes) { place.Choose(world_, node, folders, bytes); };
  EXPECT_THAT(Refusal([&] { choose(1); }, ExitCode::kBadInput),
              HasSubstr(missing + ": No such file or directory"));
  folders = {missing, folder_};
  choose(1);
  EXPECT_EQ(place.Folder(), folder_);
  EXPECT_THAT(Refusal([&] { choose(std::int64_t{1} << 60); }, ExitCode::kBadInput),
              AllOf(HasSubstr("has no room for 1099511627776.0 MiB of tokens"),
                    HasSubstr(folder_ + ": "), HasSubstr(" MiB are free")));
  EXPECT_TRUE(TakesMemory("/dev/shm"));
  EXPECT_FALSE(TakesMemory("/proc"));
}

// A maker that was killed before the file lost its name has left an empty one without a lock.
TEST_F(StagedFile, LeftoversOfTheKilledAreRemoved) {
  if (!world_.IsRoot()) return;
  const auto make = [&](const std::string& name, const char* text) {
    std::ofstream(folder_ + "/" + name) << text;
  };
  make("trireme_tokens_abcdef", "");
  make("trireme_tokens_locked", "");
  make("trireme_tokens_filled", "of somebody else");
  make("trireme_tokens_a", "");
  make("others", "");
  const Descriptor held(folder_ + "/trireme_tokens_locked", O_RDONLY);
  ASSERT_EQ(::flock(held.Get(), LOCK_EX), 0);
  EXPECT_EQ(RemoveLeftovers(folder_), 1);
  EXPECT_FALSE(fs::exists(folder_ + "/trireme_tokens_abcdef"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 4);
}

}  // namespace
}  // namespace trireme::data
