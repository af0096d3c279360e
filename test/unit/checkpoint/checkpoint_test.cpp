// Checkpoints: round trips, safetensors, hostile text, damage.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "checkpoint_fixture.hpp"
#include "safetensors.hpp"
#include "trireme/base/json.hpp"
#include "trireme/checkpoint/checkpoint.hpp"

namespace trireme::checkpoint::test {
namespace {

using testing::HasSubstr;

// Checkpoints that are damaged or do not fit: each is refused with a message that says what and
// where.

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
      // File that vanishes after its checkpoint was found.
      EXPECT_THAT(ReadError(folder_ / "step_00000003", bytes_are_damaged), HasSubstr(file));
    }
    WriteBytes(Path(file), good);
  }
}

// Writing and reading back whole checkpoints, and the bytes that are written.

class RoundTrip : public testing::Test {
 protected:
  std::string Save(TestState& model, TestState& moments, std::int64_t step = 7) {
    model.Fill();
    moments.Fill();
    Write(self_, folder_.Path(), step, {model.Blocks(), moments.Blocks(), {{"step", step}}}, false,
          0);
    return Find(self_, folder_.Path());
  }
  comm::Communicator self_ = comm::Communicator::Adopt(MPI_COMM_SELF);
  TemporaryFolder folder_;
};

TEST_F(RoundTrip, BothPrecisionsComeBackExactly) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    TestState model(SmallModel(dtype)), moments(Moments(SmallModel(dtype)));
    const std::string checkpoint = Save(model, moments);
    EXPECT_EQ(checkpoint, folder_ / "step_00000007");
    TestState model_back(SmallModel(dtype)), moments_back(Moments(SmallModel(dtype)));
    EXPECT_GT(model_back.Wrong(), 0) << "the test must start from other values";
    ReadTensors(self_, checkpoint, "model", model_back.Blocks());
    ReadTensors(self_, checkpoint, "optimizer", moments_back.Blocks());
    EXPECT_EQ(model_back.Wrong(), 0);
    EXPECT_EQ(moments_back.Wrong(), 0);
    EXPECT_EQ(ReadRun(self_, checkpoint)["step"], 7);
  }
}

TEST_F(RoundTrip, PrecisionsConvertIntoEachOther) {
  // 2.5 segments, so that the pieces of a conversion are exercised.
  const std::int64_t elements = kSegmentBytes * 5 / 2 / 4;
  for (const Dtype from : {Dtype::kFloat32, Dtype::kFloat64}) {
    const Dtype to = from == Dtype::kFloat32 ? Dtype::kFloat64 : Dtype::kFloat32;
    TestState model({{"large", {elements}, from}, {"small", {3}, from}}), none({});
    const std::string checkpoint = Save(model, none);
    TestState back({{"large", {elements}, to}, {"small", {3}, to}});
    ReadTensors(self_, checkpoint, "model", back.Blocks());
    EXPECT_EQ(back.Wrong(true), 0);
  }
}

TEST_F(RoundTrip, ValueBeyondFloatIsRefused) {
  std::vector<double> values = {1, -std::numeric_limits<double>::infinity(), 1e300};
  const auto block = [](Dtype dtype, void* data) {
    return kernels::StateBlock{"w", {3}, dtype, 0, 3, data, 0, 1};
  };
  Write(self_, folder_.Path(), 1, {{block(Dtype::kFloat64, values.data())}, {}, {}}, false, 0);
  std::vector<float> back(3);
  const Error error = Caught([&] {
    ReadTensors(self_, folder_ / "step_00000001", "model", {block(Dtype::kFloat32, back.data())});
  });
  EXPECT_EQ(error.Code(), ExitCode::kBadInput);
  EXPECT_THAT(error.what(), HasSubstr("tensor w: element 2 at offset"));
  EXPECT_THAT(error.what(), HasSubstr("1e+300, beyond fp32's range"));
  EXPECT_EQ(back[1], -std::numeric_limits<float>::infinity()) << "an infinity converts";
}

