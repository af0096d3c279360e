// Multiple-choice questions: tokens at the boundary, truncation, faults of the file, accuracy.
#include "choices.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "temporary_folder.hpp"
#include "trireme/base/error.hpp"
#include "word_tokens.hpp"

namespace trireme::tasks {
namespace {

using test::ByteData;
using test::Self;
using test::WordData;
using testing::ElementsAre;
using testing::HasSubstr;

class Choices : public testing::Test {
 protected:
  Questions Read(const std::string& text, const data::TokenData& data, std::int64_t length = 20) {
    std::ofstream(path_) << text;
    return ReadQuestions(path_, data::TokenFile(self_, data), length);
  }
  void Refused(const std::string& text, const std::string& message, std::int64_t length = 20) {
    try {
      Read(text, WordData({"<eos>", "<unk>", "a", "b"}), length);
      ADD_FAILURE() << "no error: " << message;
    } catch (const Error& error) {
      EXPECT_EQ(error.Code(), ExitCode::kBadInput);
      EXPECT_THAT(error.what(), HasSubstr(message));
    }
  }

  comm::Communicator self_ = Self();
  test::TemporaryFolder folder_;
  const std::string path_ = folder_ / "questions.jsonl";
};

TEST_F(Choices, AreTheTokensAfterTheContexts) {
  const Questions got = Read(
      "{\"context\": \"a b\", \"choices\": [\" b\", \" a a\"], \"answer\": 1, \"id\": 7}\n\n"
      "{\"context\": \"\", \"choices\": [\"b\", \"a\"], \"answer\": 0}\n",
      WordData({"<eos>", "<unk>", "a", "b"}));
  ASSERT_EQ(got.all.size(), 2U);
  EXPECT_THAT(got.tokens.ids, ElementsAre(2, 3, 3, 2, 3, 2, 2, 0, 3, 0, 2));
  EXPECT_THAT(got.tokens.counted, ElementsAre(0, 0, 1, 0, 0, 1, 1, 0, 1, 0, 1));
  EXPECT_THAT(got.tokens.documents, ElementsAre(0, 3, 7, 9));
  EXPECT_EQ(got.all[0].answer, 1);
  EXPECT_EQ(got.all[1].line, 3);
  EXPECT_THAT(got.all[0].bytes, ElementsAre(1, 3));
  EXPECT_THAT(got.all[0].tokens, ElementsAre(1, 2));
  const std::vector<data::Sample> windows = WindowsOf(got.tokens);
  ASSERT_EQ(windows.size(), 4U);
  EXPECT_EQ(windows[1].start, 3);
  EXPECT_EQ(windows[1].targets, 3);
}

// As lm-evaluation-harness: blanks at the end of a context belong to the choice.
TEST_F(Choices, TakeTheBlanksAtTheEndOfTheContext) {
  const Questions got =
      Read("{\"context\": \"x: \", \"choices\": [\"yz\", \" z\"], \"answer\": 0}", ByteData());
  EXPECT_THAT(got.tokens.ids, ElementsAre('x', ':', ' ', 'y', 'z', 'x', ':', ' ', ' ', 'z'));
  EXPECT_THAT(got.tokens.counted, ElementsAre(0, 0, 1, 1, 1, 0, 0, 1, 1, 1));
  EXPECT_THAT(got.all[0].bytes, ElementsAre(2, 1));
}

TEST_F(Choices, LongContextsLoseTheirBeginning) {
  const Questions got =
      Read("{\"context\": \"abcdef\", \"choices\": [\"xy\", \"x\"], \"answer\": 0}", ByteData(), 4);
  EXPECT_THAT(got.tokens.ids, ElementsAre('d', 'e', 'f', 'x', 'y', 'c', 'd', 'e', 'f', 'x'));
  EXPECT_EQ(got.all[0].truncated, 2);
  for (const data::Sample& window : WindowsOf(got.tokens)) EXPECT_EQ(window.targets, 4);
}

TEST_F(Choices, FaultsAreNamedWithTheirLine) {
  const std::string good = "{\"context\": \"a\", \"choices\": [\" a\", \" b\"], \"answer\": 0}\n";
  Refused(good + "{\"context\": \"a\", \"choices\"", "questions.jsonl:2");
  Refused(good + "{\"context\": \"a\", \"answer\": 0}", "questions.jsonl:2: choices");
  Refused(good + "{\"context\": \"a\", \"choices\": [\" a\"], \"answer\": 0}",
          "2 to 1000 expected, 1");
  Refused(good + "{\"context\": \"a\", \"choices\": [\" a\", 3], \"answer\": 0}",
          "a text expected, 3");
  Refused(good + "{\"context\": \"a\", \"choices\": [\" a\", \" b\"], \"answer\": 2}",
          "questions.jsonl:2: answer");
  Refused(good + "{\"context\": \"a\", \"choices\": [\" a\", \" \"], \"answer\": 0}",
          "questions.jsonl:2: choice 1 is empty");
  Refused("{\"context\": \"a\", \"choices\": [\" a\", \" a b a\"], \"answer\": 0}",
          "choice 1 has 3 tokens, a window 2", 2);
  Refused("\n", "there is no question");
}

TEST_F(Choices, TheLikeliestIsChosenByItsSumAndByItsBytes) {
  const Question question{
      .line = 1, .answer = 0, .bytes = {2, 10, 4}, .tokens = {}, .truncated = 0};
  const Chosen chosen = Choose(question, {4, 5, 4});
  EXPECT_EQ(chosen.by_sum, 0);    // the first of equal ones
  EXPECT_EQ(chosen.by_bytes, 1);  // 2, 0.5, 1 nats per byte
}

TEST_F(Choices, StandardErrorIsThatOfAMean) {
  const Accuracy got = AccuracyOf(3, 4);
  EXPECT_DOUBLE_EQ(got.mean, 0.75);
  // Sample deviation of 1 1 1 0 is 0.5; over sqrt(4).
  EXPECT_DOUBLE_EQ(got.standard_error, 0.25);
  EXPECT_TRUE(std::isnan(AccuracyOf(1, 1).standard_error));
}

}  // namespace
}  // namespace trireme::tasks
