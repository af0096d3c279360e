// Decks: what is read, and every complaint.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "example_schema.hpp"
#include "trireme/base/error.hpp"
#include "trireme/deck/deck.hpp"

namespace trireme::deck {
namespace {

// Decks that are right: values, where they come from, who wins, and the resolved deck.

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

TEST_F(DeckTest, ComplaintsNameAFileOnce) {
  const Deck deck = Parse("[data]\nfile = a.h5\n");
  EXPECT_EQ(std::string(deck.Complain("data.file", "a.h5: there is no such file").what()),
            "input/a.in:2: data.file = a.h5: there is no such file");
  EXPECT_EQ(std::string(deck.Complain("data.file", "b.h5: there is no such file").what()),
            "input/a.in:2: data.file = a.h5: b.h5: there is no such file");
}

TEST_F(DeckTest, AKeyDiffersByItsValue) {
  const Deck deck = Parse(
      "[data]\nbatch = +16\nseed = 7\n[optimizer]\nepsilon = 0.00000001\n[model]\nbias = true\n"
      "dropout = 0.25\n");
  for (const char* same : {"data.batch", "optimizer.epsilon", "model.bias", "model.dim"}) {
    EXPECT_FALSE(deck.Differs(same)) << same;
  }
  for (const char* other : {"data.seed", "model.dropout"}) EXPECT_TRUE(deck.Differs(other));
  // The resolved deck gives every key.
  const Deck again = Parse(deck.Resolved());
  EXPECT_TRUE(again.Given("data.batch"));
  EXPECT_FALSE(again.Differs("data.batch"));
  EXPECT_TRUE(again.Differs("data.seed"));
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

// Every way in which a deck or a command line can be wrong, with the whole message and its line.

class DeckErrors : public testing::Test {
 protected:
  // The message that `text` and `overrides` are refused with; "accepted" when they are not.
  std::string Refusal(const std::string& text, const std::vector<std::string>& overrides = {}) {
    try {
      Deck::Parse(schema_, text, "a.in", overrides);
    } catch (const Error& error) {
      EXPECT_EQ(error.Code(), ExitCode::kBadInput) << error.what();
      return error.what();
    }
    return "accepted";
  }
  std::string Override(const std::string& text) { return Refusal("", {text}); }

  const Schema schema_ = ExampleSchema();
};

TEST_F(DeckErrors, UnknownKeyNamesLineAndNearest) {
  EXPECT_EQ(Refusal("# a deck\n\n[job]\nname = x\n[data]\n\nbacth = 3  # typo\n"),
            "a.in:7: unknown key 'bacth' in [data]\n  Did you mean data.batch?");
}

TEST_F(DeckErrors, TwoBytesACharacter) {
  const std::string hint = "\n  Save it as UTF-8";
  EXPECT_EQ(Refusal(std::string("\xFF\xFE[\0d\0", 6)).find("a.in:1: the deck is UTF-16" + hint),
            0u);
  EXPECT_EQ(Refusal(std::string("\n[\0d\0", 5))
                .find("a.in:2: the deck holds NUL bytes: it is UTF-16, or no text" + hint),
            0u);
}

TEST_F(DeckErrors, CharactersThatOnlyLookAlike) {
  const auto says = [&](const std::string& value, const std::string& text) {
    for (const char* const key : {"data.batch", "optimizer.learning_rate"}) {
      EXPECT_NE(Override(std::string(key) + "=" + value).find(text), std::string::npos)
          << Override(std::string(key) + "=" + value);
    }
  };
  says("3\xC2\xA0", "the value holds a no-break space\n  Type it anew, with a plain blank.");
  says(
      "\xE2\x88\x92"
      "3",
      "the value holds a dash that is no minus sign\n  Type it anew, with '-'.");
  says(
      "\xE2\x80\x93"
      "3",
      "the value holds a dash that is no minus sign");
  says("3e-4f", "\n  Without the 'f': 3e-4");
  EXPECT_NE(Override("optimizer.learning_rate=0,5").find("\n  Decimals follow a point: 0.5"),
            std::string::npos);
  EXPECT_EQ(
      Refusal("[data]\nbatch\xC2\xA0= 3\n"),
      "a.in:2: the line holds a no-break space before the '='\n  Type it anew, with plain blanks.");
}

// What shells expand, and other readers leave out, is no part of a file's name.
TEST_F(DeckErrors, NamesOfFilesAreTakenAsTheyStand) {
  EXPECT_EQ(Refusal("[data]\nfile = run ; my results\n"),
            "a.in:2: data.file = run ; my results: the ';' would become part of the name\n"
            "  Comments begin with '#'.");
  for (const char* const name : {"~/a.h5", "~me/a.h5", "b.h5, ~/a.h5"}) {
    EXPECT_NE(Override(std::string("data.file=") + name)
                  .find("'~' does not stand for the home folder here"),
              std::string::npos)
        << name;
  }
  for (const char* const name : {"$SCRATCH/a.h5", "${SCRATCH}/a.h5", "a/$_x"}) {
    EXPECT_NE(Override(std::string("data.file=") + name).find("variables are not replaced"),
              std::string::npos)
        << name;
  }
  for (const char* const name : {"a;b.h5", "a~b", "a/~b", "5$", "$5"}) {
    EXPECT_EQ(Override(std::string("data.file=") + name), "accepted") << name;
  }
  EXPECT_EQ(Override("job.name=run ; $x ~/y"), "accepted");
}

TEST_F(DeckErrors, UnknownKeyOfAnotherSection) {
  EXPECT_EQ(Refusal("[optimizer]\ndropout = 0.1\n"),
            "a.in:2: unknown key 'dropout' in [optimizer]\n  'dropout' is a key of [model].");
  EXPECT_EQ(Refusal("[data]\nevery_steps = 3\n"),
            "a.in:2: unknown key 'every_steps' in [data]\n"
            "  'every_steps' is a key of [checkpoint], [monitor].");
  EXPECT_EQ(Refusal("[data]\ndroput = 3\n"),
            "a.in:2: unknown key 'droput' in [data]\n  Did you mean model.dropout?");
}

TEST_F(DeckErrors, UnknownKeyNearNothing) {
  EXPECT_EQ(Refusal("[data]\nxylophone = 3\n"),
            "a.in:2: unknown key 'xylophone' in [data]\n"
            "  trireme --help-deck data lists the keys of [data].");
}

TEST_F(DeckErrors, NamesAreCaseSensitiveAndWhole) {
  EXPECT_EQ(Refusal("[data]\nBatch = 3\n"),
            "a.in:2: unknown key 'Batch' in [data]\n  Did you mean data.batch?");
  // No guessing from prefixes.
  EXPECT_EQ(Refusal("[data]\nbat = 3\n").find("a.in:2: unknown key 'bat' in [data]"), 0u);
}

TEST_F(DeckErrors, UnknownSectionIsReportedOnceForAllItsKeys) {
  EXPECT_EQ(Refusal("[modle]\ndim = 3\nheads = 4\n[data]\nbatch = 1\n"),
            "a.in:1: unknown section [modle]\n  Did you mean [model]? Its keys were not read.");
  EXPECT_EQ(Refusal("\n[zzzzzzzzz]\n"),
            "a.in:2: unknown section [zzzzzzzzz]\n"
            "  The sections are job, data, model, optimizer, schedule, checkpoint, monitor.");
  EXPECT_EQ(Refusal("[ data ]\nbatch = 2\n").find("a.in:1: unknown section [ data ]\n"), 0u);
  EXPECT_EQ(Refusal("[data]\nbatch = 2\n[]\nbatch = 2\n").find("a.in:3: unknown section []\n"), 0u);
}

TEST_F(DeckErrors, KeyOutsideASection) {
  EXPECT_EQ(Refusal("batch = 3\n"),
            "a.in:1: the key 'batch' stands outside a section\n  'batch' is a key of [data].");
  EXPECT_EQ(Refusal("# c\ndata.batch = 3\n[data]\n"),
            "a.in:2: the key 'data.batch' stands outside a section\n  Write 'batch' below [data].");
  EXPECT_EQ(Refusal("xylophone = 3\n"),
            "a.in:1: the key 'xylophone' stands outside a section\n"
            "  Write it below the [section] that it belongs to.");
}

TEST_F(DeckErrors, SyntaxErrorsHaveTheirLine) {
  EXPECT_EQ(Refusal("[data]\nbatch 3\n"),
            "a.in:2: 'batch 3' is neither 'key = value' nor '[section]'");
  EXPECT_EQ(Refusal("[data]\n; note\n"),
            "a.in:2: '; note' is neither 'key = value' nor '[section]'\n"
            "  Comments begin with '#'.");
  EXPECT_EQ(Refusal("[data]\nbatch = 3\n[model"),  // no line end at the end of the file
            "a.in:3: '[model' is neither 'key = value' nor '[section]'");
  EXPECT_EQ(Refusal("[data]\n = 3\n"), "a.in:2: there is no key before the '='");
}

TEST_F(DeckErrors, IntegersArePlain) {
  const std::string facts = " (unit: sequences; default: 16)";
  for (const std::string bad : {"many", "3 4", "0x10", "+-3", "++3", "+", "3.5", "--3", ""}) {
    EXPECT_EQ(Refusal("[data]\nbatch = " + bad + "\n"),
              "a.in:2: data.batch = " + bad + ": not an integer" + facts);
  }
  for (const std::string apart : {"1_000", "1,000", "1'000"}) {
    EXPECT_EQ(Refusal("[data]\nbatch = " + apart + "\n"), "a.in:2: data.batch = " + apart +
                                                              ": not an integer" + facts +
                                                              "\n  Write it in digits: 1000");
  }
  EXPECT_EQ(Refusal("[data]\nbatch = 1e6\n"),
            "a.in:2: data.batch = 1e6: not an integer" + facts + "\n  Write it in digits: 1000000");
  EXPECT_EQ(Refusal("[data]\nbatch = 99999999999999999999\n"),
            "a.in:2: data.batch = 99999999999999999999: does not fit 64 bits" + facts);
}

TEST_F(DeckErrors, RangesNameBoundsUnitAndDefault) {
  EXPECT_EQ(Refusal("[data]\nbatch = 0\n"),
            "a.in:2: data.batch = 0: must be at least 1 (unit: sequences; default: 16)");
  EXPECT_EQ(Refusal("[data]\nbatch = -1\n").find("a.in:2: data.batch = -1: must be"), 0u);
  EXPECT_EQ(Refusal("[data]\nseed = 4294967296\n"),
            "a.in:2: data.seed = 4294967296: must be between 0 and 4294967295 (default: 1)");
  EXPECT_EQ(Refusal("[data]\nseed = 4294967295\n"), "accepted");
  EXPECT_EQ(Refusal("[model]\ndropout = 1\n"),
            "a.in:2: model.dropout = 1: must be at least 0 and below 1 (default: 0.1)");
  EXPECT_EQ(Refusal("[model]\ndropout = 0\n"), "accepted");
  EXPECT_EQ(Refusal("[optimizer]\nlearning_rate = 0\n"),
            "a.in:2: optimizer.learning_rate = 0: must be above 0 (default: 0.001)");
  EXPECT_EQ(Refusal("[optimizer]\nepsilon = 1.5\n"),
            "a.in:2: optimizer.epsilon = 1.5: must be between 0 and 1 (default: 1e-08)");
  EXPECT_EQ(Refusal("[optimizer]\nepsilon = 1\n"), "accepted");
}

TEST_F(DeckErrors, RealsAreFiniteNumbers) {
  for (const std::string bad : {"inf", "-inf", "nan", "1e999", "infinity"}) {
    EXPECT_EQ(Refusal("[schedule]\nepochs = " + bad + "\n"),
              "a.in:2: schedule.epochs = " + bad +
                  ": not a finite number in double precision (unit: epochs; default: 1)");
  }
  for (const std::string bad : {"fast", "1.0x", "1,5,0", "1 2", ""}) {
    EXPECT_EQ(Refusal("[schedule]\nepochs = " + bad + "\n"),
              "a.in:2: schedule.epochs = " + bad + ": not a number (unit: epochs; default: 1)");
  }
  for (const std::string good : {"3", "3.", ".5", "1e-3", "2.5E+2"}) {
    EXPECT_EQ(Refusal("[schedule]\nepochs = " + good + "\n"), "accepted") << good;
  }
}

TEST_F(DeckErrors, ChoicesAndSwitches) {
  EXPECT_EQ(Refusal("[job]\ntask = trian\n"),
            "a.in:2: job.task = trian: not one of train, evaluate, plan (default: train)\n"
            "  Did you mean train?");
  EXPECT_EQ(Refusal("[model]\nbias = 1\n"),
            "a.in:2: model.bias = 1: not one of yes, no, true, false, on, off (default: yes)");
  for (const std::string good : {"yes", "no", "true", "false", "on", "off"}) {
    EXPECT_EQ(Refusal("[model]\nbias = " + good + "\n"), "accepted") << good;
  }
}

TEST_F(DeckErrors, TextsThatWouldNotSurvive) {
  EXPECT_EQ(Refusal("[job]\nname = run#3\n"),
            "a.in:2: job.name: the '#' begins a comment, which would leave the value 'run'\n"
            "  Put a blank before the comment, or choose a name without '#'.");
  EXPECT_EQ(Refusal("[job]\nname = run #3\n"), "accepted");
  EXPECT_EQ(Refusal("[job]\nstart_from =# none\n"), "accepted");
  EXPECT_EQ(Refusal("[data]\nbatch = 3# sequences\n"), "accepted");
  EXPECT_EQ(Override("job.name=run#3"),
            "command line: job.name = run#3: the value holds a '#', which begins a comment in a "
            "deck\n  Choose a name without '#'.");
  EXPECT_EQ(Override("job.name=run\n[data]"),
            "command line: job.name = run?[data]: the value holds a line break or another control "
            "character");
  EXPECT_EQ(Refusal("[job]\nname = \"my run\"\n"),
            "a.in:2: job.name = \"my run\": quotes would become part of the value (default: run)\n"
            "  Write it without quotes; blanks inside are kept.");
}

TEST_F(DeckErrors, DuplicatesNameBothLines) {
  EXPECT_EQ(Refusal("[data]\nbatch = 3\n[job]\n[data]\nbatch = 3\n"),
            "a.in:5: data.batch is given already on line 2\n  Keep one of the two.");
  EXPECT_EQ(Refusal("", {"data.batch=3", "data.batch=4"}),
            "command line: data.batch is given twice\n  Keep one of the two.");
}

TEST_F(DeckErrors, ExclusiveKeysNameBothLines) {
  EXPECT_EQ(Refusal("[schedule]\nsteps = 5\n\nepochs = 3\n"),
            "a.in:4: schedule.epochs excludes schedule.steps, given on line 2\n"
            "  Keep one of the two.");
  EXPECT_EQ(Refusal("", {"schedule.epochs=2", "schedule.steps=5"}),
            "command line: schedule.steps excludes schedule.epochs, also given\n"
            "  Keep one of the two.");
  EXPECT_EQ(Refusal("[schedule]\nsteps = 5\n", {"schedule.epochs=2"}), "accepted");
}

TEST_F(DeckErrors, CommandLineProblemsSaySo) {
  EXPECT_EQ(Override("data.batch"), "command line: 'data.batch' is not section.key=value");
  EXPECT_EQ(Override("=3"), "command line: '=3' is not section.key=value");
  EXPECT_EQ(Override("batch=3"),
            "command line: 'batch' lacks a section: write section.key=value\n"
            "  'batch' is a key of [data].");
  EXPECT_EQ(Override("data.bacth=3"),
            "command line: unknown key 'data.bacth'\n  Did you mean data.batch?");
  EXPECT_EQ(Override("modle.dim=3"),
            "command line: unknown section [modle] in 'modle.dim'\n  Did you mean model.dim?");
  EXPECT_EQ(Override("data.batch=0"),
            "command line: data.batch = 0: must be at least 1 (unit: sequences; default: 16)");
}

TEST_F(DeckErrors, AllProblemsInOneMessageInLineOrder) {
  EXPECT_EQ(Refusal("[data]\r\nbatch = 0\r\n\r\nnonsense\r\n[modle]\r\ndim = 3\r\n[model]\r\n"
                    "dmi = 4\r\nmore nonsense\r\n[data]\r\nbatch = 4\r\n",
                    {"job.task=fly"}),
            "a.in: 7 problems\n"
            "a.in:2: data.batch = 0: must be at least 1 (unit: sequences; default: 16)\n"
            "a.in:4: 'nonsense' is neither 'key = value' nor '[section]'\n"
            "a.in:5: unknown section [modle]\n"
            "  Did you mean [model]? Its keys were not read.\n"
            "a.in:8: unknown key 'dmi' in [model]\n"
            "  Did you mean model.dim?\n"
            "a.in:9: 'more nonsense' is neither 'key = value' nor '[section]'\n"
            "a.in:11: data.batch is given already on line 2\n"
            "  Keep one of the two.\n"
            "command line: job.task = fly: not one of train, evaluate, plan (default: train)");
}

TEST_F(DeckErrors, AFileThatIsNoDeckEndsQuickly) {
  std::string binary;
  for (unsigned i = 0; i < 400000; ++i) binary += static_cast<char>(i * 7919 >> 3);
  const std::string message = Refusal(binary);
  EXPECT_EQ(message.find("a.in:1: the deck holds NUL bytes"), 0u);
  std::erase(binary, '\0');
  const std::string other = Refusal(binary);
  EXPECT_EQ(other.find("a.in: "), 0u);
  EXPECT_LT(other.size(), 10000u);
  EXPECT_EQ(other.find('\x1b'), std::string::npos);
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
  std::string words;
  for (int i = 0; i < 1000; ++i) words += fmt::format("key{} = 1\n", i);
  const std::string many = Refusal("[data]\n" + words);
  EXPECT_EQ(many.find("a.in: 1000 problems\n"), 0u);
  EXPECT_NE(many.find("\nand 970 more"), std::string::npos);
}

}  // namespace
}  // namespace trireme::deck