TEST_F(RoundTrip, FileFollowsTheFormat) {
  TestState model(SmallModel()), none({});
  const std::string checkpoint = Save(model, none);
  const std::string bytes = ReadBytes(checkpoint + "/model.safetensors");
  std::uint64_t length = 0;
  ASSERT_GT(bytes.size(), 8u);
  std::memcpy(&length, bytes.data(), 8);
  const std::size_t data = 8 + length;
  EXPECT_EQ(data % 64, 0u);
  const auto header = nlohmann::ordered_json::parse(bytes.substr(8, length));

  // Tensors in the order of registration, without holes, to the end of the file.
  std::vector<std::string> names;
  std::uint64_t end = 0;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      for (const auto& item : value) EXPECT_TRUE(item.is_string());
      continue;
    }
    names.push_back(name);
    EXPECT_EQ(value["dtype"], "F32");
    EXPECT_EQ(value["data_offsets"][0], end);
    end = value["data_offsets"][1].get<std::uint64_t>();
  }
  EXPECT_THAT(names, testing::ElementsAre("embedding.weight", "blocks.0.norm.weight",
                                          "blocks.0.query.weight", "scale"));
  EXPECT_EQ(header["embedding.weight"]["shape"], nlohmann::json({37, 16}));
  EXPECT_EQ(header["scale"]["shape"], nlohmann::json::array());
  EXPECT_EQ(bytes.size(), data + end);

  float value = 0;
  const std::size_t at = header["blocks.0.query.weight"]["data_offsets"][0].get<std::size_t>();
  std::memcpy(&value, bytes.data() + data + at + 5 * sizeof(float), sizeof(float));
  EXPECT_EQ(value, static_cast<float>(SmallModel()[2].Value(5)));
}

TEST_F(RoundTrip, SameWeightsAreTheSameBytes) {
  TestState model(SmallModel()), moments(Moments(SmallModel()));
  const std::string first = Save(model, moments, 1);
  Write(self_, folder_.Path(), 2,
        {model.Blocks(), moments.Blocks(), {{"step", 2}, {"host", "elsewhere"}}}, false, 0);
  for (const char* file : {"/model.safetensors", "/optimizer.safetensors"}) {
    EXPECT_EQ(ReadBytes(first + file), ReadBytes((folder_ / "step_00000002") + file));
  }
}

TEST_F(RoundTrip, StepThatExistsIsReplaced) {
  TestState model(SmallModel()), none({});
  Save(model, none);
  TestState other({{"other", {5}}});
  const std::string checkpoint = Save(other, none);
  TestState back({{"other", {5}}});
  ReadTensors(self_, checkpoint, "model", back.Blocks());
  EXPECT_EQ(back.Wrong(), 0);
  const auto list = [](const std::string& folder) {
    std::vector<std::string> names;
    for (const auto& item : fs::directory_iterator(folder)) names.push_back(item.path().filename());
    return names;
  };
  EXPECT_THAT(list(folder_.Path()), testing::UnorderedElementsAre("step_00000007", "latest"));
  EXPECT_THAT(list(checkpoint),
              testing::UnorderedElementsAre("model.safetensors", "optimizer.safetensors",
                                            "run.json", "checksums.json"));
}

TEST_F(RoundTrip, StateThatIsNotWholeIsRefused) {
  std::vector<float> values(10);
  const auto attempt = [&](std::vector<kernels::StateBlock> blocks) {
    const Error error = Caught([&] {
      Write(self_, folder_.Path(), 1, {blocks, {}, {}}, false, 0);
    });
    EXPECT_EQ(error.Code(), ExitCode::kFailed);
    EXPECT_TRUE(fs::is_empty(folder_.Path())) << "nothing may be written";
    return std::string(error.what());
  };
  const Dtype type = Dtype::kFloat32;
  EXPECT_THAT(attempt({{"w", {10}, type, 0, 8, values.data(), 0, 1}}),
              HasSubstr("model.safetensors: tensor w: elements 8 to 10 of 10 are held by no rank"));
  EXPECT_THAT(attempt({{"w", {10}, type, 0, 10, values.data(), 1, 2}}),
              HasSubstr("elements 0 to 10 of 10 are held by no rank"));
  EXPECT_THAT(
      attempt({{"w", {10}, type, 0, 10, values.data()}, {"w", {10}, type, 0, 10, values.data()}}),
      HasSubstr("tensor w: registered twice"));
  EXPECT_THAT(attempt({{"w", {10}, type, 0, 11, values.data()}}),
              HasSubstr("elements 0 to 11 registered of 10"));
  EXPECT_THAT(attempt({{"w", {10}, type, 0, 10, nullptr}}), HasSubstr("has no data"));
  EXPECT_THAT(attempt({{"__metadata__", {10}, type, 0, 10, values.data()}}),
              HasSubstr("does not allow this name"));
}

