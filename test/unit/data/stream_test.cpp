// Tokens that are streamed from the file: the same as from memory, and few reads.
#include <gmock/gmock.h>
#include <hdf5.h>
#include <malloc.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <string>

#include "scratch.hpp"
#include "trireme/data/windows.hpp"

namespace trireme::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Windows read ahead from a file: those of a copy in memory, in any order of turns, and errors that
// name what happened to the file.

constexpr std::int64_t kStreamTokens = 40'000,
                       kStreamWindow = 64;  // tokens of the train split, of a window

class Stream : public Scratch {
 protected:
  // words: types; above 65536 ids take four bytes.
  std::string MakeFile(std::int64_t words) const {
    TokenData data = SmallData();
    while (std::ssize(data.vocabulary.words) < words) {
      data.vocabulary.words.push_back(std::to_string(data.vocabulary.words.size()));
    }
    data.tokens[0].clear();
    for (std::int64_t i = 0; i < kStreamTokens; ++i) {
      data.tokens[0].push_back(static_cast<std::int32_t>(i * 7919 % words));
      data.counted[0].push_back(i % 3 == 0 ? 0 : 1);
      if (i % 7 == 0) data.documents[0].push_back(i);  // several blocks of them
    }
    WriteTokenFile(In("stream.h5"), data, true);
    return In("stream.h5");
  }

  // One window in turn 0, two in turn 1, and so on, up to a turn.
  static Windows::Turns TurnsBefore(std::int64_t end) {
    return [end](std::int64_t turn, std::vector<Sample>& samples) {
      samples.clear();
      for (std::int64_t i = 0; i <= turn % 5; ++i) {
        const std::int64_t start = (turn * 1009 + i * 77) % (kStreamTokens - kStreamWindow);
        samples.push_back({.start = start, .targets = kStreamWindow - 1 - i});
      }
      return turn < end;
    };
  }

  static void ExpectEqual(const Turn& found, const Turn& wanted) {
    ASSERT_EQ(found.Samples().size(), wanted.Samples().size());
    for (std::size_t i = 0; i < found.Samples().size(); ++i) {
      const Window mine = Copy(found[i]), right = Copy(wanted[i]);
      EXPECT_EQ(mine.ids, right.ids);
      EXPECT_EQ(mine.documents, right.documents);
      EXPECT_EQ(mine.counted, right.counted);
    }
  }

  // The message of the failure that comes with the turns from `turn` on, reading as long as needed.
  static std::string Failure(Windows& windows, std::int64_t turn, ExitCode code) {
    while (!windows.Failed()) windows.Take(turn++);
    EXPECT_TRUE(windows.Take(turn).Samples().empty());  // for good
    return MessageOf([&] { windows.RequireRead(); }, code);
  }

  const comm::Communicator self_ = comm::Communicator::Adopt(MPI_COMM_SELF);
};

TEST_F(Stream, WindowsAreThoseOfMemory) {
  for (const std::int64_t words : {std::int64_t{60'000}, std::int64_t{70'000}}) {
    const std::string path = MakeFile(words);
    const TokenFile memory = Open(path);
    for (const std::int64_t ahead : {1, 3}) {
      const TokenFile stream = Open(path, {Staging::kStream, {true, true, true}, ahead});
      EXPECT_EQ(stream.MemoryBytes(), 0);
      Windows wanted(memory, Split::kTrain, self_, TurnsBefore(100));
      Windows windows(stream, Split::kTrain, self_, TurnsBefore(100));
      for (std::int64_t turn = 10; turn < 40; ++turn) {
        ExpectEqual(windows.Take(turn), wanted.Take(turn));
      }
      // Back, on, and over a gap.
      for (const std::int64_t turn : {3, 4, 4, 90, 91, 0, 99}) {
        ExpectEqual(windows.Take(turn), wanted.Take(turn));
      }
    }
  }
}

TEST_F(Stream, TurnsMayChange) {
  const TokenFile stream = Open(MakeFile(100), Staging::kStream);
  std::int64_t shift = 0;
  Windows windows(stream, Split::kTrain, self_,
                  [&shift](std::int64_t turn, std::vector<Sample>& samples) {
                    samples.assign(1, {.start = turn + shift, .targets = 3});
                    return true;
                  });
  windows.Take(0);
  windows.Take(1);
  windows.Change([&] { shift = 1000; });
  EXPECT_EQ(Copy(windows.Take(2)[0]).ids, ReadOne(stream, Split::kTrain, 1002, 4).ids);
  Windows few(stream, Split::kTrain, self_, TurnsBefore(3));
  EXPECT_TRUE(few.Take(3).Samples().empty());
  EXPECT_TRUE(few.Failed());
  EXPECT_THROW(few.RequireRead(), std::exception);
}

