// Decks that are right: values, where they come from, who wins, and the resolved deck.
#include "trireme/deck/deck.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "example_schema.hpp"

namespace trireme::deck {
namespace {

class DeckTest : public testing::Test {
 protected:
  Deck Parse(const std::string& text, const std::vector<std::string>& overrides = {}) const {
    return Deck::Parse(schema_, text, "input/a.in", overrides);
  }
  const Schema schema_ = ExampleSchema();
};

TEST_F(DeckTest, EmptyDeckGivesDefaults) {
  for (const std::string text : {"", "\n\n# only a comment\n", "[data]\n[model]\n"}) {
    const Deck deck = Parse(text);
    EXPECT_EQ(deck.Integer("data.batch"), 16);
    EXPECT_DOUBLE_EQ(deck.Real("optimizer.epsilon"), 1e-8);
    EXPECT_EQ(deck.Text("job.task"), "train");
    EXPECT_EQ(deck.Text("job.start_from"), "");
    EXPECT_TRUE(deck.Switch("model.bias"));
    EXPECT_FALSE(deck.Given("data.batch"));
    EXPECT_EQ(deck.Where("data.batch"), "default");
  }
}

TEST_F(DeckTest, ReadsEveryKindWithCommentsAndBlanks) {
  const Deck deck = Parse(
      "# comment\n[data] # the data\n  batch=8   # small\n\tfile =  my data/tokens = 2.h5 \n\n"
      "[model]\nbias = off\ndropout = 2.5e-1\n[data]\nseed = 0\n");
  EXPECT_EQ(deck.Integer("data.batch"), 8);
  EXPECT_EQ(deck.Text("data.file"), "my data/tokens = 2.h5");
  EXPECT_FALSE(deck.Switch("model.bias"));
  EXPECT_DOUBLE_EQ(deck.Real("model.dropout"), 0.25);
  EXPECT_EQ(deck.Integer("data.seed"), 0);
  EXPECT_TRUE(deck.Given("data.batch"));
  EXPECT_EQ(deck.Where("data.batch"), "input/a.in:3");
  EXPECT_EQ(deck.Where("data.file"), "input/a.in:4");
  EXPECT_EQ(deck.Where("model.dropout"), "input/a.in:8");
  EXPECT_EQ(deck.Where("data.seed"), "input/a.in:10");
  EXPECT_EQ(deck.Path(), "input/a.in");
}

TEST_F(DeckTest, ReadsDosLineEndsAndAByteOrderMark) {
  const Deck deck = Parse("\xEF\xBB\xBF[data]\r\n\r\nbatch = 8\r\nfile = a.h5\r\n");
  EXPECT_EQ(deck.Integer("data.batch"), 8);
  EXPECT_EQ(deck.Text("data.file"), "a.h5");
  EXPECT_EQ(deck.Where("data.batch"), "input/a.in:3");
}

TEST_F(DeckTest, ReadsLineEndsOfOldMacs) {
  const Deck deck = Parse("# a deck\r[data]\r\rbatch = 8\rfile = a.h5");
  EXPECT_EQ(deck.Integer("data.batch"), 8);
  EXPECT_EQ(deck.Text("data.file"), "a.h5");
  EXPECT_EQ(deck.Where("data.batch"), "input/a.in:4");
}

TEST_F(DeckTest, TakesAPlusSign) {
  const Deck deck = Parse("[data]\nbatch = +8\n[optimizer]\nlearning_rate = +3e-4\n");
  EXPECT_EQ(deck.Integer("data.batch"), 8);
  EXPECT_EQ(deck.Real("optimizer.learning_rate"), 3e-4);
}

TEST_F(DeckTest, CommandLineWins) {
  const Deck deck = Parse("[data]\nbatch = 8\nseed = 5\n", {"data.batch=4", " job.name = b c "});
  EXPECT_EQ(deck.Integer("data.batch"), 4);
  EXPECT_EQ(deck.Where("data.batch"), "command line");
  EXPECT_TRUE(deck.Given("data.batch"));
  EXPECT_EQ(deck.Text("job.name"), "b c");
  EXPECT_EQ(deck.Integer("data.seed"), 5);
}

TEST_F(DeckTest, EmptyTextIsAValue) {
  const Deck deck = Parse("[job]\nname =\n");
  EXPECT_EQ(deck.Text("job.name"), "");
  EXPECT_TRUE(deck.Given("job.name"));
}

TEST_F(DeckTest, CommandLineReplacesTheDecksWholeGroup) {
  const Deck deck = Parse("[schedule]\nepochs = 3\n", {"schedule.steps=20"});
  EXPECT_EQ(deck.Integer("schedule.steps"), 20);
  EXPECT_TRUE(deck.Given("schedule.steps"));
  EXPECT_FALSE(deck.Given("schedule.epochs"));
  EXPECT_DOUBLE_EQ(deck.Real("schedule.epochs"), 1.0);  // the loser holds its default
  EXPECT_NE(deck.Resolved().find("steps = 20"), std::string::npos);
  EXPECT_EQ(deck.Resolved().find("epochs ="), std::string::npos);
}

TEST_F(DeckTest, FirstOfAnExclusiveGroupStandsByDefault) {
  const std::string resolved = Parse("").Resolved();
  EXPECT_NE(resolved.find("[schedule]\nepochs = 1\n"), std::string::npos) << resolved;
  EXPECT_EQ(resolved.find("\nsteps ="), std::string::npos) << resolved;
}

TEST_F(DeckTest, SupplyFillsWhatTheUserLeftOpen) {
  Deck deck = Parse("[model]\ndim = 64\n");
  deck.Supply("model.dim", "768", "preset gpt2_124m");
  deck.Supply("model.dropout", "0", "preset gpt2_124m");
  EXPECT_EQ(deck.Integer("model.dim"), 64);
  EXPECT_DOUBLE_EQ(deck.Real("model.dropout"), 0.0);
  EXPECT_FALSE(deck.Given("model.dropout"));
  EXPECT_EQ(deck.Where("model.dropout"), "preset gpt2_124m");
  deck.Supply("model.dropout", "0.5", "automatic");  // the later one stands
  EXPECT_EQ(deck.Where("model.dropout"), "automatic");
  try {
    deck.Supply("model.dropout", "2", "preset odd");
    FAIL() << "a value out of range was taken";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              "preset odd: model.dropout = 2: must be at least 0 and below 1 (default: 0.1)");
  }
}

TEST_F(DeckTest, SupplyRespectsExclusiveGroups) {
  Deck given = Parse("[schedule]\nepochs = 3\n");
  given.Supply("schedule.steps", "7", "preset x");
  EXPECT_DOUBLE_EQ(given.Real("schedule.epochs"), 3.0);
  EXPECT_EQ(given.Resolved().find("steps = 7"), std::string::npos);
  Deck open = Parse("");
  open.Supply("schedule.steps", "7", "preset x");
  EXPECT_NE(open.Resolved().find("steps = 7  # from preset x\n"), std::string::npos);
  EXPECT_EQ(open.Resolved().find("epochs ="), std::string::npos);
}

TEST_F(DeckTest, ComplaintsNameTheLine) {
  Deck deck = Parse("[data]\n\nbatch = 8\n", {"data.seed=4"});
  deck.Supply("model.dim", "96", "preset jsc");
  const Error error = deck.Complain("data.batch", "too small for 16 ranks", "Raise it.");
  EXPECT_EQ(error.Code(), ExitCode::kBadInput);
  EXPECT_EQ(std::string(error.what()),
            "input/a.in:3: data.batch = 8: too small for 16 ranks\n  Raise it.");
  EXPECT_EQ(std::string(deck.Complain("data.seed", "odd").what()),
            "command line: data.seed = 4: odd");
  EXPECT_EQ(std::string(deck.Complain("job.name", "taken").what()),
            "input/a.in: job.name = run (default): taken");
  EXPECT_EQ(std::string(deck.Complain("model.dim", "odd").what()),
            "input/a.in: model.dim = 96 (preset jsc): odd");
}

TEST_F(DeckTest, ResolvedShowsEveryKeyAndItsOrigin) {
  Deck deck = Parse("[data]\nbatch = 8\n", {"job.name=my run"});
  deck.Supply("model.dim", "96", "preset jsc");
  EXPECT_EQ(deck.Resolved(),
            "[job]\n"
            "name       = my run  # from command line\n"
            "start_from =\n"
            "task       = train\n"
            "\n"
            "[data]\n"
            "file  = data/wikitext2.h5\n"
            "batch = 8                  # from input/a.in:2\n"
            "seed  = 1\n"
            "\n"
            "[model]\n"
            "dim     = 96   # from preset jsc\n"
            "dropout = 0.1\n"
            "bias    = yes\n"
            "\n"
            "[optimizer]\n"
            "learning_rate = 0.001\n"
            "epsilon       = 1e-08\n"
            "\n"
            "[schedule]\n"
            "epochs = 1\n"
            "\n"
            "[checkpoint]\n"
            "every_steps = 0\n"
            "\n"
            "[monitor]\n"
            "every_steps = 10\n");
}

TEST_F(DeckTest, ResolvedParsesBackToTheSameValues) {
  const std::string long_path = "a long/" + std::string(60, 'p') + "/file = name.h5";
  Deck deck = Parse("[data]\nfile = " + long_path +
                        "\n[model]\nbias = off\n[optimizer]\nlearning_rate = 1.0e-3\n"
                        "[schedule]\nepochs = 3\n[job]\nname =\n",
                    {"schedule.steps=20", "job.start_from=[x]"});
  deck.Supply("model.dropout", "0.30", "preset jsc");
  const Deck again = Parse(deck.Resolved());
  for (const Key& key : schema_.Keys()) {
    SCOPED_TRACE(key.name);
    switch (key.kind) {
      case KeyKind::kInteger:
        EXPECT_EQ(again.Integer(key.name), deck.Integer(key.name));
        break;
      case KeyKind::kReal:
        EXPECT_EQ(again.Real(key.name), deck.Real(key.name));
        break;
      case KeyKind::kSwitch:
        EXPECT_EQ(again.Switch(key.name), deck.Switch(key.name));
        break;
      case KeyKind::kText:
      case KeyKind::kChoice:
        EXPECT_EQ(again.Text(key.name), deck.Text(key.name));
    }
  }
  EXPECT_EQ(again.Text("data.file"), long_path);
  EXPECT_EQ(again.Integer("schedule.steps"), 20);
  EXPECT_FALSE(again.Given("schedule.epochs"));
  // Numbers stay as the user wrote them.
  EXPECT_NE(again.Resolved().find("learning_rate = 1.0e-3 "), std::string::npos);
}

TEST_F(DeckTest, ReadingUndeclaredKeysIsABug) {
  const Deck deck = Parse("");
  EXPECT_THROW(deck.Integer("data.nothing"), std::logic_error);
  EXPECT_THROW(deck.Integer("model.dropout"), std::logic_error);
  EXPECT_THROW(deck.Text("data.batch"), std::logic_error);
}

}  // namespace
}  // namespace trireme::deck
