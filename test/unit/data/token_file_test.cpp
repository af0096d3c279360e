// Token files: round trips, what is refused, documents and masks, and copies made early.
#include <hdf5.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <sstream>

#include "encoder.hpp"
#include "folders.hpp"
#include "hdf5.hpp"
#include "scratch.hpp"
#include "stage.hpp"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Token files that are written and read back, by us and by HDF5's own tools.

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
    const auto get = [&](Split split, std::int64_t index) -> std::uint32_t {
      const void* const tokens = memory->At(split, Array::kTokens);
      return width == 2 ? static_cast<const std::uint16_t*>(tokens)[index]
                        : static_cast<const std::uint32_t*>(tokens)[index];
    };
    put(Split::kTrain, 0, 1);
    put(Split::kTrain, 4, 2);
    put(Split::kTrain, kTrain - 1, 3);
    put(Split::kValid, 0, 4);
    EXPECT_EQ(get(Split::kTrain, 0), 1U);
    EXPECT_EQ(get(Split::kTrain, 4), 2U);
    EXPECT_EQ(get(Split::kTrain, kTrain - 1), 3U);
    EXPECT_EQ(get(Split::kValid, 0), 4U);
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
            "tokens in memory: the valid split holds 1 tokens; at least 2 are needed");
  data.tokens[1] = {1, 0, 4};
  EXPECT_EQ(MessageOf([&] { TokenFile(self, data); }),
            "tokens in memory: the valid split: token 2 has id 4, but there are 4 words");
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

// Token files that must be refused, when written and when read, and what is said about them.

class TokenFileErrors : public Scratch {
 protected:
  // A good file, for tests that damage it.
  std::string Good() const {
    WriteTokenFile(In("a.h5"), SmallData(), true);
    return In("a.h5");
  }
  static std::string OpeningFails(const std::string& path) {
    return MessageOf([&] { Open(path); });
  }