TEST_F(Stream, AFileThatShrinksIsAnError) {
  const std::string path = MakeFile(100);
  const TokenFile stream = Open(path, Staging::kStream);
  Windows windows(stream, Split::kTrain, self_, TurnsBefore(1 << 30));
  windows.Take(0);
  const auto bytes = std::filesystem::file_size(path);
  std::filesystem::resize_file(path, bytes / 4);
  EXPECT_THAT(Failure(windows, 1, ExitCode::kFailed),
              AllOf(HasSubstr("stream.h5"), HasSubstr("this job opened it")));
  // Another reader sees it at once.
  Windows late(stream, Split::kTrain, self_, TurnsBefore(10));
  EXPECT_THAT(Failure(late, 0, ExitCode::kFailed), HasSubstr("this job opened it"));
}

TEST_F(Stream, AFileThatIsWrittenToIsAnError) {
  const std::string path = MakeFile(100);
  const TokenFile stream = Open(path, Staging::kStream);
  Windows windows(stream, Split::kTrain, self_, TurnsBefore(1 << 30));
  windows.Take(0);
  const auto before = std::filesystem::last_write_time(path);
  std::filesystem::last_write_time(path, before + std::chrono::milliseconds(1));
  EXPECT_THAT(Failure(windows, 1, ExitCode::kFailed),
              HasSubstr("stream.h5: the file was written to since this job opened it"));
}

// The open file stays what it was when another one takes its name, or none: for readers that are at
// work, and for those that come later, of a validation for one.
TEST_F(Stream, AFileThatIsReplacedIsReadOn) {
  const std::string path = MakeFile(100);
  const TokenFile memory = Open(path), stream = Open(path, Staging::kStream);
  Windows windows(stream, Split::kTrain, self_, TurnsBefore(100));
  windows.Take(0);
  WriteTokenFile(In("other.h5"), SmallData(), true);
  std::filesystem::rename(In("other.h5"), path);
  Windows wanted(memory, Split::kTrain, self_, TurnsBefore(100));
  Windows late(stream, Split::kTrain, self_, TurnsBefore(100));
  for (std::int64_t turn = 1; turn < 20; ++turn) {
    ExpectEqual(windows.Take(turn), wanted.Take(turn));
    ExpectEqual(late.Take(turn), wanted.Take(turn));
    if (turn == 10) std::filesystem::remove(path);
  }
  EXPECT_EQ(ReadOne(stream, Split::kTrain, 7, 10).ids, ReadOne(memory, Split::kTrain, 7, 10).ids);
}