// The header of a safetensors file: what is built parses back, and every kind of bad header is
// named.

std::string WithLength(const std::string& json) {
  const std::uint64_t length = json.size();
  std::string header(8, '\0');
  std::memcpy(header.data(), &length, 8);
  return header + json;
}

// The message for a header in a file with `data` bytes after it.
std::string Complaint(const std::string& json, std::int64_t data) {
  const std::string header = WithLength(json);
  try {
    ParseLayout(header, static_cast<std::int64_t>(header.size()) + data, "a.safetensors");
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    EXPECT_THAT(error.what(), testing::StartsWith("a.safetensors: "));
    return error.what();
  }
  return "accepted";
}

TEST(Safetensors, LayoutParsesBack) {
  TestState state(SmallModel(Dtype::kFloat64));
  const Layout built = BuildLayout(state.Blocks());
  const Layout parsed = ParseLayout(built.header, built.bytes, "a.safetensors");
  ASSERT_EQ(parsed.entries.size(), built.entries.size());
  for (std::size_t i = 0; i < built.entries.size(); ++i) {
    EXPECT_EQ(parsed.entries[i].name, built.entries[i].name);
    EXPECT_EQ(parsed.entries[i].shape, built.entries[i].shape);
    EXPECT_EQ(parsed.entries[i].dtype, "F64");
    EXPECT_EQ(parsed.entries[i].offset, built.entries[i].offset);
    EXPECT_EQ(parsed.entries[i].bytes, built.entries[i].bytes);
  }
  EXPECT_EQ(HeaderBytes(built.header.data(), built.bytes, "a"),
            static_cast<std::int64_t>(built.header.size()));
}

TEST(Safetensors, LayoutDependsOnTheModelOnly) {
  TestState whole(SmallModel());
  TestState half(SmallModel(), [](std::int64_t, std::int64_t n) {
    return TestState::Part{0, n / 2, 1, 3};
  });
  EXPECT_EQ(BuildLayout(whole.Blocks()).header, BuildLayout(half.Blocks()).header);
}

TEST(Safetensors, BadHeadersAreNamed) {
  EXPECT_EQ(Complaint(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8), "accepted");
  EXPECT_THAT(Complaint("{\"w\":", 0), HasSubstr("not valid JSON"));
  EXPECT_THAT(Complaint("[1]", 0), HasSubstr("no JSON object"));
  EXPECT_THAT(Complaint(R"({"w":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}})", 4),
              HasSubstr("tensor w: dtype \"F32\" or \"F64\" expected, \"BF16\" found"));
  EXPECT_THAT(Complaint(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4),
              HasSubstr("tensor w: 8 bytes expected for F32 [2], 4 found"));
  EXPECT_THAT(Complaint(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4),
              HasSubstr("within the file's 4 bytes of data, [0, 8] found"));
  EXPECT_THAT(Complaint(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8),
              HasSubstr("data_offsets expected as [begin, end]"));
  EXPECT_THAT(
      Complaint(R"({"w":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8),
      HasSubstr("tensor w: shape: a list of at most 32 integers >= 0 expected, [-2] found"));
  EXPECT_THAT(Complaint(R"({"w":{"dtype":"F32","data_offsets":[0,8]}})", 8),
              HasSubstr("shape: a list of at most 32 integers >= 0 expected, nothing found"));
  EXPECT_THAT(
      Complaint(R"({"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})", 8),
      HasSubstr("is too large"));
  EXPECT_THAT(Complaint(R"({"w":7})", 0), HasSubstr("tensor w: an object expected, 7 found"));
}

