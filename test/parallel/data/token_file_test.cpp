// Token files that ranks read together, and the texts that they are made from.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hdf5.h>
#include <mpi.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <functional>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "folders.hpp"
#include "scratch.hpp"
#include "stage.hpp"
#include "token_arrays.hpp"
#include "tokenize_texts.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/data/pairs.hpp"
#include "trireme/data/windows.hpp"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

// Token files opened by several ranks: equal contents however they are staged, and agreed errors.

constexpr std::int64_t kTrainTokens = 100'003;
constexpr std::int64_t kTestTokens = 2;      // of 4 ranks, two read nothing
constexpr std::int64_t kWideWords = 80'000;  // ids do not fit uint16

// Token i of a split, as every rank can work it out.
std::int32_t Expected(Split split, std::int64_t i, std::int64_t words) {
  const PhiloxCounter counter = {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(split)};
  return static_cast<std::int32_t>(Philox(counter, MakeKey(1, Purpose::kVerify))[0] %
                                   static_cast<std::uint32_t>(words));
}

TokenData MakeData(std::int64_t words) {
  TokenData data;
  const std::array<std::int64_t, 3> counts = {kTrainTokens, 17, kTestTokens};
  for (const Split split : kSplits) {
    const auto s = static_cast<std::size_t>(split);
    for (std::int64_t i = 0; i < counts[s]; ++i) {
      data.tokens[s].push_back(Expected(split, i, words));
    }
  }
  for (std::int64_t i = 0; i < words; ++i) data.vocabulary.words.push_back("w" + std::to_string(i));
  data.vocabulary.eos = 3;
  data.vocabulary.unk = 7;
  data.tokenizer = "word";
  data.source_sha256 = std::string(64, 'b');
  data.entropy_rate = 2.5;
  return data;
}

class SharedTokenFile : public testing::Test {
 protected:
  // Rank 0 alone does something to the file; what it throws, all throw.
  template <typename Body>
  void OnRoot(Body&& body) const {
    world_.Together([&] {
      if (world_.IsRoot()) body();
    });
  }

  // Every rank opens and must get the same agreed error of the input; returns its message.
  std::string Refusal(const Keeping& staging) const {
    try {
      const TokenFile file(world_, world_, path_, staging);
    } catch (const AgreedError& error) {
      EXPECT_EQ(error.Code(), ExitCode::kBadInput);
      const std::vector<std::string> messages = world_.Gather(error.what());
      for (const std::string& message : messages) EXPECT_EQ(message, messages.front());
      return error.what();
    }
    ADD_FAILURE() << "the file was not refused";
    return "";
  }

  // Reads the first `count` training tokens, and the other splits, in rounds of that size.
  void ExpectRounds(const TokenLayout& layout, std::int64_t round_bytes, std::int64_t count) const {
    for (const Staging staging : {Staging::kNone, Staging::kSharedMemory}) {
      TokenMemory memory(world_, world_, layout, staging);
      ReadArrays(world_, path_, layout, memory, {}, round_bytes);
      std::int64_t wrong = 0;
      for (const Split split : kSplits) {
        const std::int64_t size = layout.Tokens(split);
        for (std::int64_t i = 0; i < size; ++i) {
          const void* const ids = memory.At(split, Array::kTokens);
          const std::int32_t id = layout.Of(split, Array::kTokens).width == 2
                                      ? static_cast<const std::uint16_t*>(ids)[i]
                                      : static_cast<const std::int32_t*>(ids)[i];
          wrong += id != Expected(split, i, std::ssize(layout.vocabulary.words));
        }
      }
      EXPECT_EQ(wrong, 0) << round_bytes << " bytes per round, " << count << " tokens";
    }
  }

  comm::Communicator world_ = comm::Communicator::Adopt(MPI_COMM_WORLD);
  const test::SharedFolder folder_{world_};
  const std::string path_ = folder_ / "tokens.h5";
};

