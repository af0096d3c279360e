// The evaluate task's parts: units of text, baselines, choices, tables.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>
#include "harbour_predictor.hpp"

#include "choices.hpp"
#include "folders.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/exact_sum.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/data/text_units.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/data/tokenize.hpp"
#include "trireme/tasks/evaluate.hpp"

namespace trireme::test {

// Token files in memory for the tests of evaluation.

inline comm::Communicator Self() { return comm::Communicator::Adopt(MPI_COMM_SELF); }

// Words as ids in their order; the first one is <eos>, the second one <unk>.
inline data::TokenData WordData(std::vector<std::string> words) {
  data::TokenData data;
  data.vocabulary.words = std::move(words);
  data.vocabulary.eos = 0;
  data.vocabulary.unk = 1;
  data.tokenizer = "word";
  data.source_sha256 = std::string(64, '0');
  data.tokens = {std::vector{0, 0}, std::vector{0, 0}, std::vector{0, 0}};
  return data;
}

// The 256 bytes.
inline data::TokenData ByteData() {
  data::TokenData data = WordData({});
  for (int byte = 0; byte < 256; ++byte) {
    data.vocabulary.words.emplace_back(1, static_cast<char>(byte));
  }
  data.vocabulary.eos = '\n';
  data.vocabulary.unk = -1;
  data.tokenizer = "byte";
  return data;
}

}  // namespace trireme::test

namespace trireme::tasks {
namespace {

using test::ByteData;
using test::Self;
using test::WordData;
using testing::ElementsAre;
using testing::HasSubstr;

// The Kneser-Ney model against its definition with tables of n-grams, and as a distribution.

constexpr double kRounding = 1e-12;  // relative

// Documents of random lengths; a word depends on the one before it, so that counts differ.
TargetStream RandomStream(std::uint32_t seed, std::uint32_t tokens, std::uint32_t vocabulary,
                          bool documents) {
  std::mt19937 random(seed);
  TargetStream stream;
  std::uint8_t known = 0;
  for (std::uint32_t i = 0; i < tokens; ++i) {
    if (documents && random() % 9 == 0) known = 0;
    const std::uint32_t before = stream.ids.empty() ? 0 : stream.ids.back();
    const std::uint32_t spread = 1 + random() % vocabulary;
    stream.ids.push_back((before + random() % spread) % vocabulary);
    stream.known.push_back(known);
    if (known > 0 && random() % 10 != 0) stream.targets.push_back(i);
    known = static_cast<std::uint8_t>(std::min(known + 1, kOrder - 1));
  }
  return stream;
}

using Gram = std::vector<std::uint32_t>;  // the oldest token first

// By the definition: of Chen and Goodman 1999, section 3.
class Definition {
 public:
  Definition(const TargetStream& train, std::uint32_t vocabulary) : vocabulary_(vocabulary) {
    std::map<Gram, std::set<std::uint32_t>> before;
    for (const std::uint32_t at : train.targets) {
      const int known = train.known[at];
      for (int order = 1; order <= std::min(kOrder, known + 1); ++order) {
        const Gram gram(train.ids.begin() + at + 1 - order, train.ids.begin() + at + 1);
        if (order == kOrder) {
          ++counts_[gram];
        } else {
          before[gram].insert(known < order ? vocabulary : train.ids[at - order]);
        }
      }
    }
    for (const auto& [gram, tokens] : before) counts_[gram] = static_cast<int>(tokens.size());
    std::map<std::size_t, std::array<std::int64_t, 4>> kinds;
    for (const auto& [gram, count] : counts_) {
      if (count <= 4) ++kinds[gram.size()][static_cast<std::size_t>(count - 1)];
    }
    for (std::size_t order = 1; order <= kOrder; ++order) {
      discounts_[order] = KneserNey::DiscountsOf(kinds[order]);
    }
  }

  double Probability(const Gram& context, std::uint32_t word) const {
    double total = 0, given = 0;
    for (std::uint32_t next = 0; next < vocabulary_; ++next) {
      total += Count(context, next);
      given += Discount(context, next);
    }
    const double shorter = context.empty()
                               ? 1.0 / vocabulary_
                               : Probability({context.begin() + 1, context.end()}, word);
    if (total == 0) return shorter;
    return (Count(context, word) - Discount(context, word) + given * shorter) / total;
  }

  const std::array<double, 3>& Discounts(int order) const {
    return discounts_.at(static_cast<std::size_t>(order));
  }

