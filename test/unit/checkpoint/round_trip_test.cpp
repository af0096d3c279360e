// Writing and reading back whole checkpoints, and the bytes that are written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "checkpoint_fixture.hpp"
#include "safetensors.hpp"
#include "trireme/base/json.hpp"
#include "trireme/checkpoint/checkpoint.hpp"

namespace trireme::checkpoint::test {
namespace {

using testing::HasSubstr;

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

}  // namespace
}  // namespace trireme::checkpoint::test