void ExpectContents(const TokenFile& file, std::int64_t words) {
  EXPECT_EQ(file.Size(Split::kTrain), kTrainTokens);
  EXPECT_EQ(file.Size(Split::kTest), kTestTokens);
  std::int64_t wrong = 0;
  for (const Split split : kSplits) {
    for (std::int64_t i = 0; i < file.Size(split); ++i) {
      if (file.View(split, i, 1, false).Id(0) != Expected(split, i, words)) ++wrong;
    }
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(file.VocabularySize(), words);
  EXPECT_EQ(file.Words().words.back(), "w" + std::to_string(words - 1));
  EXPECT_EQ(file.Words().eos, 3);
  EXPECT_EQ(file.Words().unk, 7);
  EXPECT_EQ(file.EntropyRate(), 2.5);
  EXPECT_EQ(file.Tokenizer(), "word");
}

// Storage in another file, and memory for a file's mere claims: refused by all ranks.
TEST_F(SharedTokenFile, HostileStorageIsRefusedTogether) {
  const auto replaced = [&](const std::function<void(hid_t)>& make) {
    OnRoot([&] {
      WriteTokenFile(path_, MakeData(100), true);
      const hid_t file = H5Fopen(path_.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
      H5Ldelete(file, "/valid/tokens", H5P_DEFAULT);
      make(file);
      H5Fclose(file);
    });
    return Refusal(Staging::kSharedMemory);
  };
  EXPECT_THAT(replaced([](hid_t file) {
                H5Lcreate_external("other.h5", "/tokens", file, "/valid/tokens", H5P_DEFAULT,
                                   H5P_DEFAULT);
              }),
              HasSubstr("/valid/tokens is a link to another file, which is not followed"));
  EXPECT_THAT(replaced([](hid_t file) {
                const hsize_t extent = hsize_t{1} << 62;
                const hid_t space = H5Screate_simple(1, &extent, nullptr);
                H5Dclose(H5Dcreate2(file, "/valid/tokens", H5T_NATIVE_UINT16, space, H5P_DEFAULT,
                                    H5P_DEFAULT, H5P_DEFAULT));
                H5Sclose(space);
              }),
              HasSubstr("/valid/tokens: 4611686018427387904 elements of 2 bytes are too many"));
}

TEST_F(SharedTokenFile, AllRanksSeeTheSameWithBothStagings) {
  for (const std::int64_t words : {std::int64_t{100}, kWideWords}) {
    OnRoot([&] { WriteTokenFile(path_, MakeData(words), true); });
    const TokenFile own(world_, world_, path_, Staging::kNone);
    ExpectContents(own, words);
    const TokenFile shared(world_, world_, path_, Staging::kSharedMemory);
    ExpectContents(shared, words);
    EXPECT_EQ(shared.MemoryBytes(), own.MemoryBytes() / world_.Size());
  }
}

// A file larger than a round, of two and of four bytes per token: rounds that end within it,
// exactly at its end, and of one token for all readers.
TEST_F(SharedTokenFile, RoundsMeetWithoutAGap) {
  for (const std::int64_t words : {std::int64_t{100}, kWideWords}) {
    OnRoot([&] { WriteTokenFile(path_, MakeData(words), true); });
    TokenLayout layout;
    OnRoot([&] { layout = InspectTokenFile(path_); });
    Broadcast(world_, layout);
    const std::int64_t width = layout.Of(Split::kTrain, Array::kTokens).width;
    EXPECT_EQ(width, words == kWideWords ? 4 : 2);
    for (const std::int64_t tokens : {std::int64_t{999}, kTrainTokens - 1, kTrainTokens}) {
      ExpectRounds(layout, tokens * width, kTrainTokens);
    }
    layout.arrays[0][0].count = 50;
    TakeSample(path_, Descriptor(path_, O_RDONLY).Get(), layout);
    ExpectRounds(layout, 1, 50);
  }
}

// Two groups stand in for two nodes: each has a window of its own, filled by its first rank.
TEST_F(SharedTokenFile, EachNodeHasItsCopy) {
  OnRoot([&] { WriteTokenFile(path_, MakeData(100), true); });
  const comm::Communicator node = world_.Split(world_.Rank() % 2, world_.Rank());
  ExpectContents(TokenFile(world_, node, path_, Staging::kSharedMemory), 100);
}

TEST_F(SharedTokenFile, SurvivesAMoveAndAnUnwinding) {
  OnRoot([&] { WriteTokenFile(path_, MakeData(100), true); });
  TokenFile first(world_, world_, path_, Staging::kSharedMemory);
  const TokenFile second = std::move(first);
  ExpectContents(second, 100);
  // One rank leaves alone by an exception: it must not wait for the others in its destructor.
  const auto leave = [&] {
    const TokenFile third(world_, world_, path_, Staging::kSharedMemory);
    throw std::runtime_error("leaving");
  };
  EXPECT_THROW(leave(), std::runtime_error);
}

TEST_F(SharedTokenFile, MissingAndCutFilesAreAgreedOn) {
  for (const Staging staging : {Staging::kNone, Staging::kSharedMemory}) {
    EXPECT_THAT(Refusal(staging), HasSubstr(path_ + ": this token file does not exist"));
  }
  OnRoot([&] {
    WriteTokenFile(path_, MakeData(100), true);
    std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 1000);
  });
  for (const Staging staging : {Staging::kNone, Staging::kSharedMemory}) {
    EXPECT_THAT(Refusal(staging), HasSubstr("1000 of"));
  }
}

TEST_F(SharedTokenFile, TheFirstBadIdIsAgreedOn) {
  OnRoot([&] {
    WriteTokenFile(path_, MakeData(100), true);
    const hid_t file = H5Fopen(path_.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    const hid_t set = H5Dopen2(file, "/train/tokens", H5P_DEFAULT);
    std::vector<std::int32_t> tokens(kTrainTokens, 1);
    tokens[70'001] = tokens[99'999] = 100;
    H5Dwrite(set, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, tokens.data());
    H5Dclose(set);
    H5Fclose(file);
  });
  for (const Staging staging : {Staging::kNone, Staging::kSharedMemory}) {
    EXPECT_THAT(Refusal(staging),
                AllOf(HasSubstr("/train/tokens: token at offset 70001 has id 100"),
                      testing::Not(HasSubstr("(on rank"))));
  }
}

// One rank reads, now more windows, now fewer; all see them.
TEST_F(SharedTokenFile, AStreamReachesEveryRankOfAReplica) {
  OnRoot([&] { WriteTokenFile(path_, MakeData(100), true); });
  const TokenFile memory(world_, world_, path_, Staging::kNone);
  const TokenFile stream(world_, world_, path_, Staging::kStream);
  const Windows::Turns turns = [](std::int64_t turn, std::vector<Sample>& samples) {
    samples.resize(static_cast<std::size_t>(turn * 5 % 7 + 1));
    for (Sample& sample : samples) sample = {.start = turn * 1000, .targets = 5 + turn};
    return true;
  };
  Windows wanted(memory, Split::kTrain, world_, turns),
      windows(stream, Split::kTrain, world_, turns);
  for (std::int64_t turn = 0; turn < 20; ++turn) {
    const Turn right = wanted.Take(turn), found = windows.Take(turn);
    ASSERT_EQ(found.Samples().size(), right.Samples().size());
    for (std::size_t i = 0; i < right.Samples().size(); ++i) {
      EXPECT_EQ(Copy(found[i]).ids, Copy(right[i]).ids);
    }
  }
}

TEST_F(SharedTokenFile, AStreamsFailureReachesEveryRankOfAReplica) {
  OnRoot([&] { WriteTokenFile(path_, MakeData(100), true); });
  const TokenFile stream(world_, world_, path_, Staging::kStream);
  OnRoot([&] { std::filesystem::resize_file(path_, 1000); });
  Windows windows(stream, Split::kTrain, world_, [](std::int64_t, std::vector<Sample>& samples) {
    samples.assign(1, {.start = 50'000, .targets = 3});
    return true;
  });
  EXPECT_TRUE(windows.Take(0).Samples().empty());
  EXPECT_TRUE(windows.Failed());
  try {
    world_.Together([&] { windows.RequireRead(); });
    ADD_FAILURE() << "no error";
  } catch (const AgreedError& error) {
    EXPECT_EQ(error.Code(), ExitCode::kFailed);
    EXPECT_THAT(error.what(), HasSubstr("the file ends before offset 50000"));
  }
}

// Each rank has a folder of its own, as nodes have their disks, and in it a copy with a date of its
// own.
class CopiesOnNodes : public SharedTokenFile {
 protected:
  CopiesOnNodes() : node_(world_.Split(world_.Rank(), 0)) {
    OnRoot([&] { WriteTokenFile(path_, MakeData(100), true); });
    const std::filesystem::path mine =
        std::filesystem::path(path_).parent_path() / std::to_string(world_.Rank());
    std::filesystem::create_directory(mine);
    std::filesystem::copy_file(path_, mine / "copy.h5");
    const auto date = std::filesystem::last_write_time(path_);
    std::filesystem::last_write_time(mine / "copy.h5", date + std::chrono::hours(world_.Rank()));
    std::filesystem::current_path(mine);
    world_.Barrier();
  }
  ~CopiesOnNodes() override {
    std::filesystem::current_path("/");
    world_.Barrier();
  }

  std::string RefusalOfCopies(Staging staging) const {
    try {
      const TokenFile file(world_, node_, "copy.h5", staging);
    } catch (const AgreedError& error) {
      EXPECT_EQ(error.Code(), ExitCode::kBadInput);
      return error.what();
    }
    return "";
  }

  const comm::Communicator node_;
};

TEST_F(CopiesOnNodes, DatesMayDiffer) {
  for (const Staging staging : {Staging::kNone, Staging::kSharedMemory, Staging::kStream}) {
    EXPECT_EQ(RefusalOfCopies(staging), "");
  }
  // A rank's own copy must stay as it is.
  const TokenFile stream(world_, node_, "copy.h5", Staging::kStream);
  const comm::Communicator self = comm::Communicator::Adopt(MPI_COMM_SELF);
  Windows windows(stream, Split::kTrain, self, [](std::int64_t turn, std::vector<Sample>& samples) {
    samples.assign(1, {.start = turn, .targets = 3});
    return true;
  });
  EXPECT_EQ(windows.Take(0).Samples().size(), 1U);
  std::filesystem::last_write_time("copy.h5", std::filesystem::file_time_type::clock::now());
  for (std::int64_t turn = 1; turn < 10; ++turn) windows.Take(turn);
  EXPECT_TRUE(windows.Failed());
}

TEST_F(CopiesOnNodes, AnotherFileIsRefusedBeforeAnythingIsRead) {
  const bool last = world_.Rank() == world_.Size() - 1;
  if (last) std::filesystem::resize_file("copy.h5", std::filesystem::file_size("copy.h5") + 1);
  for (const Staging staging : {Staging::kNone, Staging::kSharedMemory, Staging::kStream}) {
    EXPECT_THAT(RefusalOfCopies(staging),
                AllOf(HasSubstr("copy.h5: it has "), HasSubstr(" bytes here")));
  }
  if (last) {
    TokenData other = MakeData(100);
    std::swap(other.tokens[0].front(), other.tokens[0][1]);
    WriteTokenFile("copy.h5", other, true);
  }
  for (const Staging staging : {Staging::kNone, Staging::kSharedMemory, Staging::kStream}) {
    EXPECT_THAT(RefusalOfCopies(staging), HasSubstr("copy.h5: its contents here are not those"));
  }
  if (last) std::filesystem::remove("copy.h5");
  for (const Staging staging : {Staging::kNone, Staging::kSharedMemory, Staging::kStream}) {
    EXPECT_THAT(RefusalOfCopies(staging), HasSubstr("copy.h5: cannot be opened"));
  }
}

TEST_F(SharedTokenFile, RanksTogetherTakeEachTargetOnce) {
  OnRoot([&] { WriteTokenFile(path_, MakeData(100), true); });
  const TokenFile file(world_, world_, path_, Staging::kSharedMemory);
  const Sampler sampler({kTrainTokens, 64, 64, 100, 5, true});
  std::vector<double> uses(kTrainTokens, 0.0);
  for (std::int64_t step = 0; step < sampler.StepsPerEpoch(); ++step) {
    const std::vector<Sample> share = sampler.Share(step, world_.Rank(), world_.Size());
    Entry batch;
    FillEntry({share, file, Split::kTrain}, 64, batch);
    ASSERT_EQ(world_.Sum(batch.valid), sampler.BatchTargets(step));
    for (const Sample& sample : share) {
      for (std::int64_t t = 1; t <= sample.targets; ++t) {
        uses[static_cast<std::size_t>(sample.start + t)] += 1;
      }
    }
  }
  world_.Sum(uses);
  EXPECT_EQ(std::count(uses.begin() + 1, uses.end(), 1.0), kTrainTokens - 1);
}

// Rounds of counts while ranks encode, and token files of several ranks that are copied meanwhile.

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
    before += ResultOf(u).tokens[0][0];
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

// Files of pairs by several ranks: written to the same bytes, read alike from every staging.

class PairsOfRanks : public Scratch {
 protected:
  PairsOfRanks()
      : world_(comm::Communicator::Adopt(MPI_COMM_WORLD)), at_(world_.Broadcast(folder_)) {}

  static void Tokenize(const comm::Communicator& ranks, const std::string& path) {
    TestDeck deck({"tokenize.kind=numerals", "tokenize.numerals_pairs=40000"});
    TokenizeInParallel(ranks, ReadTokenize(deck.deck), deck.deck, path, {}, false);
  }

  const comm::Communicator world_;
  const std::string at_;  // a folder of all ranks
};

TEST_F(PairsOfRanks, HaveTheSameBytes) {
  Tokenize(world_, at_ + "/all.h5");
  if (world_.IsRoot()) {
    const comm::Communicator self = comm::Communicator::Adopt(MPI_COMM_SELF);
    Tokenize(self, at_ + "/one.h5");
    const std::string bytes = test::ReadBytes(at_ + "/all.h5");
    EXPECT_GT(bytes.size(), 1'000'000u);
    EXPECT_TRUE(bytes == test::ReadBytes(at_ + "/one.h5"));
  }
  world_.Barrier();
}

TEST_F(PairsOfRanks, AreReadAlikeFromEveryStaging) {
  Tokenize(world_, at_ + "/a.h5");
  for (const Staging staging :
       {Staging::kNone, Staging::kSharedMemory, Staging::kStream, Staging::kNode}) {
    Keeping keeping(staging);
    keeping.folder = at_;
    const PairFile file(world_, world_, at_ + "/a.h5", keeping);
    ASSERT_EQ(file.Pairs(Split::kTrain), 40000);
    const PairBatches batches(40000, LengthsOf(file, Split::kTrain), {.seed = 2});
    std::vector<std::int64_t> pairs;
    Entry entry;
    for (const std::int64_t step : {0, 3, 50}) {
      const PairBatchShape shape = batches.Shape(step);
      batches.Fill(step, PartOf(shape.pairs, world_.Rank(), world_.Size()), pairs);
      FillEntry(file, Split::kTrain, pairs, shape, 0, entry);
      EXPECT_EQ(entry.length, shape.target_length);
      EXPECT_EQ(world_.Sum(entry.valid), shape.target_tokens);
      for (std::size_t i = 0; i < pairs.size(); i += 7) {
        const NumeralPair pair = MakeNumeralPair(1, Split::kTrain, pairs[i]);
        const std::int32_t* const ids =
            entry.targets.data() + static_cast<std::int64_t>(i) * entry.length;
        const std::vector<std::int32_t> target(ids, ids + entry.target_lengths[i]);
        EXPECT_EQ(target, file.Encode(Side::kTarget, pair.target));
        EXPECT_EQ(file.Decode(Side::kTarget, target), pair.target);
      }
    }
  }
}

// Lengths read without MPI, from the path alone.
TEST_F(PairsOfRanks, HaveLengthsWithoutBeingOpened) {
  Tokenize(world_, at_ + "/b.h5");
  const PairFile file(world_, world_, at_ + "/b.h5", Keeping());
  for (const Split split : kSplits) {
    const ReadPairLengths opened = LengthsOf(file, split), closed = LengthsOf(at_ + "/b.h5", split);
    const std::int64_t pairs = file.Pairs(split);
    for (const std::int64_t first : {std::int64_t{0}, std::int64_t{7}, pairs - 5}) {
      std::array<std::vector<std::int32_t>, 4> lengths;
      for (auto& each : lengths)
        each.resize(static_cast<std::size_t>(std::min(pairs - first, std::int64_t{300})));
      opened(first, lengths[0], lengths[1]);
      closed(first, lengths[2], lengths[3]);
      EXPECT_EQ(lengths[0], lengths[2]);
      EXPECT_EQ(lengths[1], lengths[3]);
    }
  }
  world_.Barrier();
}

// Tokenising by several ranks: a broken text of one rank ends the work of the others.

// Takes its time, and counts.
class SlowTokenizer : public ByteTokenizer {
 public:
  void Encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    ByteTokenizer::Encode(text, ids);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ++texts;
  }
  int texts = 0;
};

TEST_F(Texts, AFaultOfOneRankEndsTheOthersWork) {
  constexpr int kFiles = 400;  // by 10 ms
  const comm::Communicator world = comm::Communicator::Adopt(MPI_COMM_WORLD);
  if (world.Size() == 1) GTEST_SKIP() << "one rank: nobody else to end";
  const std::string folder = world.Broadcast(folder_);
  if (world.IsRoot()) {
    // The largest file is the first rank's, alone.
    Write("0.jsonl", "{" + std::string(1'000'000, ' '));
    for (int i = 1; i <= kFiles; ++i) Write(std::to_string(i) + ".jsonl", "{\"text\": \"x\"}\n");
  }
  world.Barrier();
  TextPlan plan;
  plan.encode.eos = {256};
  plan.files = FindTextFiles(folder + "/*.jsonl", Split::kTrain);
  SlowTokenizer slow;
  const std::string message =
      MessageOf([&] { TokenizeTexts(world, slow, plan, folder + "/a.h5", {}); });
  EXPECT_THAT(message, testing::HasSubstr("0.jsonl: record at byte 0: "));
  EXPECT_LT(slow.texts, kFiles / world.Size() / 2);
  world.Barrier();
  EXPECT_FALSE(std::filesystem::exists(folder + "/a.h5"));
  world.Barrier();
}

}  // namespace
}  // namespace trireme::data
