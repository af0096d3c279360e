// Optional datasets of a token file: documents and masks of the loss, read and checked, from memory
// and from a stream.
#include <hdf5.h>

#include <filesystem>

#include "scratch.hpp"

namespace trireme::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

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

}  // namespace
}  // namespace trireme::data
