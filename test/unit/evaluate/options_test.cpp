// The keys of [evaluate]: what does not fit together is refused with its line.
#include "trireme/tasks/evaluate.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "temporary_folder.hpp"
#include "trireme/base/error.hpp"

namespace trireme::tasks {
namespace {

using testing::HasSubstr;

class EvaluateOptionsTest : public testing::Test {
 protected:
  EvaluateOptionsTest() { DeclareEvaluate(schema_); }

  EvaluateOptions Checked(const std::string& keys) {
    const deck::Deck deck = deck::Deck::Parse(schema_, "[evaluate]\n" + keys, "a.in", {});
    const EvaluateOptions options = ReadEvaluate(deck);
    CheckEvaluate(options, deck, 16);
    return options;
  }
  void Refused(const std::string& keys, const std::string& message) {
    try {
      Checked(keys);
      ADD_FAILURE() << "no error: " << message;
    } catch (const Error& error) {
      EXPECT_EQ(error.Code(), ExitCode::kBadInput);
      EXPECT_THAT(error.what(), HasSubstr("a.in:"));
      EXPECT_THAT(error.what(), HasSubstr(message));
    }
  }

  deck::Schema schema_;
  test::TemporaryFolder folder_;
};

TEST_F(EvaluateOptionsTest, ReadAllKeys) {
  const std::string text = folder_ / "a.txt";
  std::ofstream(text) << "text";
  const EvaluateOptions options = Checked(
      "stride = 16\ntext = " + text + "\ndetokenise = wikitext\n" +
      "baselines = yes\nchoices = " + text + "\noutput = " + (folder_ / "o") +
      "\nresults = " + (folder_ / "r") + "\ndocuments = " + (folder_ / "d") + "\noverwrite = no\n");
  EXPECT_EQ(options.stride, 16);
  EXPECT_EQ(options.text, text);
  EXPECT_EQ(options.detokenise, Detokenise::kWikitext);
  EXPECT_TRUE(options.baselines);
  EXPECT_EQ(options.choices, text);
  EXPECT_EQ(options.output, folder_ / "o");
  EXPECT_EQ(options.results, folder_ / "r");
  EXPECT_EQ(options.documents, folder_ / "d");
}

TEST_F(EvaluateOptionsTest, RefuseWhatDoesNotFit) {
  Refused("stride = 17\n", "windows of 16 tokens would skip some");
  Refused("stride = -1\n", "evaluate.stride");
  Refused("detokenise = wikitext\n", "there is no text to change");
  Refused("output = o.jsonl\n", "there are no questions to score");
  Refused("text = /nowhere.txt\n", "/nowhere.txt: no such file");
  Refused("choices = /tmp\n", "/tmp is not a file");
  Refused("results = /nowhere/r.json\n", "the folder /nowhere does not exist");
  const std::string there = folder_ / "there.json";
  std::ofstream(there) << "{}";
  Refused("results = " + there + "\n", "is there already");
  EXPECT_EQ(Checked("results = " + there + "\noverwrite = yes\n").results, there);
  Refused("results = " + (folder_ / "x") + "\ndocuments = " + (folder_ / "x") + "\n",
          "evaluate.documents names the same file");
}

}  // namespace
}  // namespace trireme::tasks
