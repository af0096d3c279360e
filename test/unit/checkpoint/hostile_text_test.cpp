// Headers and checksums made to overflow, to ask for much memory or to take long: refused at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>

#include "checkpoint_fixture.hpp"
#include "safetensors.hpp"

namespace trireme::checkpoint::test {
namespace {

using testing::HasSubstr;

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
  EXPECT_THAT(segments("8", R"([0, 8, "00"])"), HasSubstr("no hexadecimal hash of 16 digits"));
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