  // Replaces a dataset of the good file, or removes it where `values` is empty.
  template <typename T>
  std::string Replace(const std::string& name, hid_t type, const std::vector<T>& values,
                      const std::vector<hsize_t>& extents) const {
    const std::string path = Good();
    const Hdf5Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
    EXPECT_GE(H5Ldelete(file.Get(), name.c_str(), H5P_DEFAULT), 0);
    if (extents.empty()) return path;
    const int dimensions = static_cast<int>(extents.size());
    const Hdf5Handle space(H5Screate_simple(dimensions, extents.data(), nullptr), H5Sclose);
    const Hdf5Handle set(H5Dcreate2(file.Get(), name.c_str(), type, space.Get(), H5P_DEFAULT,
                                    H5P_DEFAULT, H5P_DEFAULT),
                         H5Dclose);
    if (!values.empty()) {
      EXPECT_GE(H5Dwrite(set.Get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
    }
    return path;
  }
  template <typename T>
  std::string Replace(const std::string& name, hid_t type, const std::vector<T>& values) const {
    return Replace(name, type, values, {values.size()});
  }

  std::string SetAttribute(const std::string& name, std::int64_t value) const {
    const std::string path = Good();
    const Hdf5Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
    const Hdf5Handle attribute(H5Aopen(file.Get(), name.c_str(), H5P_DEFAULT), H5Aclose);
    EXPECT_GE(H5Awrite(attribute.Get(), H5T_NATIVE_INT64, &value), 0);
    return path;
  }
  std::string DropAttribute(const std::string& name) const {
    const std::string path = Good();
    const Hdf5Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
    EXPECT_GE(H5Adelete(file.Get(), name.c_str()), 0);
    return path;
  }
};

TEST_F(TokenFileErrors, MissingFolderEmptyAndForeignFiles) {
  EXPECT_THAT(OpeningFails(In("none.h5")), HasSubstr(In("none.h5") + ": this token file does not"));
  EXPECT_THAT(OpeningFails(folder_), HasSubstr("not a file"));
  EXPECT_THAT(OpeningFails(Write("empty.h5", "")), HasSubstr("empty (0 bytes)"));
  EXPECT_THAT(OpeningFails(Write("text.h5", "three words of text")), HasSubstr("not an HDF5 file"));
}

TEST_F(TokenFileErrors, EmptyNamesAndForbiddenFoldersOnReading) {
  EXPECT_THAT(OpeningFails(""), HasSubstr("data.file is empty"));
  const std::string path = Good();
  const Locked locked(folder_, 0);
  ASSERT_TRUE(locked.Good());
  EXPECT_THAT(OpeningFails(path), HasSubstr(path + ": cannot be opened: Permission denied"));
}

TEST_F(TokenFileErrors, TruncationNamesTheMissingBytes) {
  const std::string path = Good();
  const auto whole = std::filesystem::file_size(path);
  std::filesystem::resize_file(path, whole - 7);
  EXPECT_THAT(
      OpeningFails(path),
      AllOf(HasSubstr(path + ": the file is cut off at offset " + std::to_string(whole - 7)),
            HasSubstr("7 of " + std::to_string(whole) + " bytes are missing")));
  std::filesystem::resize_file(path, 20);  // inside the superblock
  EXPECT_THAT(OpeningFails(path), HasSubstr(path + ": HDF5 cannot open this file"));
}

TEST_F(TokenFileErrors, WrongFormatAndAttributes) {
  EXPECT_THAT(OpeningFails(SetAttribute("format", 2)),
              HasSubstr("attribute format: is 2; this program reads format 1"));
  EXPECT_THAT(OpeningFails(DropAttribute("format")), HasSubstr("attribute format: is missing"));
  EXPECT_THAT(OpeningFails(DropAttribute("tokenizer")), HasSubstr("tokenizer: is missing"));
  EXPECT_THAT(OpeningFails(SetAttribute("eos", 4)),
              HasSubstr("attribute eos: 4 is not an id of the 4 words"));
  EXPECT_THAT(OpeningFails(SetAttribute("unk", -2)), HasSubstr("attribute unk: -2"));
}

TEST_F(TokenFileErrors, WrongDatasets) {
  const hid_t u16 = H5T_NATIVE_UINT16;
  const std::vector<std::uint16_t> four = {0, 1, 2, 3};
  EXPECT_THAT(OpeningFails(Replace("/valid/tokens", u16, four, {2, 2})),
              HasSubstr("/valid/tokens: has 2 dimensions, not 1"));
  EXPECT_THAT(OpeningFails(Replace<double>("/train/tokens", H5T_NATIVE_DOUBLE, {1, 2, 3})),
              HasSubstr("/train/tokens: its elements are not uint16 or uint32"));
  EXPECT_THAT(OpeningFails(Replace<std::int16_t>("/train/tokens", H5T_NATIVE_INT16, {1, 2, 3})),
              HasSubstr("/train/tokens: its elements are not uint16 or uint32"));
  EXPECT_THAT(OpeningFails(Replace<std::uint16_t>("/test/tokens", u16, {}, {})),
              HasSubstr("/test/tokens: this dataset is missing"));
  EXPECT_THAT(OpeningFails(Replace<std::uint16_t>("/test/tokens", u16, {}, {0})),
              HasSubstr("/test/tokens: holds 0 tokens; at least 2"));
  EXPECT_THAT(OpeningFails(Replace<std::uint16_t>("/train/tokens", u16, {1})),
              HasSubstr("/train/tokens: holds 1 tokens; at least 2"));
}

TEST_F(TokenFileErrors, FirstBadIdIsNamed) {
  EXPECT_THAT(
      OpeningFails(Replace<std::uint16_t>("/valid/tokens", H5T_NATIVE_UINT16, {0, 3, 4, 9})),
      HasSubstr("/valid/tokens: token at offset 2 has id 4, but the vocabulary has 4"));
  EXPECT_THAT(
      OpeningFails(Replace<std::uint32_t>("/test/tokens", H5T_NATIVE_UINT32, {0, 4'294'967'295u})),
      HasSubstr("/test/tokens: token at offset 1 has id 4294967295"));
}

TEST_F(TokenFileErrors, DamagedVocabulary) {
  const hid_t u64 = H5T_NATIVE_UINT64;
  const auto offsets = [&](const std::vector<std::uint64_t>& values) {
    return OpeningFails(Replace("/vocabulary/offsets", u64, values));
  };
  EXPECT_THAT(offsets({0, 5, 4, 14, 20}), HasSubstr("offsets: falls from 5 to 4 at offset 2"));
  EXPECT_THAT(offsets({1, 5, 10, 14, 20}), HasSubstr("does not begin with 0"));
  EXPECT_THAT(offsets({0, 5, 10, 14, 21}),
              HasSubstr("ends with 21, but /vocabulary/bytes holds 20"));
  EXPECT_THAT(offsets({0}), HasSubstr("the vocabulary is empty"));
  TokenData data = SmallData();
  data.vocabulary.words[3] = "ship";
  EXPECT_THAT(MessageOf([&] {
                WriteTokenFile(In("twice.h5"), data, false);
                Open(In("twice.h5"));
              }),
              HasSubstr("words 2 and 3 are both 'ship'"));
  data = SmallData();
  data.tokenizer = "runes";
  WriteTokenFile(In("runes.h5"), data, false);
  EXPECT_THAT(OpeningFails(In("runes.h5")), HasSubstr("'runes' is none of"));
  data.tokenizer = "byte";
  WriteTokenFile(In("byte.h5"), data, false);
  EXPECT_THAT(OpeningFails(In("byte.h5")), HasSubstr("256 bytes in order"));
}

TEST_F(TokenFileErrors, WriterRefusesBadTargetsAndData) {
  const std::string path = Good();
  const auto write = [](const std::string& target, const TokenData& data) {
    return MessageOf([&] { WriteTokenFile(target, data, false); });
  };
  EXPECT_THAT(write(path, SmallData()),
              AllOf(HasSubstr(path + ": this file exists already"), HasSubstr("overwrite = yes")));
  EXPECT_THAT(write(folder_, SmallData()), HasSubstr("this is a folder"));
  EXPECT_THAT(write(In("no/such/a.h5"), SmallData()), HasSubstr("no/such does not exist"));
  TokenData data = SmallData();
  data.tokens[1].clear();
  EXPECT_THAT(write(In("b.h5"), data), HasSubstr("the valid split holds 0 tokens"));
  data = SmallData();
  data.tokens[2] = {0, 1, 4};
  EXPECT_THAT(write(In("b.h5"), data), HasSubstr("the test split: token 2 has id 4"));
  EXPECT_FALSE(std::filesystem::exists(In("b.h5")));
}

TEST_F(TokenFileErrors, TargetsAreCheckedBeforeAnyWork) {
  const std::string path = Good();
  const auto check = [](const std::string& target, bool overwrite) {
    return MessageOf([&] { CheckTokenFileTarget(target, overwrite); });
  };
  EXPECT_EQ(check(In("new.h5"), false), "");
  EXPECT_EQ(check("new.h5", false), "") << "a bare name lies in the working folder";
  EXPECT_EQ(check(path, true), "");
  EXPECT_THAT(check(path, false), HasSubstr(path + ": this file exists already"));
  EXPECT_THAT(check("", true), HasSubstr("data.file is empty"));
  EXPECT_THAT(check(folder_, true), HasSubstr("this is a folder"));
  EXPECT_THAT(check(In("no/a.h5"), false), HasSubstr("the folder " + In("no") + " does not exist"));
  EXPECT_THAT(check(path + "/a.h5", false), HasSubstr("the folder " + path + " is a file"));
}

TEST_F(TokenFileErrors, UnwritableFolderIsTheUsersError) {
  const std::string path = In("b.h5");
  const std::string expected = path + ": cannot be created: Permission denied";
  {
    const Locked locked(folder_, 0555);
    ASSERT_TRUE(locked.Good());
    EXPECT_THAT(MessageOf([&] { CheckTokenFileTarget(path, false); }), HasSubstr(expected));
    EXPECT_THAT(MessageOf([&] { WriteTokenFile(path, SmallData(), false); }), HasSubstr(expected));
  }
  const Locked locked(folder_, 0);
  EXPECT_THAT(MessageOf([&] { CheckTokenFileTarget(path, false); }), HasSubstr(expected));
}

TEST_F(TokenFileErrors, UncreatableDraftIsTheUsersError) {
  std::filesystem::create_directory(In("b.h5.tmp"));
  EXPECT_THAT(MessageOf([&] { WriteTokenFile(In("b.h5"), SmallData(), false); }),
              HasSubstr(In("b.h5") + ": cannot be created: Is a directory"));
}

TEST_F(TokenFileErrors, OverwriteReplaces) {
  const std::string path = Good();
  TokenData data = SmallData();
  data.tokens[0] = {3, 3};
  WriteTokenFile(path, data, true);
  EXPECT_EQ(AllTokens(Open(path), Split::kTrain), data.tokens[0]);
}

// A limit on the file size stands in for a full disk: the reservation fails in the same place.
TEST_F(TokenFileErrors, NoSpaceKeepsTheOldFileAndLeavesNoDraft) {
  const std::string path = Good();
  TokenData data = SmallData();
  data.tokens[0].assign(1'000'000, 1);
  std::string message;
  {
    const test::FullDisk full(100'000);
    message = MessageOf([&] { WriteTokenFile(path, data, true); }, ExitCode::kFailed);
  }
  EXPECT_THAT(message,
              AllOf(HasSubstr(path + ".tmp: cannot reserve"), HasSubstr("File too large")));
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
  EXPECT_EQ(AllTokens(Open(path), Split::kTrain), SmallData().tokens[0]);
}

// Optional datasets of a token file: documents and masks of the loss, read and checked, from memory
// and from a stream.

class TokenMasks : public Scratch, public testing::WithParamInterface<Staging> {
 protected:
  // Tokens [begin, begin + count) of the train split.
  static Window Read(const TokenFile& file, std::int64_t begin, std::int64_t count) {
    return ReadOne(file, Split::kTrain, begin, count);
  }

  void SetUp() override {
    Scratch::SetUp();
    WriteTokenFile(In("a.h5"), SmallData(), false);  // train: 0 1 2 3 0 1 2 3 1 0
  }

  // Adds a dataset to a copy of the file, whose path it returns.
  template <typename T>
  std::string With(const std::string& name, hid_t type, const std::vector<T>& values) const {
    std::filesystem::copy_file(In("a.h5"), In("b.h5"),
                               std::filesystem::copy_options::overwrite_existing);
    const hid_t file = H5Fopen(In("b.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    const hsize_t count = values.size();
    const hid_t space = H5Screate_simple(1, &count, nullptr);
    const hid_t set =
        H5Dcreate2(file, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    EXPECT_GE(H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
    H5Dclose(set);
    H5Sclose(space);
    H5Fclose(file);
    return In("b.h5");
  }
  std::string WithDocuments(const std::vector<std::uint64_t>& begins) const {
    return With("/train/documents", H5T_NATIVE_UINT64, begins);
  }
  std::string WithMask(const std::vector<std::uint8_t>& counted) const {
    return With("/train/mask", H5T_NATIVE_UINT8, counted);
  }
};

TEST_P(TokenMasks, AreNotThereUnlessTheFileHasThem) {
  const TokenFile file = Open(In("a.h5"), GetParam());
  EXPECT_FALSE(file.HasDocuments(Split::kTrain));
  EXPECT_FALSE(file.HasMask(Split::kTrain));
  const Window window = Read(file, 2, 4);
  EXPECT_THAT(window.ids, ElementsAre(2, 3, 0, 1));
  EXPECT_THAT(window.documents, IsEmpty());
  EXPECT_THAT(window.counted, IsEmpty());
}

TEST_P(TokenMasks, ReachWindows) {
  const std::string path = WithDocuments({0, 3, 6, 7});
  EXPECT_TRUE(CountTokens(path).documents.front());
  EXPECT_FALSE(CountTokens(path).masks.front());
  const TokenFile file = Open(path, GetParam());
  EXPECT_TRUE(file.HasDocuments(Split::kTrain));
  EXPECT_FALSE(file.HasDocuments(Split::kValid));
  EXPECT_THAT(Read(file, 3, 4).documents, ElementsAre(0, 3));
  EXPECT_THAT(Read(file, 8, 2).documents, IsEmpty());

  const TokenFile masked = Open(WithMask({0, 1, 1, 0, 1, 1, 1, 1, 0, 1}), GetParam());
  EXPECT_TRUE(masked.HasMask(Split::kTrain));
  EXPECT_THAT(Read(masked, 2, 3).counted, ElementsAre(1, 0, 1));
}

TEST_P(TokenMasks, NumbersThatAreNoneAreRefused) {
  // A stream's elements are found while the job runs.
  const ExitCode when_read =
      GetParam() == Staging::kStream ? ExitCode::kFailed : ExitCode::kBadInput;
  const auto message = [](const std::string& path, ExitCode code) {
    return MessageOf([&] { Read(Open(path, GetParam()), 0, 10); }, code);
  };
  EXPECT_THAT(message(WithDocuments({1, 3}), when_read),
              AllOf(HasSubstr("b.h5: /train/documents: 1 at offset 0"), HasSubstr("from 0")));
  EXPECT_THAT(message(WithDocuments({0, 3, 3}), when_read), HasSubstr("3 at offset 2"));
  EXPECT_THAT(message(WithDocuments({0, 10}), when_read), HasSubstr("10 at offset 1"));
  EXPECT_THAT(message(WithDocuments({0, ~std::uint64_t{0}}), when_read),
              HasSubstr("/train/documents"));
  EXPECT_THAT(message(WithMask({1, 1}), ExitCode::kBadInput),
              HasSubstr("/train/mask: holds 2 elements for 10 tokens"));
  EXPECT_THAT(message(WithMask({1, 1, 1, 1, 2, 1, 1, 1, 1, 1}), when_read),
              HasSubstr("/train/mask: 2 at offset 4: 0 or 1 expected"));
  EXPECT_THAT(message(WithMask(std::vector<std::uint8_t>(11, 1)), ExitCode::kBadInput),
              HasSubstr("/train/mask: holds 11 elements for 10 tokens"));
}

INSTANTIATE_TEST_SUITE_P(Staging, TokenMasks, testing::Values(Staging::kNone, Staging::kStream),
                         [](const auto& info) {
                           return info.param == Staging::kNone ? "InMemory" : "Streamed";
                         });

// Tokens that go to the token file while texts are encoded: the same bytes as without, not before
// splits are sure of their documents, and the temporary files give their space back.

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

class EarlyCopies : public Texts {
 protected:
  // Documents of train alone, in units of about ten.
  TextPlan Lines(int documents) {
    std::string text;
    for (int i = 0; i < documents; ++i) text += "document " + std::to_string(i * 7919) + "\n";
    TextPlan plan;
    plan.files = FindTextFiles(Write("lines", text), Split::kTrain);
    plan.document = DocumentEnd::kLine;
    plan.unit_bytes = 170;
    plan.encode.eos = {256};
    return plan;
  }
  TextPlan WithHeldOut(TextPlan plan) {
    const TextPlan other = PlanOf(plan.files.at(0).path);
    plan.files = other.files;
    return plan;
  }
  TextTokens Watched(const TextPlan& plan, const TextWatch& watch) {
    const comm::Communicator self = comm::Communicator::Adopt(MPI_COMM_SELF);
    return TokenizeTexts(self, tokenizer, plan, In("a.h5"), watch);
  }
  // The file's bytes, and whether tokens were copied early.
  std::pair<std::string, bool> Bytes(const TextPlan& plan) {
    const bool early = Run(plan).early;
    return {test::ReadBytes(In("a.h5")), early};
  }
  void ExpectSame(TextPlan plan, bool early) {
    const auto one = Bytes(plan);
    EXPECT_EQ(one.second, early);
    plan.early_tokens = kNever;
    const auto other = Bytes(plan);
    EXPECT_FALSE(other.second);
    EXPECT_TRUE(one.first == other.first) << "another file than without";
  }

  // Disk space of open files of the folder that have no name any more, in bytes.
  std::int64_t NamelessSpace() const {
    std::int64_t space = 0;
    for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
      std::error_code ignored;
      struct stat status {};
      const std::string target = fs::read_symlink(entry.path(), ignored).string();
      if (!target.starts_with(folder_) || ::stat(entry.path().c_str(), &status) != 0) continue;
      if (status.st_nlink == 0) space += status.st_blocks * 512;
    }
    return space;
  }
};

TEST_F(EarlyCopies, TheFileIsTheSame) {
  TextPlan plan = Lines(2'000);
  ExpectSame(WithHeldOut(plan), true);
  plan.encode.valid_fraction = 0.3;
  plan.encode.test_fraction = 0.3;
  ExpectSame(plan, true);
  plan.encode.masks = true;
  ExpectSame(plan, true);
  plan.unit_bytes = kUnitBytes;
  ExpectSame(plan, true);
}

// Ids of four bytes.
class WideTokenizer : public ByteTokenizer {
 public:
  std::int64_t VocabularySize() const override { return 70'000; }
};

TEST_F(EarlyCopies, TheFileIsTheSameWithWideIds) {
  TextPlan plan = Lines(2'000);
  plan.encode.valid_fraction = plan.encode.test_fraction = 0.1;
  WideTokenizer wide;
  const comm::Communicator self = comm::Communicator::Adopt(MPI_COMM_SELF);
  EXPECT_TRUE(TokenizeTexts(self, wide, plan, In("a.h5"), {}).early);
  plan.early_tokens = kNever;
  TokenizeTexts(self, wide, plan, In("b.h5"), {});
  EXPECT_TRUE(test::ReadBytes(In("a.h5")) == test::ReadBytes(In("b.h5")));
}

TEST_F(EarlyCopies, FewTokensAreCopiedInTheEnd) {
  ExpectSame(WithHeldOut(Lines(20)), false);
  TextPlan plan = WithHeldOut(Lines(1'000));
  plan.early_tokens = 1'000'000;
  ExpectSame(plan, false);
}

// HDF5 puts train's tokens elsewhere than it was expected to: all is encoded once more.
TEST_F(EarlyCopies, AnotherPlaceIsSeen) {
  TextPlan plan = WithHeldOut(Lines(1'000));
  plan.early_shift = 64;
  double last = 0;
  int falls = 0;
  const TextWatch watch{.progress = [&](double share, std::int64_t) {
    falls += share < last ? 1 : 0;
    last = share;
  }};
  EXPECT_FALSE(Watched(plan, watch).early);
  EXPECT_EQ(falls, 1);
  EXPECT_FALSE(fs::exists(In("a.h5.tmp")));
  ExpectSame(plan, false);
}

// Tokens are in the file long before the last unit is encoded.
TEST_F(EarlyCopies, TheFileGrowsMeanwhile) {
  const TextPlan plan = WithHeldOut(Lines(20'000));
  std::uintmax_t half = 0;  // bytes of the file when half is encoded
  const TextWatch watch{.progress = [&](double share, std::int64_t) {
    if (share < 0.5) half = fs::file_size(In("a.h5.tmp"));
  }};
  const TextTokens done = Watched(plan, watch);
  EXPECT_TRUE(done.early);
  EXPECT_GT(half, static_cast<std::uintmax_t>(done.texts[0].tokens[0]) * 2 * 4 / 10);
}

TEST_F(EarlyCopies, TemporaryFilesGiveTheirSpaceBack) {
  Spill spill(folder_);
  const std::string text(3'000'000, 'x');
  spill.Append(text.data(), text.size());
  std::string read(text.size(), '\0');
  spill.Read(0, read.data(), read.size());
  EXPECT_EQ(read, text);
  const std::int64_t before = NamelessSpace();
  spill.Release(1'000, 2'001'000);
  if (NamelessSpace() == before) GTEST_SKIP() << "a file system without holes";
  EXPECT_LT(NamelessSpace(), before - 1'900'000);
  // Neighbours of the released bytes stay, and appending goes on.
  spill.Append("yz", 2);
  read.resize(999'002);
  spill.Read(2'001'000, read.data(), read.size());
  EXPECT_EQ(read, text.substr(2'001'000) + "yz");
  read.resize(1'000);
  spill.Read(0, read.data(), read.size());
  EXPECT_EQ(read, text.substr(0, 1'000));
}

// With splits by hash as well, the temporary files never hold all tokens.
TEST_F(EarlyCopies, TemporaryFilesStaySmall) {
  TextPlan plan = Lines(400'000);
  plan.unit_bytes = 400'000;
  plan.encode.valid_fraction = 0.05;
  std::int64_t most = 0;
  const TextWatch watch{
      .progress = [&](double, std::int64_t) { most = std::max(most, NamelessSpace()); }};
  plan.early_tokens = kNever;
  plan.files.push_back(FindTextFiles(Write("held_out", "xy"), Split::kTest).at(0));
  Watched(plan, watch);
  const std::int64_t without = most;
  most = 0;
  plan.early_tokens = kEarlyTokens;
  EXPECT_TRUE(Watched(plan, watch).early);
  EXPECT_LT(most, without / 2);
}

// A split that hashes leave empty to the end: nothing may be copied, its document could move.
TEST_F(EarlyCopies, NotBeforeSplitsAreFilled) {
  TextPlan plan = Lines(2'000);
  plan.early_tokens = 0;
  plan.encode.valid_fraction = plan.encode.test_fraction = 1e-9;
  ExpectSame(plan, false);
  plan.encode.test_fraction = 0;
  plan.files.push_back(FindTextFiles(Write("held_out", "xy"), Split::kTest).at(0));
  ExpectSame(plan, false);
  plan.encode.valid_fraction = 0.003;  // about 6 documents
  ExpectSame(plan, true);
}

TEST_F(EarlyCopies, AStoppedJobLeavesNothing) {
  TextPlan plan = WithHeldOut(Lines(2'000));
  int asked = 0;
  Watched(plan, {.stop = [&] { return ++asked < 0; }});
  fs::remove(In("a.h5"));
  for (int last = asked; last > 0; last -= 7) {
    int left = last;
    const TextWatch watch{.stop = [&] { return --left == 0; }};
    EXPECT_THAT(MessageOf([&] { Watched(plan, watch); }, ExitCode::kFailed),
                testing::HasSubstr("stopped by a signal"));
    const fs::directory_iterator files(folder_);
    EXPECT_EQ(std::distance(begin(files), end(files)), 2) << "stopped at question " << last;
  }
}

// While a job encodes, another one leaves its file alone, and fails.
TEST_F(EarlyCopies, AnotherJobsFileIsNotTaken) {
  TextPlan plan = WithHeldOut(Lines(2'000));
  const auto alone = Bytes(plan).first;
  std::string message;
  const TextWatch watch{.progress = [&](double share, std::int64_t) {
    if (share < 0.5 || !message.empty()) return;
    ByteTokenizer other;
    const comm::Communicator self = comm::Communicator::Adopt(MPI_COMM_SELF);
    message = MessageOf([&] { TokenizeTexts(self, other, plan, In("a.h5"), {}); });
  }};
  Watched(plan, watch);
  EXPECT_THAT(message, testing::HasSubstr("a.h5: another job is writing this file"));
  EXPECT_TRUE(test::ReadBytes(In("a.h5")) == alone);
}

TEST_F(EarlyCopies, AFaultLeavesNothing) {
  TextPlan plan = Lines(2'000);
  plan.files.push_back(FindTextFiles(Write("bad", "good\n\xFF"), Split::kTest).at(0));
  EXPECT_THAT(MessageOf([&] { Run(plan); }), testing::HasSubstr("bad: byte 0xff at offset 5"));
  const fs::directory_iterator files(folder_);
  EXPECT_EQ(std::distance(begin(files), end(files)), 2);
}

}  // namespace
}  // namespace trireme::data