 private:
  double Count(Gram gram, std::uint32_t word) const {
    gram.push_back(word);
    const auto found = counts_.find(gram);
    return found == counts_.end() ? 0 : found->second;
  }
  double Discount(const Gram& context, std::uint32_t word) const {
    const auto count = static_cast<int>(Count(context, word));
    if (count == 0) return 0;
    return discounts_.at(context.size() + 1)[static_cast<std::size_t>(std::min(count, 3) - 1)];
  }

  std::uint32_t vocabulary_;
  std::map<Gram, int> counts_;
  std::map<std::size_t, std::array<double, 3>> discounts_;
};

struct Case {
  std::uint32_t tokens, vocabulary;
  bool documents;
};

class KneserNeyCase : public testing::TestWithParam<Case> {};

TEST_P(KneserNeyCase, GivesTheDefinitionsProbabilities) {
  const auto [tokens, vocabulary, documents] = GetParam();
  const TargetStream train = RandomStream(1, tokens, vocabulary - 1, documents);
  const Definition definition(train, vocabulary);
  const KneserNey model(train, vocabulary);  // the last word is unseen
  for (int order = 1; order <= kOrder; ++order) {
    EXPECT_EQ(model.Discounts(order), definition.Discounts(order)) << order;
  }
  const TargetStream asked = RandomStream(2, 400, vocabulary, documents);
  const std::vector<double> losses = model.Losses(asked);
  ASSERT_EQ(losses.size(), asked.targets.size());
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const std::uint32_t at = asked.targets[i];
    const Gram context(asked.ids.begin() + at - asked.known[at], asked.ids.begin() + at);
    EXPECT_NEAR(std::exp(-losses[i]) / definition.Probability(context, asked.ids[at]), 1, kRounding)
        << i;
  }
}

TEST_P(KneserNeyCase, SumsToOneAfterAnyContext) {
  const auto [tokens, vocabulary, documents] = GetParam();
  const KneserNey model(RandomStream(3, tokens, vocabulary - 1, documents), vocabulary);
  std::mt19937 random(4);
  for (int trial = 0; trial < 60; ++trial) {
    // Contexts of 1 to 4 tokens, seen or not, before each word.
    const auto length = static_cast<std::uint8_t>(1 + random() % 4);
    Gram context;
    for (int i = 0; i < length; ++i) context.push_back(random() % vocabulary);
    TargetStream asked;
    for (std::uint32_t word = 0; word < vocabulary; ++word) {
      for (std::uint8_t i = 0; i < length; ++i) {
        asked.ids.push_back(context[i]);
        asked.known.push_back(i);
      }
      asked.targets.push_back(static_cast<std::uint32_t>(asked.ids.size()));
      asked.ids.push_back(word);
      asked.known.push_back(length);
    }
    double sum = 0;
    for (const double loss : model.Losses(asked)) sum += std::exp(-loss);
    EXPECT_NEAR(sum, 1, kRounding) << trial;
  }
}

INSTANTIATE_TEST_SUITE_P(Streams, KneserNeyCase,
                         testing::Values(Case{300, 8, true}, Case{5000, 40, true},
                                         Case{5000, 40, false}, Case{20000, 200, true},
                                         Case{12, 5, false}));

// n1 = 10, n2 = 6, n3 = 4, n4 = 3: Y = 10/22.
TEST(KneserNey, DiscountsAreThoseOfChenAndGoodman) {
  const std::array<double, 3> got = KneserNey::DiscountsOf({10, 6, 4, 3});
  EXPECT_DOUBLE_EQ(got[0], 1 - 2 * (10.0 / 22) * 6 / 10);
  EXPECT_DOUBLE_EQ(got[1], 2 - 3 * (10.0 / 22) * 4 / 6);
  EXPECT_DOUBLE_EQ(got[2], 3 - 4 * (10.0 / 22) * 3 / 4);
  const std::array<double, 3> otherwise = {0.5, 1, 1.5};
  EXPECT_EQ(KneserNey::DiscountsOf({10, 0, 4, 3}), otherwise);
  EXPECT_EQ(KneserNey::DiscountsOf({10, 6, 4, 300}), otherwise);  // D3 below 0
}

TEST(KneserNey, WithoutTrainingTargetsIsUniform) {
  TargetStream asked;
  asked.ids = {1, 2};
  asked.known = {0, 1};
  asked.targets = {1};
  EXPECT_DOUBLE_EQ(KneserNey({}, 10).Losses(asked).at(0), std::log(10.0));
}

// Baselines on the harbour corpus, whose entropy no honest model goes below, and on masked splits.

double Nats(const Baselines::Result& result, const std::string& name) {
  for (const auto& [each, nats] : result.nats) {
    if (each == name) return nats;
  }
  ADD_FAILURE() << "no " << name;
  return 0;
}

TEST(Baselines, OfHarbourLieAboveItsEntropyInOrder) {
  constexpr std::int64_t kTokens = 300000, kValid = 20000;
  const data::HarbourGrammar grammar;
  data::TokenData data = WordData({});
  data.vocabulary = grammar.Words();
  data.tokenizer = "harbour";
  for (const data::Split split : data::kSplits) {
    data.tokens[static_cast<std::size_t>(split)] =
        grammar.Generate(1, split, split == data::Split::kTrain ? kTokens : kValid);
  }
  const comm::Communicator self = Self();
  const data::TokenFile file(self, data);
  const Baselines::Result result = Baselines(file, false).Evaluate(file, data::Split::kValid);
  EXPECT_EQ(result.targets, kValid - 1);
  const auto& ids = data.tokens[1];
  const std::vector<double> exact =
      data::PredictiveLoss(std::span(ids).first(ids.size() - 1), std::span(ids).subspan(1));
  double floor = 0;
  for (const double loss : exact) floor += loss;
  EXPECT_GT(Nats(result, "5-gram"), floor);
  EXPECT_LT(Nats(result, "5-gram"), 1.3 * floor);
  EXPECT_GT(Nats(result, "unigram"), Nats(result, "5-gram"));
  EXPECT_GT(Nats(result, "uniform"), Nats(result, "unigram"));
  EXPECT_DOUBLE_EQ(Nats(result, "uniform"),
                   std::log(static_cast<double>(file.VocabularySize())) * (kValid - 1));
}

// Add-one: of the targets 2 2 3 that count.
TEST(Baselines, UnigramCountsTheTargetsThatCount) {
  data::TokenData data = WordData({"<eos>", "<unk>", "a", "b"});
  data.tokens[0] = {2, 2, 2, 3, 3};
  data.counted[0] = {1, 1, 1, 1, 0};
  data.tokens[1] = {0, 2, 3, 1};
  data.counted[1] = {1, 1, 1, 0};
  const comm::Communicator self = Self();
  const data::TokenFile file(self, data);
  const Baselines::Result result = Baselines(file, false).Evaluate(file, data::Split::kValid);
  EXPECT_EQ(result.targets, 2);
  EXPECT_NEAR(Nats(result, "unigram"), -std::log(3.0 / 7) - std::log(2.0 / 7), 1e-14);
}

TEST(Baselines, ContextsAndTargetsRespectDocuments) {
  data::TokenData data = WordData({"<eos>", "<unk>", "a", "b"});
  data.tokens[0] = {2, 3, 2, 3, 2, 2};
  data.documents[0] = {0, 2, 4};
  data.counted[0] = {1, 0, 1, 1, 1, 1};
  const comm::Communicator self = Self();
  const data::TokenFile file(self, data);
  const TargetStream apart = ReadTargets(file, data::Split::kTrain, true);
  EXPECT_THAT(apart.known, testing::ElementsAre(0, 1, 0, 1, 0, 1));
  EXPECT_THAT(apart.targets, testing::ElementsAre(3, 5));
  const TargetStream together = ReadTargets(file, data::Split::kTrain, false);
  EXPECT_THAT(together.known, testing::ElementsAre(0, 1, 2, 3, 4, 4));
  EXPECT_THAT(together.targets, testing::ElementsAre(2, 3, 4, 5));
}

TEST(Baselines, LargeTrainSplitsAreLeftOutAndSaidSo) {
  const comm::Communicator self = Self();
  data::TokenData data = WordData({"<eos>", "<unk>", "a"});
  data.tokens[0].assign(11, 2);
  const data::TokenFile file(self, data);
  const Baselines baselines(file, false, 10);
  EXPECT_THAT(baselines.LeftOut(), testing::HasSubstr("11 tokens, more than 10"));
  const Baselines::Result result = baselines.Evaluate(file, data::Split::kValid);
  ASSERT_EQ(result.nats.size(), 1U);
  EXPECT_EQ(result.nats.front().first, "uniform");
  EXPECT_EQ(Baselines(file, false, 11).LeftOut(), "");
}

// Multiple-choice questions: tokens at the boundary, truncation, faults of the file, accuracy.

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

// Sums by row: exact, in any order.

TEST(LossTable, SumsDoNotDependOnTheOrder) {
  std::mt19937 random(1);
  std::vector<double> losses;
  for (int i = 0; i < 5000; ++i)
    losses.push_back(std::exp(std::normal_distribution(0., 4.)(random)));
  ExactSum exact;
  LossTable table(3);
  for (const double loss : losses) {
    exact.Add(loss);
    table.Add(1, loss);
  }
  std::shuffle(losses.begin(), losses.end(), random);
  LossTable other(3);
  for (const double loss : losses) other.Add(1, loss);
  EXPECT_EQ(table.Nats(1), other.Nats(1));
  EXPECT_NEAR(table.Nats(1), exact.Value(), 1e-15 * exact.Value());
  EXPECT_EQ(table.Targets(1), 5000);
  EXPECT_EQ(table.Targets(0), 0);
  EXPECT_EQ(table.Nats(2), 0);
}

TEST(LossTable, KeepsSmallLossesAndNotFiniteOnes) {
  LossTable table(2);
  table.Add(0, 0x1p-50);
  table.Add(0, 8000);
  EXPECT_EQ(table.Nats(0), 8000 + 0x1p-50);
  LossTable small(1);
  small.Add(0, 0x1.8p-55);
  EXPECT_EQ(small.Nats(0), 0x1.8p-55);
  table.Add(1, std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(std::isnan(table.Nats(1)));
}

// The keys of [evaluate]: what does not fit together is refused with its line.

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

namespace trireme::data {
namespace {

using test::ByteData;
using test::Self;
using test::WordData;

// Units of text: those of the tokens are those of the text that they stand for.

void ExpectUnits(const TextUnits& got, const TextUnits& wanted) {
  EXPECT_EQ(got.bytes, wanted.bytes);
  EXPECT_EQ(got.words, wanted.words);
  EXPECT_EQ(got.lines, wanted.lines);
  EXPECT_EQ(got.unknown, wanted.unknown);
}

TextUnits UnitsOfSplit(const TokenFile& file, bool document_mask = false) {
  const TextMeter meter(file);
  TextUnits units;
  VisitTargets(file, Split::kValid, document_mask,
               [&](std::int64_t, std::int32_t previous, std::int32_t id) {
                 meter.Add(previous, id, units);
               });
  return units;
}

TEST(TextUnits, OfAText) {
  ExpectUnits(UnitsOf(" gr\xC3\xB6\xC3\x9F"
                      "er  als\nzwei\t\n\n x"),
              {.bytes = 24, .words = 4, .lines = 3, .unknown = 0});
  ExpectUnits(UnitsOf(""), {});
}

TEST(TextUnits, OfBytesAreThoseOfTheTextButItsFirstByte) {
  const std::string text = "the ship\n lies  in port \n\n";
  TokenData data = ByteData();
  data.tokens[1].clear();
  for (const char byte : "x" + text) data.tokens[1].push_back(static_cast<unsigned char>(byte));
  data.tokens[1].front() = '\n';
  const comm::Communicator self = Self();
  ExpectUnits(UnitsOfSplit(TokenFile(self, data)), UnitsOf(text));
  // A word that has begun before is not counted again.
  data.tokens[1].erase(data.tokens[1].begin());
  TextUnits rest = UnitsOf(text.substr(1));
  --rest.words;
  ExpectUnits(UnitsOfSplit(TokenFile(self, data)), rest);
}

TEST(TextUnits, OfWordsAreThoseOfTheirText) {
  TokenData data = WordData({"<eos>", "<unk>", "a", "ship",
                             "gr\xC3\xBC"
                             "n"});
  data.tokens[1] = {0, 2, 3, 1, 0, 4, 0, 0, 3};
  const comm::Communicator self = Self();
  const TokenFile file(self, data);
  const std::string text =
      "a ship <unk>\ngr\xC3\xBC"
      "n\n\nship";
  EXPECT_EQ(file.Decode({data.tokens[1].begin() + 1, data.tokens[1].end()}), text);
  TextUnits wanted = UnitsOf(text);
  wanted.unknown = 1;
  ExpectUnits(UnitsOfSplit(file), wanted);
}

TEST(TextUnits, TargetsThatDoNotCountHaveNone) {
  TokenData data = WordData({"<eos>", "<unk>", "a", "ship"});
  data.tokens[1] = {2, 3, 0, 3, 2, 3};
  data.documents[1] = {0, 3};
  data.counted[1] = {1, 1, 1, 1, 0, 1};
  const comm::Communicator self = Self();
  const TokenFile file(self, data);
  // " ship", "\n", "ship", -, " ship"
  ExpectUnits(UnitsOfSplit(file), {.bytes = 15, .words = 3, .lines = 1, .unknown = 0});
  ExpectUnits(UnitsOfSplit(file, true), {.bytes = 11, .words = 2, .lines = 1, .unknown = 0});
}

}  // namespace
}  // namespace trireme::data
