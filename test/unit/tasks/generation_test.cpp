// Parts of generation without a model: draws, texts that grow, what is shown.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "generator.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/tasks/tasks.hpp"

namespace trireme::test {
namespace {

using tasks::Choose;
using tasks::GenerateOptions;
using tasks::GrowingText;

// Parts of generation without a model: draws, penalties, texts that grow, prompts from JSON lines.

TEST(Draws, HaveCoordinates) {
  // Prompt 0 draws what a lone prompt always has.
  const PhiloxCounter words = Philox({5, 0, 0, 0}, MakeKey(3, Purpose::kGenerate));
  EXPECT_EQ(tasks::DrawOf(3, 0, 5), UniformFrom(words[0]));
  std::set<double> draws;
  for (const std::int64_t prompt : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1} << 33}) {
    for (const std::int64_t position : {0, 1, 2}) draws.insert(tasks::DrawOf(3, prompt, position));
  }
  EXPECT_EQ(draws.size(), 9u);
}

TEST(Penalty, LowersWhatWasSeenOnce) {
  std::vector<double> logits = {2, -2, 3, 0};
  tasks::Penalise(std::vector<std::int32_t>{0, 1, 1, 3}, 2, logits);
  EXPECT_EQ(logits, (std::vector<double>{1, -4, 3, 0}));
  tasks::Penalise(std::vector<std::int32_t>{0, 1, 2}, 1, logits);
  EXPECT_EQ(logits, (std::vector<double>{1, -4, 3, 0}));
}

TEST(LogProbability, IsThatOfTheSoftmax) {
  const std::vector<double> logits = {std::log(0.1) + 700, std::log(0.6) + 700,
                                      std::log(0.3) + 700};
  EXPECT_NEAR(tasks::LogProbability(logits, 1), std::log(0.6), 1e-12);
}

// Logits far below the likeliest included, whose exponential no double holds.
TEST(LogProbability, EqualsTheLibrarysExponentials) {
  std::vector<double> logits;
  for (int i = 0; i < 1001; ++i) logits.push_back(-0.37 * i + 1e-3 * (i % 7));
  logits.push_back(-1e6);
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit);
  for (const std::int32_t token : {0, 3, 500, 1001}) {
    const double exact = logits[static_cast<std::size_t>(token)] - std::log(sum);
    EXPECT_NEAR(tasks::LogProbability(logits, token), exact, 1e-15 * std::abs(exact) + 1e-15);
  }
}

TEST(Logits, AreFiniteOrNot) {
  std::vector<double> logits(37, 1.0);
  EXPECT_TRUE(tasks::AllFinite(logits));
  for (const double bad :
       {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
        std::numeric_limits<double>::quiet_NaN()}) {
    for (const std::size_t place : {0u, 17u, 36u}) {
      std::vector<double> some = logits;
      some[place] = bad;
      EXPECT_FALSE(tasks::AllFinite(some)) << bad << " at " << place;
    }
  }
}

TEST(Stops, AreReadWithEscapes) {
  using Stops = std::vector<std::string>;
  EXPECT_EQ(tasks::ReadStops(""), Stops());
  EXPECT_EQ(tasks::ReadStops("a|b c"), (Stops{"a", "b c"}));
  EXPECT_EQ(tasks::ReadStops("\\n\\n|\\|\\t\\\\"), (Stops{"\n\n", "|\t\\"}));
  for (const char* bad : {"a|", "|", "\\", "a\\x"}) EXPECT_FALSE(tasks::ReadStops(bad)) << bad;
}

TEST(WholeCharacters, LeaveOutAnUnfinishedOne) {
  using tasks::WholeCharacters;
  EXPECT_EQ(WholeCharacters(""), 0u);
  EXPECT_EQ(WholeCharacters("ab"), 2u);
  const std::string text = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x9A\xA2";  // 1, 2, 3 and 4 bytes
  const std::size_t whole[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10};
  for (std::size_t size = 0; size <= text.size(); ++size) {
    EXPECT_EQ(WholeCharacters(text.substr(0, size)), whole[size]) << size;
  }
  EXPECT_EQ(WholeCharacters("\x80\x80\x80\x80\x80"), 5u);  // no character: shown as it is
}

// A file of bytes: ids are bytes.
data::TokenData Bytes() {
  data::TokenData data;
  for (auto& split : data.tokens) split = {1, 2, 3};
  for (int byte = 0; byte < 256; ++byte) {
    data.vocabulary.words.emplace_back(1, static_cast<char>(byte));
  }
  data.vocabulary.eos = 0;
  data.vocabulary.unk = -1;
  data.tokenizer = "byte";
  data.source_sha256 = std::string(64, '0');
  return data;
}

class GrowingTextTest : public testing::Test {
 protected:
  GrowingTextTest() : tokens_(comm::Communicator::Adopt(MPI_COMM_SELF), Bytes()) {}
  // Adds the bytes one by one; the pieces handed out, with | after each.
  std::string Pieces(GrowingText& text, const std::string& bytes) {
    std::string pieces;
    for (const char byte : bytes) {
      const std::int32_t id = static_cast<unsigned char>(byte);
      const bool end = text.Add({&id, 1});
      pieces += text.Take(end) + "|";
      if (end) break;
    }
    return pieces;
  }
  data::TokenFile tokens_;
};

