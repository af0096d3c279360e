// Documents of a stream: those of a copy in memory whatever their lengths, found in few reads, and
// not read where nobody asks for them.
#include <gmock/gmock.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <numeric>
#include <random>
#include <string>

#include "scratch.hpp"
#include "trireme/data/batch.hpp"

namespace {
std::atomic<std::int64_t> reads = 0;
}

// In place of the C library's: counts the calls.
extern "C" ssize_t pread(int file, void* to, std::size_t count, off_t offset) {
  ++reads;
  return syscall(SYS_pread64, file, to, count, offset);
}

namespace trireme::data {
namespace {

using testing::HasSubstr;

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
      const Window& found = windows.Take(turn).front();
      const Window& right = wanted.Take(turn).front();
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
