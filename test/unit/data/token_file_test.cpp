// Token files that are written and read back, by us and by HDF5's own tools.
#include <stdlib.h>

#include <sstream>

#include "scratch.hpp"
#include "stage.hpp"

namespace trireme::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class TokenFiles : public Scratch {};

TEST_F(TokenFiles, RoundTrip) {
  TokenData data = SmallData();
  data.entropy_rate = 2.75;
  data.harbour_seed = 3;
  WriteTokenFile(In("a.h5"), data, false);
  EXPECT_FALSE(std::filesystem::exists(In("a.h5.tmp")));
  for (const Staging staging : {Staging::kNone, Staging::kSharedMemory}) {
    const TokenFile file = Open(In("a.h5"), staging);
    for (const Split split : kSplits) {
      EXPECT_EQ(AllTokens(file, split), data.tokens[static_cast<std::size_t>(split)]);
    }
    EXPECT_EQ(file.Words().words, data.vocabulary.words);
    EXPECT_EQ(file.Words().eos, 0);
    EXPECT_EQ(file.Words().unk, 1);
    EXPECT_EQ(file.VocabularySize(), 4);
    EXPECT_EQ(file.Tokenizer(), "word");
    EXPECT_EQ(file.SourceSha256(), data.source_sha256);
    EXPECT_EQ(file.EntropyRate(), 2.75);
    EXPECT_EQ(file.Path(), In("a.h5"));
    EXPECT_EQ(file.MemoryBytes(), 3 * 64);  // each split begins at a multiple of 64 bytes
  }
}

