// Token files opened by several ranks: equal contents however they are staged, and agreed errors.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hdf5.h>
#include <mpi.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <stdexcept>

#include "stage.hpp"
#include "temporary_folder.hpp"
#include "token_arrays.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/data/batch.hpp"
#include "trireme/data/windows.hpp"

namespace trireme::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

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
          wrong +=
              memory.Token(split, i) != Expected(split, i, std::ssize(layout.vocabulary.words));
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
      if (file.Token(split, i) != Expected(split, i, words)) ++wrong;
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
    const std::span<const Window> right = wanted.Take(turn), found = windows.Take(turn);
    ASSERT_EQ(found.size(), right.size());
    for (std::size_t i = 0; i < right.size(); ++i) EXPECT_EQ(found[i].ids, right[i].ids);
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
  EXPECT_TRUE(windows.Take(0).empty());
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
  EXPECT_EQ(windows.Take(0).size(), 1U);
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
    FillEntry(file, Split::kTrain, share, 64, batch);
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

}  // namespace
}  // namespace trireme::data