TEST(Safetensors, OverlapsAndHolesAreNamed) {
  const std::string v = R"("v":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  EXPECT_THAT(Complaint("{" + v + R"(,"w":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12),
              HasSubstr("tensor w: offset 124 expected, 120 found (it overlaps another tensor)"));
  EXPECT_THAT(
      Complaint("{" + v + R"(,"w":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})", 16),
      HasSubstr("a hole lies before it"));
  EXPECT_THAT(Complaint("{" + v + "}", 9), HasSubstr("the tensors end at offset"));
  EXPECT_THAT(Complaint("{" + v + "," + v + "}", 8),
              HasSubstr("the header: byte 57: \"v\" is named twice"));
}

TEST(Safetensors, HeaderLengthMustBeSane) {
  for (const std::uint64_t length : {std::uint64_t{0}, std::uint64_t{993}, ~std::uint64_t{0}}) {
    std::string start(8, '\0');
    std::memcpy(start.data(), &length, 8);
    EXPECT_THROW(HeaderBytes(start.data(), 1000, "a"), Error) << length;
    EXPECT_THROW(HeaderBytes(start.data(), 4, "a"), Error) << length;
  }
}

TEST(Checksums, ParseBackAndRefuseDamage) {
  const Checksums sums = {{"a", {12, {{0, 8, 0xfedcba9876543210}, {8, 4, 7}}}}};
  const std::string text = ChecksumsText(sums);
  const Checksums back = ParseChecksums(text, "checksums.json");
  ASSERT_EQ(back.at("a").segments.size(), 2u);
  EXPECT_EQ(back.at("a").bytes, 12);
  EXPECT_EQ(back.at("a").segments[0].hash, 0xfedcba9876543210);
  EXPECT_EQ(back.at("a").segments[1].offset, 8);

  const auto damaged = [&](const std::string& what, const std::string& by) {
    std::string copy = text;
    copy.replace(copy.find(what), what.size(), by);
    try {
      ParseChecksums(copy, "checksums.json");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(damaged("[8, 4", "[9, 3"),
              HasSubstr("checksums.json: damaged: a: segments do not cover"));
  EXPECT_THAT(damaged("12", "13"), HasSubstr("segments do not cover the file at offset 12"));
  EXPECT_THAT(damaged("fedc", "fedx"), HasSubstr("not a hexadecimal hash"));
  EXPECT_THAT(damaged("XXH3", "XXH9"), HasSubstr("algorithm XXH3_64bits expected"));
  EXPECT_THAT(damaged("}", ""), HasSubstr("checksums.json: damaged"));
}

// Headers and checksums made to overflow, to ask for much memory or to take long: refused at once.

constexpr int kDamages = 2000;

std::int64_t PeakBytes() {
  struct rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} << 10;
}

std::string Header(const std::string& json) {
  const std::uint64_t length = json.size();
  std::string header(kLengthBytes, '\0');
  std::memcpy(header.data(), &length, sizeof length);
  return header + json;
}

template <typename Parse>
std::string Refusal(Parse&& parse) {
  try {
    parse();
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput) << error.what();
    EXPECT_LT(std::string(error.what()).size(), 1000u);
    return error.what();
  }
  return "accepted";
}

std::string HeaderRefusal(const std::string& json, std::int64_t data) {
  const std::string header = Header(json);
  return Refusal(
      [&] { ParseLayout(header, static_cast<std::int64_t>(header.size()) + data, "a"); });
}

std::string SumsRefusal(const std::string& files) {
  return Refusal([&] {
    ParseChecksums(R"({"algorithm": "XXH3_64bits", "files": )" + files + "}", "checksums.json");
  });
}

