// Token files that must be refused, when written and when read, and what is said about them.
#include "full_disk.hpp"
#include "hdf5.hpp"
#include "locked.hpp"
#include "scratch.hpp"

namespace trireme::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

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
  EXPECT_THAT(OpeningFails(path), AllOf(HasSubstr("cut off at offset 20"),
                                        HasSubstr("what describes its datasets among them")));
}

TEST_F(TokenFileErrors, TruncationNamesTheDataset) {
  const std::string path = In("large.h5");
  TokenData data = SmallData();
  for (auto& tokens : data.tokens) tokens.assign(50'000, 2);
  const auto complaint = [&](const std::string& name) {
    WriteTokenFile(path, data, true);
    std::uint64_t middle = 0;
    {
      const Hdf5Handle file = OpenSerially(path);
      const Hdf5Handle set(H5Dopen2(file.Get(), name.c_str(), H5P_DEFAULT), H5Dclose);
      middle = H5Dget_offset(set.Get()) + H5Dget_storage_size(set.Get()) / 2;
    }
    std::filesystem::resize_file(path, middle);
    return OpeningFails(path);
  };
  EXPECT_THAT(complaint("/test/tokens"), HasSubstr("missing, the first of them in /test/tokens"));
  EXPECT_THAT(complaint("/valid/tokens"), HasSubstr("missing, the first of them in /valid/tokens"));
  EXPECT_THAT(complaint("/train/tokens"), HasSubstr("missing, the first of them in /train/tokens"));
  EXPECT_THAT(complaint("/vocabulary/offsets"), HasSubstr("first of them in /vocabulary/offsets"));
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

}  // namespace
}  // namespace trireme::data
