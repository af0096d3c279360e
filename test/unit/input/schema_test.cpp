// Schema: declarations that contradict themselves, nearest names, and the page of --help-deck.
#include "trireme/deck/schema.hpp"

#include <gtest/gtest.h>

#include <sstream>
#include <stdexcept>
#include <string>

#include "example_schema.hpp"
#include "trireme/base/error.hpp"

namespace trireme::deck {
namespace {

TEST(Schema, RefusesFaultyDeclarations) {
  Schema schema = ExampleSchema();
  EXPECT_THROW(schema.Text("job.name", "", "again"), std::logic_error);
  EXPECT_THROW(schema.Text("name", "", "no section"), std::logic_error);
  EXPECT_THROW(schema.Integer("data.x", 0, AtLeast(1), "", "default out of range"),
               std::logic_error);
  EXPECT_THROW(schema.Choice("data.y", "c", {"a", "b"}, "default is no choice"), std::logic_error);
  EXPECT_THROW(schema.Exclusive({"data.batch", "data.nothing"}), std::logic_error);
}

TEST(Schema, SectionsKeepTheOrderOfTheirFirstMention) {
  Schema schema;
  schema.Integer("late.key", 1, AtLeast(0), "", "").Section("early", "First?").Section("late", "L");
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
  schema.Text("data.other", std::string(60, 'x'), words);
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

}  // namespace
}  // namespace trireme::deck