// Windows take the memory that the plan says, on the rank that reads.
TEST_F(Stream, MemoryIsAsPlanned) {
  constexpr std::int64_t kMany = 64, kAhead = 50, kTargets = 500;
  const std::string path = MakeFile(60'000);
  const auto taken = [] {
    const struct mallinfo2 heap = mallinfo2();
    return static_cast<double>(heap.uordblks + heap.hblkhd);
  };
  if (taken() == 0) GTEST_SKIP() << "a sanitizer's heap keeps no account";
  for (const bool documents : {false, true}) {
    const TokenFile stream = Open(path, {Staging::kStream, {true, true, true}, kAhead});
    const double before = taken();
    Windows windows(
        stream, Split::kTrain, self_,
        [](std::int64_t turn, std::vector<Sample>& samples) {
          samples.clear();
          for (std::int64_t i = 0; i < kMany; ++i) {
            // The first windows are shorter: there is no room for more than the longest.
            samples.push_back({.start = i * 600, .targets = turn < 40 ? kTargets - 50 : kTargets});
          }
          return true;
        },
        documents);
    for (std::int64_t turn = 0; turn < 2 * kAhead; ++turn) windows.Take(turn);
    const auto planned = static_cast<double>(StreamBytes({.read_ahead = kAhead,
                                                          .windows = kMany,
                                                          .tokens = kTargets + 1,
                                                          .documents = documents,
                                                          .masks = true}));
    EXPECT_NEAR((taken() - before) / planned, 1, 0.02) << "documents " << documents;
  }
}

TEST_F(Stream, SplitsThatAreNotReadTakeNoMemory) {
  const std::string path = MakeFile(100);
  const TokenFile valid = Open(path, {Staging::kNone, {false, true, false}, 2});
  const TokenCounts counts = CountTokens(path);
  EXPECT_EQ(valid.MemoryBytes(), counts.bytes[1]);
  EXPECT_LT(valid.MemoryBytes(), kStreamTokens);
  EXPECT_EQ(AllTokens(valid, Split::kValid), SmallData().tokens[1]);
  EXPECT_EQ(valid.Size(Split::kTrain), kStreamTokens);
  EXPECT_THROW(valid.View(Split::kTrain, 0, 1, false).Id(0), std::logic_error);
  EXPECT_EQ(BytesOf(counts, {Staging::kNone, {false, true, false}, 2}), counts.bytes[1]);
  EXPECT_EQ(BytesOf(counts, Staging::kStream), 0);
}

// A bad id in a part of the file that was not read is not seen; read, it is named.
TEST_F(Stream, ABadIdIsNamedWhenItIsRead) {
  const std::string path = MakeFile(100);
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  const hid_t set = H5Dopen2(file, "/train/tokens", H5P_DEFAULT);
  const hsize_t at = 30'000, one = 1;
  const hid_t space = H5Dget_space(set), scalar = H5Screate_simple(1, &one, nullptr);
  H5Sselect_elements(space, H5S_SELECT_SET, 1, &at);
  const std::int32_t id = 1000;
  EXPECT_GE(H5Dwrite(set, H5T_NATIVE_INT32, scalar, space, H5P_DEFAULT, &id), 0);
  H5Sclose(scalar);
  H5Sclose(space);
  H5Dclose(set);
  H5Fclose(file);
  const TokenFile stream = Open(path, Staging::kStream);
  EXPECT_EQ(ReadOne(stream, Split::kTrain, 0, 30'000).ids.size(), 30'000U);
  EXPECT_THAT(MessageOf([&] { ReadOne(stream, Split::kTrain, 29'990, 20); }, ExitCode::kFailed),
              HasSubstr("stream.h5: /train/tokens: token at offset 30000 has id 1000, but the "
                        "vocabulary has 100 words"));
}

}  // namespace
}  // namespace trireme::data

namespace {
std::atomic<std::int64_t> reads = 0;
}  // namespace

// In place of the C library's: counts the calls.
extern "C" ssize_t pread(int file, void* to, std::size_t count, off_t offset) {
  ++reads;
  return syscall(SYS_pread64, file, to, count, offset);
}

namespace trireme::data {
namespace {

// Documents of a stream: those of a copy in memory whatever their lengths, found in few reads, and
// not read where nobody asks for them.

constexpr std::int64_t kTokens = 4'000'000, kWindow = 512;
using Length = std::function<std::int64_t(std::mt19937& random)>;

class StreamReads : public Scratch {
 protected:
  // A train split of documents with lengths drawn one after the other.
  static TokenData Documents(const Length& length) {
    TokenData data = SmallData();
    data.tokens[0].assign(static_cast<std::size_t>(kTokens), 2);
    std::mt19937 random(1);
    for (std::int64_t at = 0; at < kTokens; at += length(random)) {
      data.documents[0].push_back(at);
    }
    return data;
  }

  // Reads windows at the starts; returns the reads that a window took.
  static double ReadsOf(const TokenFile& file, const std::vector<std::int64_t>& starts,
                        bool documents, const TokenFile& memory) {
    const comm::Communicator self = comm::Communicator::Adopt(MPI_COMM_SELF);
    const auto turns = [&](std::int64_t turn, std::vector<Sample>& samples) {
      if (turn >= std::ssize(starts)) return false;
      samples.assign(1, {.start = starts[static_cast<std::size_t>(turn)], .targets = kWindow - 1});
      return true;
    };
    Windows windows(file, Split::kTrain, self, turns, documents);
    Windows wanted(memory, Split::kTrain, self, turns);
    const std::int64_t before = reads;
    for (std::int64_t turn = 0; turn < std::ssize(starts); ++turn) {
      const Window found = Copy(windows.Take(turn)[0]);
      const Window right = Copy(wanted.Take(turn)[0]);
      EXPECT_EQ(found.ids, right.ids);
      EXPECT_EQ(found.documents, documents ? right.documents : std::vector<std::int64_t>{});
    }
    return static_cast<double>(reads - before) / static_cast<double>(starts.size());
  }

  static std::vector<std::int64_t> Anywhere(std::int64_t count) {
    std::mt19937 random(2);
    std::uniform_int_distribution<std::int64_t> start(0, kTokens - kWindow);
    std::vector<std::int64_t> starts(static_cast<std::size_t>(count));
    for (std::int64_t& each : starts) each = start(random);
    return starts;
  }

  static std::vector<std::int64_t> InOrder() {
    std::vector<std::int64_t> starts;
    for (std::int64_t at = 0; at + kWindow <= kTokens; at += kWindow) starts.push_back(at);
    return starts;
  }
};

TEST_F(StreamReads, AWindowTakesFewReads) {
  struct Case {
    const char* name;
    Length length;
    double most;  // reads of a window anywhere, the ids' included
  };
  const Case cases[] = {
      {"equal", [](std::mt19937&) { return 10; }, 2.2},
      {"random", [](std::mt19937& r) { return std::int64_t{1} + r() % 19; }, 2.3},
      {"of one token", [](std::mt19937&) { return 1; }, 2.3},
      {"long", [](std::mt19937& r) { return std::int64_t{1} + r() % 50'000; }, 1.2},
      // Few long ones hold half of the tokens.
      {"skew", [](std::mt19937& r) { return r() % 1000 == 0 ? 5'000 : std::int64_t{1} + r() % 9; },
       2.4},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.name);
    WriteTokenFile(In("stream.h5"), Documents(each.length), true);
    const TokenFile memory = Open(In("stream.h5")),
                    stream = Open(In("stream.h5"), Staging::kStream);
    EXPECT_LT(ReadsOf(stream, Anywhere(3000), true, memory), each.most);
    // Windows in order find their documents in the block that is held.
    EXPECT_LT(ReadsOf(stream, InOrder(), true, memory), 1.6);
    EXPECT_EQ(ReadsOf(stream, Anywhere(1000), false, memory), 1);
  }
}

// All documents but one at the end: interpolation alone would take them one block at a time.
TEST_F(StreamReads, TheWorstListIsHalved) {
  TokenData data = SmallData();
  data.tokens[0].assign(static_cast<std::size_t>(kTokens), 2);
  data.documents[0].resize(static_cast<std::size_t>(kTokens / 2));
  std::iota(data.documents[0].begin(), data.documents[0].end(), kTokens / 2);
  data.documents[0].front() = 0;
  WriteTokenFile(In("stream.h5"), data, true);
  const TokenFile memory = Open(In("stream.h5")), stream = Open(In("stream.h5"), Staging::kStream);
  for (const std::int64_t start : Anywhere(50)) {
    EXPECT_LT(ReadsOf(stream, {start}, true, memory), 36);  // 3 log2(documents / a block), ids
  }
}

// Blocks that ascend by themselves, but not one after the other.
TEST_F(StreamReads, DocumentsThatContradictEachOtherAreNamed) {
  TokenData data = Documents([](std::mt19937&) { return 10; });
  auto& documents = data.documents[0];
  const auto half = documents.begin() + std::ssize(documents) / 2;
  std::rotate(documents.begin() + 1, half, documents.end());
  WriteTokenFile(In("stream.h5"), data, true);
  const TokenFile stream = Open(In("stream.h5"), Staging::kStream);
  EXPECT_THAT(MessageOf(
                  [&] {
                    for (const std::int64_t start : Anywhere(50)) {
                      ReadOne(stream, Split::kTrain, start, kWindow);
                    }
                  },
                  ExitCode::kFailed),
              HasSubstr("stream.h5: /train/documents: "));
}

TEST_F(StreamReads, ATargetThatCountsIsFoundWhereverItIs) {
  constexpr std::size_t kMany = 200'000;
  TokenData data = SmallData();
  data.tokens[0].assign(kMany, 2);
  data.counted[0].assign(kMany, 0);
  const auto found = [&](bool document_mask) {
    WriteTokenFile(In("few.h5"), data, true);
    const bool streamed =
        HasTarget(Open(In("few.h5"), Staging::kStream), Split::kTrain, document_mask);
    EXPECT_EQ(HasTarget(Open(In("few.h5")), Split::kTrain, document_mask), streamed);
    return streamed;
  };
  EXPECT_FALSE(found(false));
  data.counted[0].front() = 1;  // no target
  EXPECT_FALSE(found(false));
  data.counted[0].back() = 1;
  data.documents[0] = {0, 100, kMany - 1};
  EXPECT_TRUE(found(false));
  EXPECT_FALSE(found(true));
  data.documents[0].pop_back();
  EXPECT_TRUE(found(true));
  EXPECT_TRUE(HasTarget(Open(In("few.h5")), Split::kValid, true));
}

}  // namespace

}  // namespace trireme::data
