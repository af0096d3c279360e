// Where keys come from: the command line, and a site's deck.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "site_deck.hpp"
#include "trireme/app/sources.hpp"
#include "trireme/base/error.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/tasks/tasks.hpp"

namespace trireme::test {
namespace {

using app::ParseCommandLine;
using ::testing::HasSubstr;

// A site's deck: weaker than the user's, stronger than defaults, and only of keys that are a
// site's.

const deck::Schema& Keys() {
  static const deck::Schema schema = tasks::DeclareAll();
  return schema;
}

// The user's deck and command line, over the site's deck.
deck::Deck Parse(const std::string& site, const std::string& user,
                 const std::vector<std::string>& overrides = {}) {
  app::CommandLine line;
  line.deck = "a.in";
  line.overrides = overrides;
  return app::ParseDeck(Keys(), line,
                        {.deck_path = "a.in",
                         .deck_text = user,
                         .site_path = "/etc/site.in",
                         .site_text = site,
                         .start = {}});
}

std::string Complaint(const std::string& site, const std::string& user = "") {
  try {
    Parse(site, user);
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    return error.what();
  }
  return "none";
}

TEST(SiteDeck, IsWeakerThanDeckAndCommandLineAndStrongerThanDefaults) {
  const char* const site =
      "[checkpoint]\nasync = yes\nwriters = 3\nkeep = 5\n[data]\nstaging = none\n"
      "[plan]\nmachine = h100\n";
  const deck::Deck deck = Parse(site, "[checkpoint]\nwriters = 2\n", {"checkpoint.keep=7"});
  EXPECT_TRUE(deck.Switch("checkpoint.async"));
  EXPECT_EQ(deck.Where("checkpoint.async"), "/etc/site.in:2");
  EXPECT_EQ(deck.Text("data.staging"), "none");
  EXPECT_EQ(deck.Text("plan.machine"), "h100");
  EXPECT_EQ(deck.Integer("checkpoint.writers"), 2);
  EXPECT_EQ(deck.Integer("checkpoint.keep"), 7);
  EXPECT_THAT(deck.Resolved(), HasSubstr("# from /etc/site.in:2\n"));
  // The resolved deck alone, on another machine: the same values.
  const deck::Deck again = Parse("[checkpoint]\nasync = no\nkeep = 9\n", deck.Resolved());
  EXPECT_TRUE(again.Switch("checkpoint.async"));
  EXPECT_EQ(again.Integer("checkpoint.keep"), 7);
}

TEST(SiteDeck, EveryKeyOfASiteIsDeclared) {
  for (const std::string_view name : app::SiteKeys()) {
    EXPECT_NE(Keys().Find(std::string(name)), nullptr) << name;
  }
}

// A checkpoint's moment is one decision, of a site or of a user.
TEST(SiteDeck, AUsersKeyReplacesTheSitesWholeGroup) {
  const char* const automatic = "[checkpoint]\nauto = yes\n[run]\nmtbf_hours = 24\n";
  EXPECT_TRUE(Parse(automatic, "").Switch("checkpoint.auto"));
  EXPECT_EQ(Parse(automatic, "").Integer("checkpoint.every_steps"), 0);
  const deck::Deck steps = Parse(automatic, "[checkpoint]\nevery_steps = 40\n");
  EXPECT_FALSE(steps.Switch("checkpoint.auto"));
  EXPECT_EQ(steps.Integer("checkpoint.every_steps"), 40);
  EXPECT_EQ(app::ReadAll(steps).checkpoint.every_steps, 40);
  const deck::Deck minutes = Parse("[checkpoint]\nevery_minutes = 30\nevery_steps = 7\n",
                                   "[checkpoint]\nauto = yes\n", {"run.mtbf_hours=24"});
  EXPECT_EQ(minutes.Real("checkpoint.every_minutes"), 0);
  EXPECT_TRUE(app::ReadAll(minutes).checkpoint.automatic);
}

// All keys of [checkpoint], as the manual says, but what chooses weights.
TEST(SiteDeck, TakesAllThatDecidesHowCheckpointsAreWritten) {
  const deck::Deck defaults = deck::Deck::Parse(Keys(), "", "deck.in", {});
  for (const auto& [key, value] : defaults.Section("checkpoint")) {
    const std::string text = "[checkpoint]\n" + key + " = " + value + "\n";
    const bool weights = key == "best" || key == "start_from";
    EXPECT_EQ(Complaint(text).find("not for a site's deck") != std::string::npos, weights) << key;
  }
}

TEST(SiteDeck, RefusesWhatDecidesWhatIsComputed) {
  for (const char* const text :
       {"[job]\ntask = evaluate\n", "[data]\nfile = a.h5\n", "[model]\ndim = 64\n",
        "[schedule]\nsteps = 4\n", "[run]\nprecision = bf16\n", "[run]\nthreads = 2\n",
        "[grid]\nbucket_mib = 1\n", "[optimizer]\nlearning_rate = 1\n", "[run]\nseed = 3\n"}) {
    EXPECT_THAT(Complaint(text), HasSubstr("/etc/site.in:2: ")) << text;
    EXPECT_THAT(Complaint(text), HasSubstr("not for a site's deck")) << text;
  }
  const std::string both =
      Complaint("[model]\ndim = 64\n[checkpoint]\nkeep = 3\n[run]\nseed = 2\n");
  EXPECT_THAT(both, HasSubstr("/etc/site.in:2: model.dim"));
  EXPECT_THAT(both, HasSubstr("/etc/site.in:6: run.seed"));
  EXPECT_THAT(both, HasSubstr("checkpoint.io_hints"));  // among those that a site may give
}

TEST(SiteDeck, ErrorsNameItsFileAndLine) {
  EXPECT_THAT(Complaint("[checkpoint]\nkeeep = 3\n"), HasSubstr("/etc/site.in:2: unknown key"));
  EXPECT_THAT(Complaint("[checkpoint]\nkeep = -3\n"), HasSubstr("/etc/site.in:2: checkpoint.keep"));
  EXPECT_THAT(Complaint("nonsense\n"), HasSubstr("/etc/site.in:1"));
  // A value that is found wrong where it is read.
  const deck::Deck deck = Parse("[checkpoint]\nio_hints = a\n", "");
  try {
    app::ReadAll(deck);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("/etc/site.in:2"));
  }
}

// The command line: every option, and what is wrong with the others.

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

std::string LineComplaint(const std::vector<std::string>& arguments) {
  try {
    ParseCommandLine(arguments);
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    return error.what();
  }
  return "none";
}

TEST(CommandLine, SaysWhatIsWrong) {
  EXPECT_NE(LineComplaint({}).find("no deck was given"), std::string::npos);
  EXPECT_NE(LineComplaint({"-i"}).find("-i needs a value"), std::string::npos);
  EXPECT_NE(LineComplaint({"-i", "a.in", "--verbose"}).find("'--verbose' is not an option"),
            std::string::npos);
  EXPECT_NE(LineComplaint({"-i", "a.in", "b.in"}).find("'b.in' is not an option"),
            std::string::npos);
  EXPECT_EQ(LineComplaint({"a.in"}),
            "command line: 'a.in' is not an option\n  A deck goes after -i, a run after -r.");
  EXPECT_EQ(LineComplaint({"-i", "a.in", "-i", "b.in"}),
            "command line: -i is given twice: a.in and b.in\n  Keep one of the two.");
  EXPECT_NE(LineComplaint({"-r", "a", "-i", "a.in", "-r", "b"}).find("-r is given twice: a and b"),
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
