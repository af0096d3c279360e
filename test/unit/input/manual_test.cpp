// The manual page: escapes of roff, and every key with what its declaration says.
#include "trireme/deck/schema.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "example_schema.hpp"

namespace trireme::deck {
namespace {

using testing::HasSubstr;

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
      .Text("a.path", "-x\\y", ".hidden files.");
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

}  // namespace
}  // namespace trireme::deck
