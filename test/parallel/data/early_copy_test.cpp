// Rounds of counts while ranks encode, and token files of several ranks that are copied meanwhile.
#include <limits>
#include <numeric>
#include <thread>

#include "text_fixture.hpp"
#include "tokenize_texts.hpp"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

class EarlyCopies : public Texts {
 protected:
  EarlyCopies() : world_(comm::Communicator::Adopt(MPI_COMM_WORLD)) {
    shared_ = world_.Broadcast(folder_);
  }
  std::string Shared(const std::string& name) const { return shared_ + "/" + name; }
  // Written by rank 0.
  void WriteShared(const std::string& name, const std::string& text) {
    if (world_.IsRoot()) Write(name, text);
    world_.Barrier();
  }
  // All ranks write the same bytes as one that copies nothing early.
  void ExpectSame(TextPlan plan, bool early) {
    EXPECT_EQ(TokenizeTexts(world_, tokenizer, plan, Shared("a.h5"), {}).early, early);
    plan.early_tokens = std::numeric_limits<std::int64_t>::max();
    TokenizeTexts(comm::Communicator::Adopt(MPI_COMM_SELF), tokenizer, plan, In("one.h5"), {});
    EXPECT_TRUE(test::ReadBytes(Shared("a.h5")) == test::ReadBytes(In("one.h5")));
    EXPECT_FALSE(fs::exists(Shared("a.h5.tmp")));
    world_.Barrier();
  }
  static std::string Lines(int documents, int seed) {
    std::string text;
    for (int i = 0; i < documents; ++i) {
      text += "document " + std::to_string(i * 7919 + seed) + "\n";
    }
    return text;
  }

  comm::Communicator world_;
  std::string shared_;
};

TEST_F(EarlyCopies, PlainTexts) {
  WriteShared("a", Lines(3'000, 1));
  WriteShared("b", Lines(2'000, 2));
  TextPlan plan;
  plan.document = DocumentEnd::kLine;
  plan.unit_bytes = 1'000;
  plan.encode = {.eos = {256}, .masks = true, .valid_fraction = 0.2, .test_fraction = 0.1};
  plan.files = FindTextFiles(Shared("a") + "," + Shared("b"), Split::kTrain);
  ExpectSame(plan, true);
  plan.unit_bytes = 40;  // more than a round tells of
  ExpectSame(plan, true);
  plan.unit_bytes = kUnitBytes;  // fewer units than ranks
  ExpectSame(plan, true);
  plan.encode.valid_fraction = 1e-9;
  ExpectSame(plan, false);
}

TEST_F(EarlyCopies, PackedFilesOfAllSizes) {
  TextPlan plan;
  plan.document = DocumentEnd::kLine;
  plan.encode = {.eos = {256}, .valid_fraction = 0.01, .test_fraction = 0.01};
  int seed = 0;
  for (const int documents : {10, 20'000, 1, 3'000, 400, 2, 7'000}) {
    const std::string name = std::to_string(++seed) + ".gz";
    WriteShared(name, Gzip(Lines(documents, seed)));
    plan.files.push_back(FindTextFiles(Shared(name), Split::kTrain).at(0));
  }
  ExpectSame(plan, true);
}

TEST_F(EarlyCopies, AnotherPlaceIsSeen) {
  WriteShared("a", Lines(1'000, 1));
  TextPlan plan;
  plan.document = DocumentEnd::kLine;
  plan.unit_bytes = 500;
  plan.early_shift = -2;
  plan.encode = {.eos = {256}, .valid_fraction = 0.3, .test_fraction = 0.3};
  plan.files = FindTextFiles(Shared("a"), Split::kTrain);
  ExpectSame(plan, false);
}

TEST_F(EarlyCopies, NoTextAtAllIsRefused) {
  WriteShared("a", "");
  TextPlan plan;
  plan.encode.eos = {256};
  plan.files = FindTextFiles(Shared("a"), Split::kTrain);
  EXPECT_THAT(MessageOf([&] { TokenizeTexts(world_, tokenizer, plan, Shared("a.h5"), {}); }),
              testing::HasSubstr("the train split holds 0 tokens"));
}

// The last unit is broken: all ranks have copied by then, and leave the rounds together.
TEST_F(EarlyCopies, AFaultLeavesNothing) {
  WriteShared("a", Lines(5'000, 1) + "\xFF");
  TextPlan plan;
  plan.document = DocumentEnd::kLine;
  plan.unit_bytes = 1'000;
  plan.encode = {.eos = {256}, .valid_fraction = 0.1, .test_fraction = 0.1};
  plan.files = FindTextFiles(Shared("a"), Split::kTrain);
  for (int i = 0; i < 5; ++i) {
    EXPECT_THAT(MessageOf([&] { TokenizeTexts(world_, tokenizer, plan, Shared("a.h5"), {}); }),
                testing::HasSubstr("a: byte 0xff at offset"));
    world_.Barrier();
    if (world_.IsRoot()) {
      const fs::directory_iterator files(folder_);
      EXPECT_EQ(std::distance(begin(files), end(files)), 1);
    }
    world_.Barrier();
  }
}

// Result of a unit with unit * 10 + 1 tokens of train.
UnitResult ResultOf(std::size_t unit) {
  return {.unit = unit, .tokens = {static_cast<std::int64_t>(unit * 10 + 1), 1, 0}};
}

// The first rank finishes its units at once, the last keeps the first unit till the end.
TEST_F(EarlyCopies, UnitsAreKnownOnceAllEarlierOnesAre) {
  constexpr std::size_t kUnits = 500;
  const auto ranks = static_cast<std::size_t>(world_.Size());
  const auto rank = static_cast<std::size_t>(world_.Rank());
  std::vector<UnitResult> mine;
  mine.reserve(kUnits);
  UnitRounds rounds(world_, kUnits, mine, {3'000, 2, 0});
  EXPECT_FALSE(rounds.Ready());
  for (std::size_t u = ranks - 1 - rank; u < kUnits; u += ranks) {
    if (rank != 0) rounds.Look();
    if (u == 0) {
      world_.Barrier();
      EXPECT_EQ(rounds.Known(), 0U);
      EXPECT_FALSE(rounds.Ended());
    }
    mine.push_back(ResultOf(u));
  }
  if (rank != ranks - 1) {
    for (int i = 0; i < 20; ++i) rounds.Look();
    EXPECT_EQ(rounds.Known(), 0U);
    world_.Barrier();
  }
  while (!rounds.Ended()) rounds.Look();
  EXPECT_TRUE(rounds.Ready());
  std::int64_t before = 0;
  for (std::size_t u = 0; u < kUnits; ++u) {
    ASSERT_EQ(rounds.Before(u), before);
    before += ResultOf(u).tokens[0];
  }
}

TEST_F(EarlyCopies, RoundsEndAfterAnErrorWhereverRanksAre) {
  for (int looks = 0; looks < 30; ++looks) {
    std::vector<UnitResult> mine;
    UnitRounds rounds(world_, 100, mine, {});
    // Some ranks look more often than others.
    for (int i = 0; i < looks * (world_.Rank() + 1); ++i) {
      rounds.Look();
      if (i % 3 == 0) std::this_thread::yield();
    }
    rounds.Drain(world_);
    EXPECT_EQ(rounds.Known(), 0U);
  }
}

}  // namespace
}  // namespace trireme::data