TEST_F(TokenFiles, WideIdsAreKept) {
  TokenData data = SmallData();
  data.tokenizer = "word";
  for (int i = 4; i < 70'000; ++i) data.vocabulary.words.push_back("w" + std::to_string(i));
  data.tokens[0] = {69'999, 65'535, 65'536, 0};
  WriteTokenFile(In("wide.h5"), data, false);
  const TokenFile file = Open(In("wide.h5"));
  EXPECT_THAT(AllTokens(file, Split::kTrain), ElementsAre(69'999, 65'535, 65'536, 0));
  EXPECT_EQ(file.EntropyRate(), std::nullopt);
}

// Written tokens are read back in pieces of 2^20.
TEST_F(TokenFiles, LongerThanWhatIsReadBackAtOnce) {
  TokenData data = SmallData();
  data.tokens[0].resize((std::size_t{1} << 20) + 3);
  for (std::size_t i = 0; i < data.tokens[0].size(); ++i) {
    data.tokens[0][i] = static_cast<std::int32_t>(i * 7 / 5 % 4);
  }
  WriteTokenFile(In("long.h5"), data, false);
  EXPECT_EQ(AllTokens(Open(In("long.h5")), Split::kTrain), data.tokens[0]);
}

// Four and eight gigabytes of addresses, of which a few pages are touched.
TEST_F(TokenFiles, MemoryReachesTokensBeyond2To31) {
  for (const std::int64_t width : {2, 4}) {
    TokenLayout layout;
    constexpr std::int64_t kTrain = (std::int64_t{1} << 31) + 5;
    for (auto& arrays : layout.arrays) arrays[0].width = width;
    layout.arrays[0][0].count = kTrain;
    layout.arrays[1][0].count = 3;
    layout.arrays[2][0].count = 2;
    const comm::Communicator self = comm::Communicator::Adopt(MPI_COMM_SELF);
    std::optional<TokenMemory> memory;
    try {
      memory.emplace(self, self, layout, Staging::kNone);
    } catch (const Error& error) {
      GTEST_SKIP() << "no " << kTrain * width << " bytes of addresses: " << error.what();
    }
    const auto put = [&](Split split, std::int64_t index, std::uint32_t id) {
      void* const tokens = memory->At(split, Array::kTokens);
      if (width == 2) static_cast<std::uint16_t*>(tokens)[index] = static_cast<std::uint16_t>(id);
      if (width == 4) static_cast<std::uint32_t*>(tokens)[index] = id;
    };
    put(Split::kTrain, 0, 1);
    put(Split::kTrain, 4, 2);
    put(Split::kTrain, kTrain - 1, 3);
    put(Split::kValid, 0, 4);
    EXPECT_EQ(memory->Token(Split::kTrain, 0), 1);
    EXPECT_EQ(memory->Token(Split::kTrain, 4), 2);
    EXPECT_EQ(memory->Token(Split::kTrain, kTrain - 1), 3);
    EXPECT_EQ(memory->Token(Split::kValid, 0), 4);
    EXPECT_GE(memory->Bytes(), (kTrain + 5) * width);
  }
}

TEST_F(TokenFiles, InMemoryWithoutAFile) {
  TokenData data = SmallData();
  data.entropy_rate = 2.75;
  const comm::Communicator self = comm::Communicator::Adopt(MPI_COMM_SELF);
  const TokenFile file(self, data);
  for (const Split split : kSplits) {
    EXPECT_EQ(AllTokens(file, split), data.tokens[static_cast<std::size_t>(split)]);
  }
  EXPECT_EQ(file.Words().words, data.vocabulary.words);
  EXPECT_EQ(file.EntropyRate(), 2.75);
  EXPECT_EQ(file.Encode("ship <unk>"), (std::vector<std::int32_t>{2, 1}));
  EXPECT_EQ(file.Path(), "");

  data.tokens[1] = {1};
  EXPECT_EQ(MessageOf([&] { TokenFile(self, data); }),
            "tokens in memory: valid holds 1, fewer than 2");
  data.tokens[1] = {1, 0, 4};
  EXPECT_EQ(MessageOf([&] { TokenFile(self, data); }),
            "tokens in memory: valid: id 4 at offset 2 is not below 4");
}

TEST_F(TokenFiles, SameDataAreTheSameBytes) {
  WriteTokenFile(In("a.h5"), SmallData(), false);
  WriteTokenFile(In("b.h5"), SmallData(), false);
  EXPECT_EQ(test::ReadBytes(In("a.h5")), test::ReadBytes(In("b.h5")));
}

TEST_F(TokenFiles, MovesItsContents) {
  WriteTokenFile(In("a.h5"), SmallData(), false);
  TokenFile first = Open(In("a.h5"));
  const TokenFile second = std::move(first);
  EXPECT_EQ(second.Size(Split::kTrain), 10);
}

TEST_F(TokenFiles, EncodesAndDecodesWords) {
  WriteTokenFile(In("a.h5"), SmallData(), false);
  const TokenFile file = Open(In("a.h5"));
  EXPECT_THAT(file.Encode("ship naïve\tboat"), ElementsAre(2, 3, 1));
  EXPECT_THAT(file.Encode(" ship \n\nship\n"), ElementsAre(2, 0, 0, 2));
  EXPECT_TRUE(file.Encode("").empty());
  EXPECT_EQ(file.Decode({2, 3, 0, 0, 2, 1}), "ship naïve\n\nship <unk>");
  EXPECT_THAT(MessageOf([&] { file.Encode("ab\xFF"); }), HasSubstr("UTF-8 at byte offset 2"));
  EXPECT_THAT(MessageOf([&] { file.Decode({4}); }, ExitCode::kFailed), HasSubstr("token id 4"));
}

TEST_F(TokenFiles, LowercaseTokenizerFoldsItsPrompt) {
  TokenData data = SmallData();
  data.tokenizer = "word lowercase";
  WriteTokenFile(In("a.h5"), data, false);
  EXPECT_THAT(Open(In("a.h5")).Encode("SHIP NAÏVE"), ElementsAre(2, 3));
}

TEST_F(TokenFiles, WithoutUnkAnUnknownWordIsAnError) {
  TokenData data = SmallData();
  data.tokenizer = "harbour";
  data.vocabulary.unk = -1;
  WriteTokenFile(In("a.h5"), data, false);
  const TokenFile file = Open(In("a.h5"));
  EXPECT_THAT(MessageOf([&] { file.Encode("ship boat"); }), HasSubstr("'boat' is not in"));
}

bool Installed(const std::string& program) {
  return system(("command -v " + program + " >/dev/null 2>&1").c_str()) == 0;
}

TEST_F(TokenFiles, H5dumpReadsThem) {
  if (!Installed("h5dump")) GTEST_SKIP() << "h5dump is not installed (Debian: hdf5-tools)";
  TokenData data = SmallData();
  data.entropy_rate = 2.75;
  WriteTokenFile(In("a.h5"), data, false);
  ASSERT_EQ(system(("h5dump -p " + In("a.h5") + " >" + In("dump.txt")).c_str()), 0);
  const std::string dump = test::ReadBytes(In("dump.txt"));
  EXPECT_THAT(dump, HasSubstr("GROUP \"train\""));
  EXPECT_THAT(dump, HasSubstr("H5T_STD_U16LE"));
  EXPECT_THAT(dump, HasSubstr("(0): 0, 1, 2, 3, 0, 1, 2, 3, 1, 0"));
  EXPECT_THAT(dump, HasSubstr("CONTIGUOUS"));
  EXPECT_THAT(dump, Not(HasSubstr("CHUNKED")));
  EXPECT_THAT(dump, HasSubstr("ATTRIBUTE \"entropy_rate\""));
  EXPECT_THAT(dump, HasSubstr("2.75"));
  EXPECT_THAT(dump, HasSubstr("(0): 0, 5, 10, 14, 20"));  // /vocabulary/offsets
}

TEST_F(TokenFiles, H5pyReadsThem) {
  if (system("/usr/bin/python3 -c 'import h5py' >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "Python has no h5py (Debian: python3-h5py)";
  }
  WriteTokenFile(In("a.h5"), SmallData(), false);
  const std::string script = Write("read.py",
                                   "import h5py, sys\n"
                                   "f = h5py.File(sys.argv[1])\n"
                                   "assert f['train/tokens'][:4].tolist() == [0, 1, 2, 3]\n"
                                   "assert f['train/tokens'].dtype == 'uint16'\n"
                                   "assert f.attrs['tokenizer'] == 'word', f.attrs['tokenizer']\n"
                                   "assert f.attrs['format'] == 1 and f.attrs['unk'] == 1\n"
                                   "o = f['vocabulary/offsets'][:]\n"
                                   "b = bytes(f['vocabulary/bytes'][:])\n"
                                   "assert b[o[3]:o[4]].decode() == 'na\\u00efve'\n");
  EXPECT_EQ(system(("/usr/bin/python3 " + script + " " + In("a.h5")).c_str()), 0);
}

TEST(Hdf5, NamesItsVersion) {
  EXPECT_THAT(Hdf5Version(), testing::MatchesRegex("[0-9]+[.][0-9]+[.][0-9]+"));
}

}  // namespace
}  // namespace trireme::data
