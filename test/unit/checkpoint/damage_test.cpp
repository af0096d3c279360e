// Checkpoints that are damaged or do not fit: each is refused with a message that says what and
// where.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "checkpoint_fixture.hpp"
#include "trireme/checkpoint/checkpoint.hpp"

namespace trireme::checkpoint::test {
namespace {

using testing::HasSubstr;

class Damage : public testing::Test {
 protected:
  void SetUp() override {
    TestState model(SmallModel()), moments(Moments(SmallModel()));
    model.Fill();
    moments.Fill();
    Write(self_, folder_.Path(), 3, {model.Blocks(), moments.Blocks(), {{"step", 3}}}, false, 0);
    checkpoint_ = folder_ / "step_00000003";
    model_ = checkpoint_ + "/model.safetensors";
  }
  // The message of reading `tensors` from the model file, which must be refused with exit code 2.
  std::string Complaint(std::vector<TestTensor> tensors = SmallModel()) {
    TestState back(std::move(tensors));
    const Error error = Caught([&] { ReadTensors(self_, checkpoint_, "model", back.Blocks()); });
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    return error.what();
  }
  void Flip(const std::string& path, std::size_t at) {
    std::string bytes = ReadBytes(path);
    bytes.at(at) = static_cast<char>(bytes.at(at) ^ 1);
    WriteBytes(path, bytes);
  }
  comm::Communicator self_ = comm::Communicator::Adopt(MPI_COMM_SELF);
  TemporaryFolder folder_;
  std::string checkpoint_, model_;
};

TEST_F(Damage, EveryFlippedByteIsFound) {
  const std::string good = ReadBytes(model_);
  for (std::size_t at = 0; at < good.size(); at += 61) {
    Flip(model_, at);
    EXPECT_THAT(Complaint(), HasSubstr(model_)) << "byte " << at;
    WriteBytes(model_, good);
  }
}

TEST_F(Damage, FlippedByteNamesTensorAndOffset) {
  const std::string bytes = ReadBytes(model_);
  Flip(model_, bytes.size() - 2);  // within "scale", the last 4 bytes
  EXPECT_THAT(
      Complaint(),
      testing::MatchesRegex(model_ + ": tensor scale: bytes " + std::to_string(bytes.size() - 4) +
                            " to " + std::to_string(bytes.size()) +
                            " are damaged: checksum [0-9a-f]* expected, [0-9a-f]* found\n.*"));
  WriteBytes(model_, bytes);
  Flip(model_, 20);
  EXPECT_THAT(Complaint(), HasSubstr("the header: bytes 0 to "));
}

TEST_F(Damage, TruncatedFile) {
  const std::string bytes = ReadBytes(model_);
  WriteBytes(model_, bytes.substr(0, bytes.size() - 1));
  EXPECT_THAT(Complaint(), HasSubstr(std::to_string(bytes.size()) + " bytes expected, " +
                                     std::to_string(bytes.size() - 1) + " found: it is truncated"));
  WriteBytes(model_, "");
  EXPECT_THAT(Complaint(), HasSubstr("0 found: it is truncated"));
  WriteBytes(model_, bytes + "x");
  EXPECT_THAT(Complaint(), HasSubstr("it has grown"));
  fs::remove(model_);
  EXPECT_THAT(Complaint(), HasSubstr("cannot be opened: No such file or directory"));
}

TEST_F(Damage, TensorsThatDoNotFit) {
  auto more = SmallModel();
  more.push_back({"extra.weight", {2, 2}});
  EXPECT_THAT(Complaint(more), HasSubstr("tensor extra.weight: [2, 2] expected, nothing found"));

  auto fewer = SmallModel();
  fewer.pop_back();
  EXPECT_THAT(Complaint(fewer), HasSubstr("tensor scale: nothing expected, F32 [] found"));

  auto other = SmallModel();
  other[0].shape = {16, 37};
  other[2].shape = {256};
  const std::string text = Complaint(other);
  EXPECT_THAT(text, HasSubstr("tensor embedding.weight: shape [16, 37] expected, [37, 16] found"));
  EXPECT_THAT(text,
              HasSubstr("tensor blocks.0.query.weight: shape [256] expected, [16, 16] found"));

  std::vector<TestTensor> many;
  for (int i = 0; i < 20; ++i) many.push_back({"t" + std::to_string(i), {1}});
  EXPECT_THAT(Complaint(many), HasSubstr("and 16 more differences"));
}

TEST_F(Damage, RunJson) {
  const std::string run = checkpoint_ + "/run.json";
  std::string text = ReadBytes(run);
  text.replace(text.find('3'), 1, "4");
  WriteBytes(run, text);
  EXPECT_THAT(Caught([&] { ReadRun(self_, checkpoint_); }).what(),
              testing::AllOf(HasSubstr(run), HasSubstr("are damaged")));
  WriteBytes(run, text + "\n");
  EXPECT_THAT(Caught([&] { ReadRun(self_, checkpoint_); }).what(),
              HasSubstr("are not what checksums.json says"));
  fs::remove(run);
  const Error error = Caught([&] { ReadRun(self_, checkpoint_); });
  EXPECT_EQ(error.Code(), ExitCode::kBadInput);
  EXPECT_THAT(error.what(), HasSubstr("run.json: cannot be opened: No such file or directory"));
}

TEST_F(Damage, ChecksumsJson) {
  const std::string path = checkpoint_ + "/checksums.json";
  WriteBytes(path, "{");
  EXPECT_THAT(Complaint(), HasSubstr("checksums.json: damaged"));
  WriteBytes(path, R"({"algorithm": "XXH3_64bits", "files": {}})");
  EXPECT_THAT(Complaint(), HasSubstr("checksums.json: does not list model.safetensors"));
}

// A checkpoint of some 200 KiB a file, and an older one that stays whole.
class DamagedBlocks : public testing::Test {
 protected:
  static constexpr std::size_t kBlockBytes = 4096;
  static constexpr std::size_t kTextStride = 7;  // of bytes flipped in the small texts

