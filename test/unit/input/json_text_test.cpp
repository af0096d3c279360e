// JSON from files: what is refused, how it is said, and that nothing hostile takes time or memory.
#include "trireme/deck/json_text.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "trireme/base/error.hpp"
#include "trireme/base/json.hpp"

namespace trireme::deck {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr std::int64_t kLong = std::int64_t{1} << 30;

// The message of the InputError that `body` throws.
std::string Refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    EXPECT_LT(std::string(error.what()).size(), 400u);
    return error.what();
  }
  return "accepted";
}

std::string Refusal(const std::string& text, std::int64_t max_bytes = kLong) {
  return Refusal([&] { ParseJson(text, "a.json", max_bytes); });
}

std::string Nested(std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

TEST(JsonText, ParsesWhatItShould) {
  const json value = ParseJson(R"({"a": [1, -2, 2.5, "x"], "b": {"a": null}})", "a.json", 100);
  EXPECT_EQ(value.dump(), R"({"a":[1,-2,2.5,"x"],"b":{"a":null}})");
  EXPECT_EQ(TryParseJson("7", 1), json(7));
  EXPECT_EQ(TryParseJson("77", 1), std::nullopt);
  EXPECT_EQ(TryParseJson("nul", 9), std::nullopt);
}

TEST(JsonText, NamesTheByteOfAFault) {
  EXPECT_THAT(Refusal(""), StartsWith("a.json: byte 0: not valid JSON: syntax error"));
  EXPECT_THAT(Refusal(R"({"a": 1, "b" 2})"), StartsWith("a.json: byte 15: not valid JSON"));
  EXPECT_THAT(Refusal("[1] x"), HasSubstr("byte 5: not valid JSON"));
  EXPECT_THAT(Refusal("\"\xff\""), HasSubstr("not valid JSON: syntax error"));
  EXPECT_THAT(Refusal("1e999"), HasSubstr("not valid JSON"));
  EXPECT_EQ(Refusal("[1,2]", 4), "a.json: at most 4 bytes of JSON expected, 5 found");
  EXPECT_EQ(Refusal(R"({"a":1,"b":{"c":1,"c":2}})"), "a.json: byte 21: \"c\" is named twice");
  EXPECT_EQ(Refusal(R"([{"c":1},{"c":2}])"), "accepted");
}

TEST(JsonText, DepthIsBounded) {
  EXPECT_EQ(Refusal(Nested(kMaxJsonDepth)), "accepted");
  EXPECT_EQ(Refusal(Nested(kMaxJsonDepth + 1)), "a.json: byte 33: nested deeper than 32 brackets");
  EXPECT_THAT(Refusal(std::string(50'000'000, '[')), HasSubstr("nested deeper"));
  std::string objects;
  for (int i = 0; i < 1'000'000; ++i) objects += "{\"a\":";
  EXPECT_THAT(Refusal(objects), HasSubstr("nested deeper"));
}

TEST(JsonText, MessagesStayShort) {
  EXPECT_THAT(Refusal("\"" + std::string(1'000'000, 'x')), HasSubstr("not valid JSON"));
  const std::string name(100'000, 'n');
  EXPECT_THAT(Refusal("{\"" + name + "\":1,\"" + name + "\":1}"), HasSubstr("is named twice"));
  EXPECT_LT(Brief(json(std::string(1'000'000, 'x'))).size(), 200u);
  EXPECT_EQ(Brief(json::parse("[1,[2],{}]")), "[1, a list, an object]");
  EXPECT_EQ(Brief(json(std::vector<int>(300))), "a list of 300");
  EXPECT_EQ(Brief(json("a\x1b[1m")), "\"a?[1m\"");
}

TEST(JsonObject, ReadsMembersByType) {
  const json value = ParseJson(
      R"({"step": 7, "rate": 0.5, "whole": 3, "name": "x", "on": true, "list": [1, 2],
          "inner": {"n": -1}})",
      "run.json", 1000);
  const JsonObject object(value, "run.json");
  EXPECT_EQ(object.Integer("step"), 7);
  EXPECT_EQ(object.Real("rate"), 0.5);
  EXPECT_EQ(object.Real("whole"), 3.0);
  EXPECT_EQ(object.Text("name"), "x");
  EXPECT_TRUE(object.Truth("on"));
  EXPECT_THAT(object.Integers("list", 2), testing::ElementsAre(1, 2));
  EXPECT_EQ(object.List("list").size(), 2u);
  EXPECT_EQ(object.Object("inner").Integer("n", -1), -1);
  EXPECT_TRUE(object.Has("step"));
  EXPECT_FALSE(object.Has("steps"));
}

TEST(JsonObject, RefusesOtherTypesAndRanges) {
  const json value = ParseJson(
      R"({"text": "x", "negative": -1, "real": 1.0, "huge": 18446744073709551615, "null": null,
          "list": [1, -2], "nested": {"n": "y"}})",
      "run.json", 1000);
  const JsonObject object(value, "run.json");
  const auto integer = [&](const std::string& name, std::int64_t most = 9) {
    return Refusal([&] { object.Integer(name, 0, most); });
  };
  EXPECT_EQ(Refusal([&] { object.Integer("text"); }),
            "run.json: text: an integer of at least 0 expected, \"x\" found");
  EXPECT_EQ(integer("negative"), "run.json: negative: an integer of 0 to 9 expected, -1 found");
  EXPECT_THAT(integer("real"), HasSubstr("1.0 found"));
  EXPECT_THAT(integer("huge", std::numeric_limits<std::int64_t>::max()),
              HasSubstr("at least 0 expected, 18446744073709551615 found"));
  EXPECT_THAT(integer("null"), HasSubstr("null found"));
  EXPECT_THAT(integer("missing"), HasSubstr("missing: an integer of 0 to 9 expected, nothing"));
  const auto real = [&](const std::string& name) {
    return Refusal([&] { object.Real(name, 0.0, 1.0); });
  };
  EXPECT_THAT(real("negative"), HasSubstr("negative: a number of 0 to 1 expected, -1 found"));
  EXPECT_THAT(real("null"), HasSubstr("null found"));
  EXPECT_THAT(Refusal([&] { object.Text("negative"); }), HasSubstr("a text expected, -1 found"));
  EXPECT_THAT(Refusal([&] { object.Text("text", 0); }), HasSubstr("at most 0 bytes expected"));
  EXPECT_THAT(Refusal([&] { object.Truth("text"); }), HasSubstr("true or false expected"));
  EXPECT_THAT(Refusal([&] { object.Integers("list", 2); }), HasSubstr("[1, -2] found"));
  EXPECT_THAT(Refusal([&] { object.Integers("list", 1); }), HasSubstr("at most 1 integers"));
  EXPECT_THAT(Refusal([&] { object.List("text"); }), HasSubstr("a list expected"));
  EXPECT_THAT(Refusal([&] { object.Object("nested").Integer("n"); }),
              StartsWith("run.json: nested: n: an integer"));
  EXPECT_THAT(Refusal([&] { object.Object("list"); }),
              HasSubstr("run.json: list: an object expected, [1, -2] found"));
}

}  // namespace
}  // namespace trireme::deck