TEST_F(GrowingTextTest, ShowsWholeCharacters) {
  const std::vector<std::string> none;
  GrowingText text(tokens_, {'x', 'y'}, none);
  EXPECT_EQ(Pieces(text,
                   "a\xE2\x82\xAC"
                   "b"),
            "a|||\xE2\x82\xAC|b|");
  EXPECT_EQ(text.Text(),
            "a\xE2\x82\xAC"
            "b");
}

TEST_F(GrowingTextTest, HoldsBackWhatMayBecomeAStop) {
  const std::vector<std::string> stops = {"abc", "bd"};
  GrowingText text(tokens_, {'a'}, stops);
  EXPECT_EQ(Pieces(text, "bcabxabdz"), "|bc|||abx|||a|");
  EXPECT_EQ(text.Text(), "bcabxa");
}

TEST(Prompts, AreReadLineByLine) {
  GenerateOptions options;
  options.tokens = 9;
  const std::vector<tasks::Prompt> prompts = tasks::ParsePrompts(
      "{\"prompt\": \"a\", \"id\": 4}\n\r\n"
      "{\"prompt\": \"\", \"tokens\": 2, \"temperature\": 0, \"stop\": \"x\"}",
      "p", options);
  ASSERT_EQ(prompts.size(), 2u);
  EXPECT_EQ(prompts[0].options.tokens, 9);
  EXPECT_EQ(prompts[0].id, 4);
  EXPECT_EQ(prompts[1].where, "p:3");
  EXPECT_EQ(prompts[1].number, 1);
  EXPECT_EQ(prompts[1].options.tokens, 2);
  EXPECT_EQ(prompts[1].options.temperature, 0);
  EXPECT_EQ(prompts[1].options.stop, std::vector<std::string>{"x"});
}

TEST(Prompts, AreRefusedWithTheirLine) {
  for (const char* line : {"[]", "{\"prompt\": 3}", "{\"prompt\": \"a\", \"prompt\": \"b\"}",
                           "{\"prompt\": \"a\", \"seed\": -1}", "{\"prompt\": \"a\", \"top_p\": 0}",
                           "{\"prompt\": \"a\", \"repetition_penalty\": 0}", "{}", "nonsense"}) {
    try {
      tasks::ParsePrompts(std::string("{\"prompt\": \"\"}\n") + line, "p", {});
      ADD_FAILURE() << line;
    } catch (const Error& error) {
      EXPECT_EQ(error.Code(), ExitCode::kBadInput) << line;
      EXPECT_TRUE(std::string(error.what()).starts_with("p:2: ")) << error.what();
    }
  }
}

// A line of the output is JSON even if the text is no UTF-8.
TEST(Prompts, TextsOfAnyBytesAreWrittenAsJson) {
  tasks::Continuation text{
      .tokens = {1, 2}, .text = "a\xFF\n", .log_probability = -1.25, .end = tasks::End::kEos};
  const std::string line =
      tasks::LineOf({.where = {}, .text = "p", .id = "7", .options = {}}, text);
  EXPECT_EQ(line,
            "{\"id\":\"7\",\"prompt\":\"p\",\"text\":\"a\xEF\xBF\xBD\\n\",\"tokens\":[1,2],"
            "\"reason\":\"eos\",\"log_probability\":-1.25}\n");
}

// Drawing the next token: greedy, temperature, top-k, top-p.

// Probabilities 0.1, 0.4, 0.2, 0.3 at temperature 1.
const std::vector<double> kLogits = {std::log(0.1), std::log(0.4), std::log(0.2), std::log(0.3)};

// Share of each token over a fine grid of draws.
std::vector<double> Shares(const GenerateOptions& options) {
  constexpr int kDraws = 100000;
  std::vector<double> shares(kLogits.size());
  for (int i = 1; i <= kDraws; ++i) {
    shares[static_cast<std::size_t>(Choose(kLogits, options, static_cast<double>(i) / kDraws))] +=
        1.0 / kDraws;
  }
  return shares;
}

TEST(Choose, TemperatureZeroIsGreedy) {
  GenerateOptions options;
  options.temperature = 0;
  for (double draw : {1e-7, 0.5, 1.0}) EXPECT_EQ(Choose(kLogits, options, draw), 1);
}

TEST(Choose, FollowsTheDistribution) {
  GenerateOptions options;
  options.temperature = 1;
  const std::vector<double> shares = Shares(options);
  const double wanted[] = {0.1, 0.4, 0.2, 0.3};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(shares[i], wanted[i], 1e-4);
}

TEST(Choose, TopKKeepsTheLikeliest) {
  GenerateOptions options;
  options.temperature = 1;
  options.top_k = 2;
  const std::vector<double> shares = Shares(options);
  EXPECT_NEAR(shares[1], 4.0 / 7, 1e-4);
  EXPECT_NEAR(shares[3], 3.0 / 7, 1e-4);
  EXPECT_EQ(shares[0] + shares[2], 0);
}

TEST(Choose, TopPKeepsTheFewestThatHoldP) {
  GenerateOptions options;
  options.temperature = 1;
  options.top_p = 0.75;  // 0.4 + 0.3 is not enough: three tokens
  const std::vector<double> shares = Shares(options);
  EXPECT_EQ(shares[0], 0);
  EXPECT_NEAR(shares[2], 0.2 / 0.9, 1e-4);
}

TEST(Choose, AHighTemperatureFlattens) {
  GenerateOptions options;
  options.temperature = 1e6;
  for (double share : Shares(options)) EXPECT_NEAR(share, 0.25, 1e-3);
}

}  // namespace
}  // namespace trireme::test
