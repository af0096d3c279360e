// The header of a safetensors file: what is built parses back, and every kind of bad header is
// named.
#include "safetensors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "checkpoint_fixture.hpp"

namespace trireme::checkpoint::test {
namespace {

using testing::HasSubstr;

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
    EXPECT_EQ(parsed.entries[i].dtype, Dtype::kFloat64);
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
  EXPECT_THAT(damaged("fedc", "fedx"), HasSubstr("no hexadecimal hash"));
  EXPECT_THAT(damaged("XXH3", "XXH9"), HasSubstr("algorithm XXH3_64bits expected"));
  EXPECT_THAT(damaged("}", ""), HasSubstr("checksums.json: damaged"));
}

}  // namespace
}  // namespace trireme::checkpoint::test
