// The command line: every option, and what is wrong with the others.
#include "trireme/app/sources.hpp"

#include <gtest/gtest.h>

#include "trireme/deck/deck.hpp"
#include "trireme/tasks/tasks.hpp"

namespace trireme::test {
namespace {

using app::ParseCommandLine;

TEST(CommandLine, TakesItsOptionsInAnyOrder) {
  const auto line = ParseCommandLine({"data.batch=4", "-r", "runs/a", "-v", "-i", "a.in", "-n"});
  EXPECT_EQ(line.deck, "a.in");
  EXPECT_EQ(line.resume, "runs/a");
  EXPECT_TRUE(line.validate_only);
  EXPECT_TRUE(line.resolve_only);
  EXPECT_EQ(line.overrides, std::vector<std::string>{"data.batch=4"});
}

TEST(CommandLine, HelpDeckTakesASectionOrNone) {
  EXPECT_EQ(*ParseCommandLine({"--help-deck"}).help_deck, "");
  EXPECT_EQ(*ParseCommandLine({"--help-deck", "model"}).help_deck, "model");
  const auto line = ParseCommandLine({"--help-deck", "-v"});
  EXPECT_EQ(*line.help_deck, "");
  EXPECT_TRUE(line.validate_only);
}

std::string Complaint(const std::vector<std::string>& arguments) {
  try {
    ParseCommandLine(arguments);
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    return error.what();
  }
  return "none";
}

TEST(CommandLine, SaysWhatIsWrong) {
  EXPECT_NE(Complaint({}).find("no deck was given"), std::string::npos);
  EXPECT_NE(Complaint({"-i"}).find("-i needs a value"), std::string::npos);
  EXPECT_NE(Complaint({"-i", "a.in", "--verbose"}).find("'--verbose' is not an option"),
            std::string::npos);
  EXPECT_NE(Complaint({"-i", "a.in", "b.in"}).find("'b.in' is not an option"), std::string::npos);
  EXPECT_EQ(Complaint({"a.in"}),
            "command line: 'a.in' is not an option\n  A deck goes after -i, a run after -r.");
  EXPECT_EQ(Complaint({"-i", "a.in", "-i", "b.in"}),
            "command line: -i is given twice: a.in and b.in\n  Keep one of the two.");
  EXPECT_NE(Complaint({"-r", "a", "-i", "a.in", "-r", "b"}).find("-r is given twice: a and b"),
            std::string::npos);
}

// Every key of every module is declared once and has a default that its own checks accept.
TEST(CommandLine, EveryModulesKeysAreDeclared) {
  const deck::Schema schema = tasks::DeclareAll();
  for (const char* key : {"job.task", "run.precision", "grid.data", "grid.bucket_mib", "data.file",
                          "tokenize.kind", "model.preset", "optimizer.kind", "schedule.steps",
                          "checkpoint.keep", "monitor.every_steps", "generate.prompt"}) {
    EXPECT_NE(schema.Find(key), nullptr) << key;
  }
  EXPECT_NO_THROW(deck::Deck::Parse(schema, "", "empty.in", {}));
}

}  // namespace
}  // namespace trireme::test
