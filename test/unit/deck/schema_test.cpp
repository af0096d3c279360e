// The schema of keys, the manual that is printed from it, and JSON text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include "trireme/base/json.hpp"

#include "example_schema.hpp"
#include "trireme/base/error.hpp"
#include "trireme/deck/json_text.hpp"
#include "trireme/deck/keys.hpp"
#include "trireme/deck/schema.hpp"

namespace trireme::deck {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

// Schema: declarations that contradict themselves, nearest names, and the page of --help-deck.

TEST(Schema, RefusesFaultyDeclarations) {
  Schema schema = ExampleSchema();
  EXPECT_THROW(schema.Add({.name = "job.name", .help = "again"}), std::logic_error);
  EXPECT_THROW(schema.Add({.name = "name", .help = "no section"}), std::logic_error);
  EXPECT_THROW(
      schema.Add(
          {.name = "data.x", .kind = KeyKind::kInteger, .fallback = "0", .range = AtLeast(1)}),
      std::logic_error);
  EXPECT_THROW(
      schema.Add(
          {.name = "data.y", .kind = KeyKind::kChoice, .fallback = "c", .choices = {"a", "b"}}),
      std::logic_error);
  EXPECT_THROW(schema.Exclusive({"data.batch", "data.nothing"}), std::logic_error);
}

TEST(Schema, SectionsKeepTheOrderOfTheirFirstMention) {
  Schema schema;
  schema.Add({.name = "late.key"}).Section("early", "First?").Section("late", "L");
  ASSERT_EQ(schema.Sections().size(), 2u);
  EXPECT_EQ(schema.Sections()[0].first, "late");
  EXPECT_EQ(schema.Sections()[0].second, "L");
}

TEST(Schema, NearestNames) {
  const Schema schema = ExampleSchema();
  EXPECT_EQ(schema.Nearest("data.bacth"), "data.batch");
  EXPECT_EQ(schema.Nearest("dta.batch"), "data.batch");
  EXPECT_EQ(schema.Nearest("batch"), "data.batch");
  EXPECT_EQ(schema.Nearest("model.batch"), "data.batch");
  EXPECT_EQ(schema.Nearest("job.every_steps"), "checkpoint.every_steps or monitor.every_steps");
  EXPECT_EQ(schema.Nearest("monitor.every_step"), "monitor.every_steps");
  EXPECT_EQ(schema.Nearest("data.xylophone"), "");
  EXPECT_EQ(schema.NearestSection("optimiser"), "[optimizer]");
  EXPECT_EQ(schema.NearestSection("xylophone"), "");
}

TEST(Schema, HelpShowsDefaultKindRangeUnitAndChoices) {
  EXPECT_EQ(ExampleSchema().Help("data"),
            "[data]\n"
            "Where tokens come from.\n"
            "\n"
            "  file = data/wikitext2.h5  text\n"
            "                            The token file.\n"
            "\n"
            "  batch = 16                integer (sequences), at least 1\n"
            "                            Sequences a step, over all ranks.\n"
            "\n"
            "  seed = 1                  integer, between 0 and 4294967295\n"
            "                            Seed of the sample order.\n");
  EXPECT_EQ(ExampleSchema().Help("schedule"),
            "[schedule]\n"
            "Length of the run.\n"
            "\n"
            "  epochs = 1    real (epochs), above 0\n"
            "                Passes over the data.\n"
            "                Excludes schedule.steps.\n"
            "\n"
            "  steps = 1000  integer (steps), at least 1\n"
            "                Optimizer steps.\n"
            "                Excludes schedule.epochs.\n");
  const std::string job = ExampleSchema().Help("job");
  EXPECT_NE(job.find("  start_from =  text\n"), std::string::npos) << job;
  EXPECT_NE(job.find("  task = train  one of train, evaluate, plan\n"), std::string::npos) << job;
}

TEST(Schema, HelpOfAllSectionsFitsThePage) {
  Schema schema = ExampleSchema();
  std::string words;
  for (int i = 0; i < 100; ++i) words += "word ";
  schema.Add({.name = "data.other", .fallback = std::string(60, 'x'), .help = words});
  const std::string help = schema.Help("");
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 100u) << line;
    EXPECT_FALSE(line.ends_with(' ')) << "'" << line << "'";
  }
  for (const Key& key : schema.Keys()) {
    const std::string own = key.name.substr(key.name.find('.') + 1);
    EXPECT_NE(help.find("\n  " + own + " ="), std::string::npos) << key.name;
  }
  EXPECT_LT(help.find("[job]"), help.find("[monitor]"));
}

TEST(Schema, HelpOfAnUnknownSection) {
  try {
    ExampleSchema().Help("modell");
    FAIL() << "there is no [modell]";
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    EXPECT_EQ(std::string(error.what()),
              "--help-deck: there is no section [modell]\n  Did you mean [model]?");
  }
}