  void SetUp() override {
    TestState model(Tensors()), moments(Moments(Tensors()));
    model.Fill();
    moments.Fill();
    for (const int step : {2, 3}) {
      Write(self_, folder_.Path(), step, {model.Blocks(), moments.Blocks(), {{"step", step}}},
            false, 0);
    }
  }
  static std::vector<TestTensor> Tensors() {
    return {{"embedding.weight", {300, 128}}, {"blocks.0.weight", {100, 128}}, {"scale", {}}};
  }
  // Message that names the damage when -r would look for a checkpoint and read it; empty: all was
  // read as good. `bytes_are_damaged`: whether the reader called it that.
  std::string Complaint(bool& bytes_are_damaged) {
    bytes_are_damaged = false;
    const Choice choice = Locate(folder_.Path());
    EXPECT_FALSE(choice.candidates.empty());
    EXPECT_EQ(choice.candidates.back(), folder_ / "step_00000002");
    if (choice.candidates.size() < 2) return choice.others.empty() ? "" : choice.others.front();
    return ReadError(choice.candidates.front(), bytes_are_damaged);
  }
  std::string ReadError(const std::string& checkpoint, bool& bytes_are_damaged) {
    TestState model(Tensors()), moments(Moments(Tensors()));
    try {
      ReadRun(self_, checkpoint);
      ReadTensors(self_, checkpoint, "model", model.Blocks());
      ReadTensors(self_, checkpoint, "optimizer", moments.Blocks());
    } catch (const DamagedError& error) {
      bytes_are_damaged = true;
      return error.what();
    } catch (const AgreedError& error) {
      EXPECT_EQ(error.Code(), ExitCode::kBadInput);
      return error.what();
    }
    return {};
  }
  std::string Path(const std::string& file) { return folder_ / "step_00000003/" + file; }

  comm::Communicator self_ = comm::Communicator::Adopt(MPI_COMM_SELF);
  TemporaryFolder folder_;
};

TEST_F(DamagedBlocks, EveryBlockOfEveryFile) {
  bool bytes_are_damaged = false;
  ASSERT_EQ(Complaint(bytes_are_damaged), "");
  for (const std::string file :
       {"model.safetensors", "optimizer.safetensors", "run.json", "checksums.json"}) {
    const std::string good = ReadBytes(Path(file));
    const bool tensors = file.ends_with(".safetensors");
    if (tensors) {
      ASSERT_GT(good.size(), 48 * kBlockBytes);
    }
    const std::size_t stride = tensors ? kBlockBytes : kTextStride;
    for (std::size_t begin = 0; begin < good.size(); begin += stride) {
      const std::size_t length = std::min(stride, good.size() - begin);
      std::string bad = good;
      bad[begin + begin * 31 / stride % length] ^= 1;
      WriteBytes(Path(file), bad);
      const std::string text = Complaint(bytes_are_damaged);
      EXPECT_TRUE(bytes_are_damaged || !tensors) << file << " at " << begin << ": " << text;
      // A wrong hash speaks of the file whose it is.
      EXPECT_THAT(text, file == "checksums.json" ? HasSubstr("step_00000003") : HasSubstr(file))
          << "at " << begin;
    }
    WriteBytes(Path(file), good);
  }
  EXPECT_EQ(Complaint(bytes_are_damaged), "");
}

TEST_F(DamagedBlocks, EveryFileMissingOrEmpty) {
  for (const std::string file :
       {"model.safetensors", "optimizer.safetensors", "run.json", "checksums.json"}) {
    const std::string good = ReadBytes(Path(file));
    for (const bool missing : {true, false}) {
      if (missing) {
        fs::remove(Path(file));
      } else {
        WriteBytes(Path(file), "");
      }
      bool bytes_are_damaged = false;
      EXPECT_THAT(Complaint(bytes_are_damaged), HasSubstr(file)) << missing;
      const Choice choice = Locate(folder_.Path());
      EXPECT_EQ(choice.candidates.size(), 1U);
      // One that vanishes after it was found.
      EXPECT_THAT(ReadError(folder_ / "step_00000003", bytes_are_damaged), HasSubstr(file));
    }
    WriteBytes(Path(file), good);
  }
}

}  // namespace
}  // namespace trireme::checkpoint::test