std::string Tensor(const std::string& shape, const std::string& offsets) {
  return R"({"w":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

TEST(HostileHeader, NumbersAreBounded) {
  EXPECT_THAT(HeaderRefusal(Tensor("[4611686018427387904]", "[0,8]"), 8), HasSubstr("too large"));
  EXPECT_THAT(HeaderRefusal(Tensor("[0,4294967296,4294967296]", "[0,0]"), 0),
              HasSubstr("too large"));
  EXPECT_THAT(HeaderRefusal(Tensor("[18446744073709551615]", "[0,8]"), 8),
              HasSubstr("shape: a list of at most 32 integers"));
  EXPECT_THAT(HeaderRefusal(Tensor("[2.0]", "[0,8]"), 8), HasSubstr("[2.0] found"));
  EXPECT_THAT(HeaderRefusal(Tensor("[2]", "[\"0\",8]"), 8), HasSubstr("data_offsets: a list"));
  EXPECT_THAT(HeaderRefusal(Tensor("[2]", "[0,9223372036854775807]"), 8),
              HasSubstr("within the file's 8 bytes"));
  EXPECT_THAT(HeaderRefusal(Tensor("[2]", "[0,8,16]"), 8), HasSubstr("at most 2 integers"));
  std::string ones = "[1";
  for (int i = 0; i < 32; ++i) ones += ",1";
  EXPECT_THAT(HeaderRefusal(Tensor(ones + "]", "[0,4]"), 4), HasSubstr("a list of 33 found"));
}

TEST(HostileHeader, NamesDepthAndLengthAreBounded) {
  const std::string name(kMaxNameBytes + 1, 'n');
  EXPECT_THAT(HeaderRefusal(R"({")" + name + R"(":{}})", 0), HasSubstr("at most 4096 bytes"));
  EXPECT_THAT(HeaderRefusal(std::string(1'000'000, '['), 0), HasSubstr("nested deeper"));
  EXPECT_THAT(HeaderRefusal("{\"w\":" + std::string(1'000'000, '['), 0),
              HasSubstr("the header: byte "));
  EXPECT_THAT(Refusal([] { ParseLayout("short", 5, "a"); }), HasSubstr("a header of 8 to 5 bytes"));
  EXPECT_THAT(Refusal([] { ParseLayout(Header("{}"), 9, "a"); }), HasSubstr("8 to 9 bytes"));
}

TEST(HostileHeader, NamesAreShownSafely) {
  EXPECT_THAT(HeaderRefusal(R"({"\u001b[2J":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8),
              HasSubstr("tensor ?[2J: offset"));
}

// An object of the parser that keeps the order of its members compares each with all before it.
TEST(HostileHeader, ManyTensorsTakeNoLongTime) {
  std::string json = "{";
  for (int i = 0; i < 200'000; ++i) {
    json += "\"w" + std::to_string(i) + R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)";
  }
  json.back() = '}';
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(HeaderRefusal(json, 0), "accepted");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(HostileChecksums, SegmentsAreBounded) {
  const std::string hash = ", \"0000000000000000\"]";
  const auto segments = [&](const std::string& bytes, const std::string& list) {
    return SumsRefusal(R"({"a": {"bytes": )" + bytes + R"(, "segments": [)" + list + "]}}");
  };
  EXPECT_EQ(segments("8", "[0, 8" + hash), "accepted");
  EXPECT_EQ(segments("0", ""), "accepted");
  EXPECT_THAT(segments("8000000000000", "[0, 8000000000000" + hash),
              HasSubstr("a segment of at most 100000008 bytes expected at offset 0"));
  EXPECT_THAT(segments("8000000000008", "[0, 8" + hash + ", [8, 8000000000000" + hash),
              HasSubstr("a segment of at most 4194304 bytes expected at offset 8"));
  EXPECT_THAT(segments("9223372036854775807", "[0, 1" + hash + ", [1, 9223372036854775807" + hash),
              HasSubstr("do not cover the file at offset 1"));
  EXPECT_THAT(segments("-1", ""), HasSubstr("bytes: an integer of at least 0 expected, -1 found"));
  EXPECT_THAT(segments("\"8\"", ""), HasSubstr("\"8\" found"));
  EXPECT_THAT(segments("18446744073709551615", ""), HasSubstr("bytes: an integer"));
  EXPECT_THAT(segments("8", "[0, 8.0" + hash), HasSubstr("[offset, length, hash] expected"));
  EXPECT_THAT(segments("8", "[0, 8]"), HasSubstr("[offset, length, hash] expected, [0, 8]"));
  EXPECT_THAT(segments("8", "[0, 8, 7]"), HasSubstr("[offset, length, hash] expected"));
  EXPECT_THAT(segments("8", R"([0, 8, "00"])"), HasSubstr("not a hexadecimal hash of 16 digits"));
  EXPECT_THAT(segments("8", "7"), HasSubstr("checksums.json: damaged: a: [offset, length, hash]"));
}

TEST(HostileChecksums, FormIsChecked) {
  EXPECT_THAT(SumsRefusal("[]"), HasSubstr("checksums.json: damaged: files: an object expected"));
  EXPECT_THAT(SumsRefusal(R"({"a": 7})"), HasSubstr("a: an object expected, 7 found"));
  EXPECT_THAT(SumsRefusal(R"({"../a": {}})"), HasSubstr("the name of a file expected"));
  EXPECT_THAT(SumsRefusal("{\"" + std::string(256, 'a') + "\": {}}"), HasSubstr("name of a file"));
  EXPECT_THAT(SumsRefusal(R"({"a": {"bytes": 0, "segments": []}, "a": {}})"),
              HasSubstr("\"a\" is named twice"));
  EXPECT_THAT(SumsRefusal(std::string(1'000'000, '[')), HasSubstr("nested deeper"));
  EXPECT_THAT(Refusal([] { ParseChecksums("[]", "c"); }), HasSubstr("an object expected"));
}

// A text with some bytes changed, or cut off, as the seed says.
std::string Damaged(std::string text, std::mt19937_64& random) {
  if (random() % 4 == 0) return text.substr(0, random() % text.size());
  for (std::uint64_t i = random() % 4 + 1; i > 0; --i) {
    const std::string interesting = "[]{}\",:09-eE.\\x\x01\xff";
    char& at = text[random() % text.size()];
    at = random() % 2 == 0 ? static_cast<char>(at ^ (1 << random() % 8))
                           : interesting[random() % interesting.size()];
  }
  return text;
}

TEST(HostileChecksums, DamageIsRefusedOrParsed) {
  std::mt19937_64 random(7);
  const Checksums sums = {{"run.json", {12, {{0, 12, 7}}}},
                          {"model.safetensors", {4194312, {{0, 8, 9}, {8, 4194304, 11}}}}};
  const std::string text = ChecksumsText(sums);
  int refused = 0;
  const std::int64_t before = PeakBytes();
  for (int i = 0; i < kDamages; ++i) {
    const std::string damaged = Damaged(text, random);
    refused += Refusal([&] { ParseChecksums(damaged, "checksums.json"); }) != "accepted";
  }
  EXPECT_GT(refused, kDamages / 2);
  EXPECT_LT(PeakBytes() - before, std::int64_t{32} << 20);
}

TEST(HostileHeader, DamageIsRefusedOrParsed) {
  std::mt19937_64 random(8);
  TestState state(SmallModel());
  const Layout layout = BuildLayout(state.Blocks());
  int refused = 0;
  const std::int64_t before = PeakBytes();
  for (int i = 0; i < kDamages; ++i) {
    const std::string damaged = Damaged(layout.header, random);
    refused += Refusal([&] {
                 std::string start = damaged.substr(0, kLengthBytes);
                 start.resize(kLengthBytes);
                 const auto bytes = HeaderBytes(start.data(), layout.bytes, "a");
                 ParseLayout(damaged.substr(0, static_cast<std::size_t>(bytes)), layout.bytes, "a");
               }) != "accepted";
  }
  EXPECT_GT(refused, kDamages / 2);
  EXPECT_LT(PeakBytes() - before, std::int64_t{32} << 20);
}

}  // namespace
}  // namespace trireme::checkpoint::test