TEST(Schema, HelpOfOneKey) {
  const std::string help = ExampleSchema().Help("data.batch");
  EXPECT_EQ(help,
            "[data]\n  batch = 16  integer (sequences), at least 1\n"
            "              Sequences a step, over all ranks.\n");
  try {
    ExampleSchema().Help("data.bacth");
    FAIL() << "there is no such key";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              "--help-deck: there is no key data.bacth\n  Did you mean data.batch?");
  }
}

// The manual page: escapes of roff, and every key with what its declaration says.

constexpr const char* kHelp = R"(Trireme does things.

usage: trireme -i DECK [-n]
       mpirun trireme ...      srun trireme ...

  -i DECK      the deck
               of a run
  --test [WHERE]  is it  well?
  --try [WHAT] one blank before this
  --help       this text

exit codes: 0 done; 2 bad deck;
            3 stopped
)";

std::string Page(const Schema& schema, const std::string& help = kHelp) {
  return ManualPage(schema, {.version = "1.2.3", .date = "2026-11-24", .help = help});
}

TEST(Manual, HasEveryKeyWithItsDefaultAndRange) {
  const Schema schema = ExampleSchema();
  const std::string page = Page(schema);
  for (const Key& key : schema.Keys()) EXPECT_THAT(page, HasSubstr("\\fB" + key.name + " ="));
  EXPECT_THAT(page, HasSubstr(".TP\n\\fBdata.batch = 16\\fP\ninteger (sequences), at least 1.\n"));
  EXPECT_THAT(page, HasSubstr("\nExcludes schedule.steps.\n"));
  EXPECT_THAT(page, HasSubstr("\\fBoptimizer.epsilon = 1e\\-08\\fP"));
}

TEST(Manual, TakesTheTextOfHelpApart) {
  const std::string page = Page(ExampleSchema());
  EXPECT_THAT(page, HasSubstr(".TH TRIREME 1 2026-11-24 \"Trireme 1.2.3\""));
  EXPECT_THAT(page, HasSubstr(".SH NAME\ntrireme \\- does things\n"));
  EXPECT_THAT(page,
              HasSubstr("trireme \\-i DECK [\\-n]\nmpirun trireme ...\nsrun trireme ...\n.fi"));
  EXPECT_THAT(page, HasSubstr(".TP\n\\fB\\-i DECK\\fP\nthe deck of a run\n"));
  EXPECT_THAT(page, HasSubstr(".TP\n\\fB\\-\\-test [WHERE]\\fP\nis it well?\n.TP\n"
                              "\\fB\\-\\-try [WHAT]\\fP\none blank before this\n.TP\n"));
  EXPECT_THAT(page, HasSubstr(".TP\n\\fB2\\fP\nbad deck\n.TP\n\\fB3\\fP\nstopped\n"));
  EXPECT_THAT(page, HasSubstr(".SH ENVIRONMENT\n.TP\n.B TRIREME_SITE_DECK\n"));
}

TEST(Manual, RefusesAHelpTextThatItCannotRead) {
  const Schema schema = ExampleSchema();
  EXPECT_THROW(Page(schema, "Something else.\n"), std::logic_error);
  EXPECT_THROW(Page(schema, std::string(kHelp) + "\nand more\n"), std::logic_error);
  EXPECT_THROW(Page(schema, "Trireme is.\n\n  -i nothing\n"), std::logic_error);
}

TEST(Manual, WhatRoffWouldReadAsARequestIsText) {
  Schema schema;
  schema
      .Section("a",
               "'quoted' at a start, .dots, a \\n, \"x\", ~/.cache, 10^6, per-step, -1, \u00b7.")
      .Add({.name = "a.path", .fallback = "-x\\y", .help = ".hidden files."});
  const std::string page = Page(schema);
  EXPECT_THAT(page, HasSubstr("\n\\(aqquoted\\(aq at a start, .dots, a \\en, \\(dqx\\(dq,"));
  EXPECT_THAT(page, HasSubstr("\\(ti/.cache, 10\\(ha6,\nper-step, \\-1,"));
  EXPECT_THAT(page, HasSubstr("\\[u00B7]"));
  EXPECT_THAT(page, HasSubstr("\\fBa.path = \\-x\\ey\\fP\n"));
  EXPECT_THAT(page, HasSubstr("\n\\&.hidden files.\n"));
  EXPECT_TRUE(std::all_of(page.begin(), page.end(), [](char c) { return c > 0; }));
}

TEST(Manual, LinesAreShort) {
  Schema schema;
  std::string help;
  for (int i = 0; i < 100; ++i) help += "word ";
  schema.Section("a", help);
  std::istringstream lines(Page(schema));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
}

// JSON from files: what is refused, how it is said, and that nothing hostile takes time or memory.

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
  EXPECT_EQ(Shown("\xFF\xC2\x9B\n\xC3\xA9"), "???\xC3\xA9");
  EXPECT_EQ(Shown(std::string(119, 'a') + "\xC3\xA9"), std::string(119, 'a') + "...");
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

// Keys: declared and read by the same statements.

enum class Shape { kRound, kSquare, kFlat };

struct Box {
  std::int64_t count = 3;
  std::uint32_t seed = 7;
  double speed = 2e9;  // bytes/s
  Shape shape = Shape::kSquare;
  bool closed = true, replace = false;
  struct {
    std::string label = "plain", file;
  } inner;
  std::string preset = "none";
  bool other = true;  // bound to no key
};

void Bind(Keys keys, Box& o) {
  constexpr Names<3> kShapes = {"round", "square", "flat"};
  constexpr Names<2> kInvalid = {"error", "replace"};
  keys.Section("box", "A box.")
      .Integer("box.count", o.count, AtLeast(0), "things", "How many.")
      .Integer("box.seed", o.seed, Between(0, 4294967295.0), "", "Of the order.")
      .Real("box.speed", o.speed, AtLeast(0), {"GB/s", 1e9}, "How fast.")
      .Choice("box.shape", o.shape, kShapes, "Its form.")
      .Choice("box.invalid", o.replace, kInvalid, "What to do.")
      .Choice("box.preset", o.preset, {"none", "small"}, "A known one.")
      .Switch("box.closed", o.closed, "Whether it is shut.")
      .Text("box.label", o.inner.label, "Its name.")
      .Path("box.file", o.inner.file, "Where it is.")
      .Exclusive({"box.label", "box.file"});
}

TEST(Keys, DeclareWithTheDefaultsOfTheirFields) {
  Schema schema;
  Declare(schema, Bind);
  EXPECT_EQ(schema.Help(""), R"([box]
A box.

  count = 3        integer (things), at least 0
                   How many.

  seed = 7         integer, between 0 and 4294967295
                   Of the order.

  speed = 2        real (GB/s), at least 0
                   How fast.

  shape = square   one of round, square, flat
                   Its form.

  invalid = error  one of error, replace
                   What to do.

  preset = none    one of none, small
                   A known one.

  closed = yes     yes or no
                   Whether it is shut.

  label = plain    text
                   Its name.
                   Excludes box.file.

  file =           text
                   Where it is.
                   Excludes box.label.
)");
  Box other;
  other.count = 0;
  Schema changed;
  Declare(changed, Bind, other);
  EXPECT_EQ(changed.Find("box.count")->fallback, "0");
  EXPECT_TRUE(changed.Find("box.file")->path);
  EXPECT_FALSE(changed.Find("box.label")->path);
}

TEST(Keys, ReadIntoTheirFields) {
  Schema schema;
  Declare(schema, Bind);
  const Box box =
      Read(Deck::Parse(schema,
                       "[box]\ncount=9007199254740993\nseed=4294967295\nspeed=0.5\n"
                       "shape=flat\ninvalid=replace\npreset=small\nclosed=no\nlabel=a b\n",
                       "a.in", {}),
           Bind);
  EXPECT_EQ(box.count, 9007199254740993);
  EXPECT_EQ(box.seed, 4294967295u);
  EXPECT_EQ(box.speed, 5e8);
  EXPECT_EQ(box.shape, Shape::kFlat);
  EXPECT_TRUE(box.replace);
  EXPECT_EQ(box.preset, "small");
  EXPECT_FALSE(box.closed);
  EXPECT_EQ(box.inner.label, "a b");
  EXPECT_TRUE(box.other);
  const Box defaults = Read(Deck::Parse(schema, "", "a.in", {"box.file=x"}), Bind);
  EXPECT_EQ(defaults.inner.file, "x");
  EXPECT_EQ(defaults.shape, Shape::kSquare);
}

TEST(Keys, RefuseRangesThatTheirFieldsCannotHold) {
  Schema schema;
  Keys keys(schema);
  int narrow = 1;
  std::uint32_t unsigned_one = 1;
  std::size_t size = 1;
  EXPECT_THROW(keys.Integer("a.a", narrow, AtLeast(0), "", ""), std::logic_error);
  EXPECT_THROW(keys.Integer("a.b", unsigned_one, Between(-1, 5), "", ""), std::logic_error);
  EXPECT_THROW(keys.Integer("a.c", unsigned_one, Between(0, 0x1p32), "", ""), std::logic_error);
  EXPECT_THROW(keys.Integer("a.d", size, {}, "", ""), std::logic_error);
  EXPECT_NO_THROW(keys.Integer("a.e", size, AtLeast(0), "", ""));
  EXPECT_NO_THROW(keys.Integer("a.f", narrow, Between(-5, 2147483647), "", ""));
}

}  // namespace
}  // namespace trireme::deck
