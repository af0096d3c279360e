// Files of pairs, the batches of them, and the numerals corpus.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hdf5.h>
#include <sys/file.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "line_pairs.hpp"
#include "scratch.hpp"
#include "token_codec.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/data/pairs.hpp"
#include "trireme/data/windows.hpp"

namespace trireme::data {
namespace {

using testing::HasSubstr;

// Batches of pairs: each pair once, pure, within limits, little padding.

constexpr double kMostPadding = 0.05;  // of all tokens
constexpr double kMostBytes = 8;       // per pair

struct Lengths {
  std::vector<std::int32_t> source, target;

  std::int64_t Pairs() const { return std::ssize(source); }
  ReadPairLengths Reader() const {
    return [this](std::int64_t first, std::span<std::int32_t> s, std::span<std::int32_t> t) {
      std::copy_n(source.begin() + first, s.size(), s.begin());
      std::copy_n(target.begin() + first, t.size(), t.begin());
    };
  }
};

// As of sentences cut into subwords: lognormal, mean 28, at most 250; a target has 1.1 times the
// source's length, give or take a fifth.
Lengths Sentences(int pairs) {
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  Lengths lengths;
  for (int i = 0; i < pairs; ++i) {
    const double length = std::exp(3.15 + 0.6 * normal(random));
    const double ratio = 1.1 + 0.2 * normal(random);
    const auto cut = [](double value) {
      return std::clamp(static_cast<std::int32_t>(std::lround(value)), 2, 250);
    };
    lengths.source.push_back(cut(length));
    lengths.target.push_back(cut(length * ratio));
  }
  return lengths;
}

std::vector<std::int64_t> BatchOf(const PairBatches& batches, std::int64_t step) {
  std::vector<std::int64_t> pairs;
  batches.Fill(step, {0, batches.Shape(step).pairs}, pairs);
  return pairs;
}

TEST(PairBatches, HoldEachPairOnceWithinTheirLimits) {
  const Lengths lengths = Sentences(5000);
  for (const PairBatches::Options& options :
       {PairBatches::Options{.seed = 3, .target_tokens = 2000},
        PairBatches::Options{.seed = 3, .source_tokens = 900, .target_tokens = 700, .pairs = 40},
        PairBatches::Options{.seed = 3, .target_tokens = 0, .pairs = 17},
        PairBatches::Options{.seed = 3, .target_tokens = 2000, .shuffle = false}}) {
    const PairBatches batches(lengths.Pairs(), lengths.Reader(), options);
    std::vector<std::vector<std::int64_t>> epochs;
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<std::int64_t> all;
      std::int64_t targets = 0;
      for (std::int64_t turn = 0; turn < batches.StepsPerEpoch(); ++turn) {
        const std::int64_t step = epoch * batches.StepsPerEpoch() + turn;
        const PairBatchShape shape = batches.Shape(step);
        const std::vector<std::int64_t> pairs = BatchOf(batches, step);
        ASSERT_EQ(std::ssize(pairs), shape.pairs);
        PairBatchShape found;
        for (const std::int64_t pair : pairs) {
          const std::int64_t source = lengths.source.at(static_cast<std::size_t>(pair));
          const std::int64_t target = lengths.target.at(static_cast<std::size_t>(pair));
          found.source_length = std::max(found.source_length, source);
          found.target_length = std::max(found.target_length, target);
          found.source_tokens += source;
          found.target_tokens += target;
        }
        EXPECT_EQ(shape.source_length, found.source_length);
        EXPECT_EQ(shape.target_length, found.target_length);
        EXPECT_EQ(shape.source_tokens, found.source_tokens);
        EXPECT_EQ(shape.target_tokens, found.target_tokens);
        const auto within = [&](std::int64_t value, std::int64_t limit) {
          return limit == 0 || value <= limit;
        };
        EXPECT_TRUE(within(shape.pairs, options.pairs));
        EXPECT_TRUE(within(shape.pairs * shape.source_length, options.source_tokens));
        EXPECT_TRUE(within(shape.pairs * shape.target_length, options.target_tokens));
        EXPECT_EQ(
            batches.TargetsBefore(step) - batches.TargetsBefore(epoch * batches.StepsPerEpoch()),
            targets);
        targets += shape.target_tokens;
        all.insert(all.end(), pairs.begin(), pairs.end());
      }
      epochs.push_back(all);
      std::ranges::sort(all);
      ASSERT_EQ(std::ssize(all), lengths.Pairs());
      for (std::int64_t i = 0; i < lengths.Pairs(); ++i) {
        ASSERT_EQ(all[static_cast<std::size_t>(i)], i);
      }
    }
    EXPECT_EQ(epochs[0] == epochs[1], !options.shuffle);
  }
}

// No other batch is nearer to the means.
TEST(PairBatches, HaveATypicalOne) {
  const Lengths lengths = Sentences(5000);
  const PairBatches batches(lengths.Pairs(), lengths.Reader(),
                            {.seed = 3, .source_tokens = 2000, .target_tokens = 2000});
  const auto sizes = [](const PairBatchShape& shape) {
    return std::array{shape.pairs, shape.pairs * shape.source_length,
                      shape.pairs * shape.target_length};
  };
  const std::int64_t steps = batches.StepsPerEpoch();
  std::array<double, 3> sums{};
  for (std::int64_t step = 0; step < steps; ++step) {
    const auto these = sizes(batches.Shape(step));
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += static_cast<double>(these[i]);
  }
  const auto apart = [&](const PairBatchShape& shape) {
    double sum = 0;
    const auto these = sizes(shape);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sum += std::abs(static_cast<double>(these[i] * steps) / sums[i] - 1);
    }
    return sum;
  };
  const double least = apart(batches.Typical());
  for (std::int64_t step = 0; step < steps; ++step) {
    EXPECT_GE(apart(batches.Shape(step)), least - 1e-12);
  }
}

// A later step needs no earlier one; shares of any number of replicas are contiguous.
TEST(PairBatches, ArePureFunctionsOfSeedAndStep) {
  const Lengths lengths = Sentences(3000);
  const PairBatches one(lengths.Pairs(), lengths.Reader(), {.seed = 5});
  const PairBatches again(lengths.Pairs(), lengths.Reader(), {.seed = 5});
  const PairBatches other(lengths.Pairs(), lengths.Reader(), {.seed = 6});
  bool differ = false;
  for (std::int64_t step = 2 * one.StepsPerEpoch() - 1; step > 0; step -= 3) {
    const std::vector<std::int64_t> batch = BatchOf(one, step);
    EXPECT_EQ(BatchOf(again, step), batch);
    differ = differ || BatchOf(other, step) != batch;
    for (const int replicas : {2, 3, 7}) {
      std::vector<std::int64_t> joined, share;
      for (int d = 0; d < replicas; ++d) {
        one.Fill(step, PartOf(one.Shape(step).pairs, d, replicas), share);
        joined.insert(joined.end(), share.begin(), share.end());
      }
      EXPECT_EQ(joined, batch) << replicas;
    }
  }
  EXPECT_TRUE(differ);
}

// Pairs of one length do not stay together: a batch of the second epoch is none of the first's.
TEST(PairBatches, MixPairsOfALength) {
  const Lengths lengths{.source = std::vector<std::int32_t>(400, 9),
                        .target = std::vector<std::int32_t>(400, 8)};
  const PairBatches batches(400, lengths.Reader(), {.seed = 1, .target_tokens = 0, .pairs = 50});
  ASSERT_EQ(batches.StepsPerEpoch(), 8);
  EXPECT_EQ(batches.PaddedShare(), 0);
  std::vector<std::int64_t> second = BatchOf(batches, 8);
  std::ranges::sort(second);
  for (std::int64_t step = 0; step < 8; ++step) {
    std::vector<std::int64_t> first = BatchOf(batches, step);
    std::ranges::sort(first);
    std::vector<std::int64_t> both;
    std::ranges::set_intersection(first, second, std::back_inserter(both));
    EXPECT_LT(both.size(), 25u) << step;
  }
}

TEST(PairBatches, PadLittleAndTakeLittleMemory) {
  for (const auto& [pairs, tokens] :
       {std::pair(200000, 4096), std::pair(100000, 4096), std::pair(200000, 16384)}) {
    const Lengths lengths = Sentences(pairs);
    const PairBatches batches(lengths.Pairs(), lengths.Reader(),
                              {.source_tokens = tokens, .target_tokens = tokens});
    const double bytes = static_cast<double>(batches.MemoryBytes()) / pairs;
    std::printf(
        "sentences: %d pairs, %d tokens: %ld batches, %.2f%% padding, %.1f bytes per pair\n", pairs,
        tokens, batches.StepsPerEpoch(), 100 * batches.PaddedShare(), bytes);
    EXPECT_LT(batches.PaddedShare(), kMostPadding);
    EXPECT_LT(bytes, kMostBytes);
  }
}

TEST(PairBatches, RefuseOrLeaveOutLongPairs) {
  const Lengths lengths{.source = {3, 9, 3, 4}, .target = {5, 5, 60, 6}};
  PairBatches::Options options{.target_tokens = 50, .longest_source = 8};
  const std::string message =
      MessageOf([&] { PairBatches(lengths.Pairs(), lengths.Reader(), options); });
  EXPECT_THAT(message, HasSubstr("2 of 4 pairs are too long for 8 source or 50 target tokens: "
                                 "pair 1 has 9 source and 5 target tokens"));
  options.long_pairs = LongPairs::kLeaveOut;
  const PairBatches batches(lengths.Pairs(), lengths.Reader(), options);
  EXPECT_EQ(batches.Pairs(), 2);
  EXPECT_EQ(batches.LeftOut(), 2);
  EXPECT_EQ(batches.StepsPerEpoch(), 1);
  EXPECT_THAT(BatchOf(batches, 0), testing::UnorderedElementsAre(0, 3));
  options.longest_source = 2;
  EXPECT_THAT(MessageOf([&] { PairBatches(lengths.Pairs(), lengths.Reader(), options); }),
              HasSubstr("none of 4 pairs"));
  EXPECT_THAT(
      MessageOf([&] { PairBatches(lengths.Pairs(), lengths.Reader(), {.target_tokens = 0}); }),
      HasSubstr("neither tokens nor pairs"));
}

class FilledPairs : public Scratch {};

TEST_F(FilledPairs, ArePaddedSideBySide) {
  TestDeck deck({"tokenize.kind=numerals", "tokenize.numerals_pairs=20000"});
  const comm::Communicator self = comm::Communicator::Adopt(MPI_COMM_SELF);
  TokenizeInParallel(self, ReadTokenize(deck.deck), deck.deck, In("a.h5"), {}, false);
  const PairFile file(self, self, In("a.h5"), Staging::kNone);
  const PairBatches batches(file.Pairs(Split::kTrain), LengthsOf(file, Split::kTrain),
                            {.source_tokens = 4096, .target_tokens = 4096});
  const double bytes = static_cast<double>(batches.MemoryBytes()) / 20000;
  std::printf("numerals: %ld batches, %.2f%% padding, %.1f bytes per pair\n",
              batches.StepsPerEpoch(), 100 * batches.PaddedShare(), bytes);
  EXPECT_LT(batches.PaddedShare(), kMostPadding);
  EXPECT_LT(bytes, kMostBytes);

  const std::vector<std::int64_t> pairs = BatchOf(batches, 11);
  Entry entry;
  FillEntry(file, Split::kTrain, pairs, batches.Shape(11), 1000, entry);
  EXPECT_EQ(entry.valid, batches.Shape(11).target_tokens);
  EXPECT_EQ(entry.ordinals.front(), static_cast<std::uint64_t>(1000 + pairs.front()));
  std::vector<std::int32_t> source, target;
  for (std::int64_t i = 0; i < entry.sequences; ++i) {
    const std::int64_t pair = pairs.at(static_cast<std::size_t>(i));
    file.ReadText(Side::kSource, Split::kTrain, pair, source);
    file.ReadText(Side::kTarget, Split::kTrain, pair, target);
    EXPECT_EQ(entry.source_lengths.at(static_cast<std::size_t>(i)), std::ssize(source));
    source.resize(static_cast<std::size_t>(entry.source_length), 0);
    std::vector<std::int32_t> inputs = target;
    inputs.insert(inputs.begin(), 0);  // eos
    inputs.pop_back();
    inputs.resize(static_cast<std::size_t>(entry.length), 0);
    target.resize(static_cast<std::size_t>(entry.length), kMasked);
    const auto row = [&](const std::vector<std::int32_t>& all, std::int64_t length) {
      return std::vector(all.begin() + i * length, all.begin() + (i + 1) * length);
    };
    EXPECT_EQ(row(entry.sources, entry.source_length), source);
    EXPECT_EQ(row(entry.inputs, entry.length), inputs);
    EXPECT_EQ(row(entry.targets, entry.length), target);
  }
}

// Files of pairs: from line-aligned texts and numerals to the file and back.

class Pairs : public Texts {
 protected:
  // The deck's pairs in a.h5.
  TextTokens Tokenize(std::vector<std::string> values) const {
    values.push_back("data.file=" + In("a.h5"));
    TestDeck deck(values);
    const comm::Communicator self = comm::Communicator::Adopt(MPI_COMM_SELF);
    return TokenizeInParallel(self, ReadTokenize(deck.deck), deck.deck, In("a.h5"), {}, false);
  }
  PairFile OpenPairs(Staging staging = Staging::kNone) const {
    const comm::Communicator self = comm::Communicator::Adopt(MPI_COMM_SELF);
    return PairFile(self, self, In("a.h5"), staging);
  }
  // "source > target" of each pair of a split.
  static std::vector<std::string> TextsOf(const PairFile& file, Split split) {
    std::vector<std::string> texts;
    std::vector<std::int32_t> ids;
    for (std::int64_t pair = 0; pair < file.Pairs(split); ++pair) {
      file.ReadText(Side::kSource, split, pair, ids);
      const std::string source = file.Decode(Side::kSource, ids);
      file.ReadText(Side::kTarget, split, pair, ids);
      texts.push_back(source + " > " + file.Decode(Side::kTarget, ids));
    }
    return texts;
  }
  // Six pairs in explicit splits, in the files e.* and d.*.
  std::vector<std::string> SmallTexts() const {
    Write("e.train", "the ship\nthe sea\r\na wave\n\nlast");
    Write("d.train",
          "\xEF\xBB\xBF"
          "das Schiff\nder See\neine Welle\nleer\nletzte\n");
    Write("e.valid", "the wave\n");
    Write("d.valid", "die Welle");
    Write("e.test", "a sea\nnew\n");
    Write("d.test", "ein See\nneu\n");
    return {"tokenize.source=" + In("e.train"),       "tokenize.target=" + In("d.train"),
            "tokenize.valid_source=" + In("e.valid"), "tokenize.valid_target=" + In("d.valid"),
            "tokenize.test_source=" + In("e.test"),   "tokenize.test_target=" + In("d.test")};
  }
};

TEST_F(Pairs, OfWordsKeepOrderAndSplitsAndLeaveOutEmptyOnes) {
  const TextTokens done = Tokenize(SmallTexts());
  EXPECT_EQ(done.documents, (std::array<std::int64_t, 3>{4, 1, 2}));
  EXPECT_EQ(done.empty, 1);
  EXPECT_TRUE(CountPairs(In("a.h5")).shared_vocabulary);
  for (const Staging staging : {Staging::kNone, Staging::kSharedMemory, Staging::kStream}) {
    const PairFile file = OpenPairs(staging);
    EXPECT_THAT(TextsOf(file, Split::kTrain),
                testing::ElementsAre("the ship > das Schiff", "the sea > der See",
                                     "a wave > eine Welle", "last > letzte"));
    EXPECT_THAT(TextsOf(file, Split::kValid), testing::ElementsAre("the wave > <unk> Welle"));
    EXPECT_THAT(TextsOf(file, Split::kTest),
                testing::ElementsAre("a sea > <unk> See", "<unk> > <unk>"));
    std::vector<std::int32_t> lengths(3);
    file.ReadLengths(Side::kSource, Split::kTrain, 1, lengths);
    EXPECT_THAT(lengths, testing::ElementsAre(3, 3, 2));
    std::vector<std::int32_t> ids;
    file.ReadText(Side::kSource, Split::kTrain, 0, ids);
    EXPECT_EQ(ids, file.Encode(Side::kSource, "the ship"));
    EXPECT_EQ(ids.back(), 0);
  }
}

TEST_F(Pairs, HaveTwoVocabulariesOrOne) {
  std::vector<std::string> deck = SmallTexts();
  Tokenize(deck);
  const PairCounts shared = CountPairs(In("a.h5"));
  deck.insert(deck.end(), {"tokenize.shared_vocabulary=no", "tokenize.overwrite=yes"});
  Tokenize(deck);
  const PairCounts own = CountPairs(In("a.h5"));
  EXPECT_TRUE(shared.shared_vocabulary);
  EXPECT_FALSE(own.shared_vocabulary);
  EXPECT_EQ(shared.source_vocabulary, shared.target_vocabulary);
  EXPECT_EQ(own.source_vocabulary, 2 + 6);  // <eos> <unk> the ship sea a wave last
  EXPECT_EQ(own.source_vocabulary + own.target_vocabulary, shared.source_vocabulary + 2);
  EXPECT_EQ(own.pairs, shared.pairs);
  const PairFile file = OpenPairs();
  EXPECT_THAT(TextsOf(file, Split::kTrain).at(2), "a wave > eine Welle");
}

TEST_F(Pairs, OfBytesAndPackedFilesAreTheSame) {
  std::vector<std::string> deck = SmallTexts();
  deck.push_back("tokenize.kind=byte");
  Tokenize(deck);
  const std::vector<std::string> plain = TextsOf(OpenPairs(), Split::kTrain);
  EXPECT_EQ(plain.at(1), "the sea > der See");
  Write("e.train.gz", Gzip("the ship\nthe sea\r\na wave\n\nlast"));
  deck[0] = "tokenize.source=" + In("e.train.gz");
  deck.push_back("tokenize.overwrite=yes");
  Tokenize(deck);
  EXPECT_EQ(TextsOf(OpenPairs(), Split::kTrain), plain);
}

TEST_F(Pairs, OfUnequalNumbersAreRefusedWithTheLine) {
  std::vector<std::string> deck = SmallTexts();
  Write("d.train", "das Schiff\nder See\neine Welle\n");
  const std::string message = MessageOf([&] { Tokenize(deck); });
  EXPECT_THAT(message, HasSubstr("e.train has 5 lines and " + In("d.train") + " has 3: line 4 of " +
                                 In("e.train") + " has no partner"));
  EXPECT_FALSE(std::filesystem::exists(In("a.h5")));
  EXPECT_FALSE(std::filesystem::exists(In("a.h5.tmp")));
}

// Units of any size give the same pairs, in order, whatever the lines' lengths.
TEST_F(Pairs, DoNotDependOnTheUnits) {
  std::string sources, targets;
  for (int i = 0; i < 300; ++i) {
    sources += std::string(static_cast<std::size_t>(i * 7 % 40), 's') + std::to_string(i) + "\n";
    targets += std::string(static_cast<std::size_t>(i * 11 % 90), 't') + std::to_string(i) + "\n";
  }
  Write("s", sources);
  Write("t", targets);
  const comm::Communicator self = comm::Communicator::Adopt(MPI_COMM_SELF);
  LinePlan plan{
      .files = {FindTextFiles(In("s"), Split::kTrain), FindTextFiles(In("t"), Split::kTrain)},
      .replace = false,
      .settings = {}};
  for (const std::int64_t bytes : {1, 7, 64, 1000, 100000}) {
    plan.unit_bytes = bytes;
    const LinePairs lines(plan, AlignLines(self, plan, {}));
    int line = 0;
    for (std::size_t unit = 0; unit < lines.Units(); ++unit) {
      lines.VisitTrain(unit, [&](const PerText<std::string>& pair) {
        const std::string number = std::to_string(line);
        ASSERT_EQ(pair[0], std::string(static_cast<std::size_t>(line * 7 % 40), 's') + number);
        ASSERT_EQ(pair[1], std::string(static_cast<std::size_t>(line * 11 % 90), 't') + number);
        ++line;
      });
    }
    EXPECT_EQ(line, 300) << bytes;
  }
}

// Fractions put a pair where its hash says, equal pairs together.
TEST_F(Pairs, AreSplitByTheirHash) {
  std::string sources, targets;
  for (int i = 0; i < 2000; ++i) {
    sources += "source " + std::to_string(i % 1000) + "\n";
    targets += "target " + std::to_string(i % 1000) + "\n";
  }
  Write("s", sources);
  Write("t", targets);
  const TextTokens done =
      Tokenize({"tokenize.kind=byte", "tokenize.source=" + In("s"), "tokenize.target=" + In("t"),
                "tokenize.valid_fraction=0.1", "tokenize.test_fraction=0.2"});
  EXPECT_NEAR(static_cast<double>(done.documents[1]), 200, 60);
  EXPECT_NEAR(static_cast<double>(done.documents[2]), 400, 80);
  const PairFile file = OpenPairs();
  std::array<std::set<std::string>, 3> texts;
  for (const Split split : kSplits) {
    const std::vector<std::string> all = TextsOf(file, split);
    texts.at(static_cast<std::size_t>(split)) = {all.begin(), all.end()};
  }
  EXPECT_EQ(texts[0].size() + texts[1].size() + texts[2].size(), 1000u);
}

TEST_F(Pairs, OfNumeralsHoldNoTestPairInTraining) {
  const TextTokens done = Tokenize({"tokenize.kind=numerals", "tokenize.numerals_pairs=20000"});
  EXPECT_EQ(done.documents, (std::array<std::int64_t, 3>{20000, 200, 200}));
  const PairFile file = OpenPairs();
  const std::vector<std::string> train = TextsOf(file, Split::kTrain);
  EXPECT_EQ(train.at(17), MakeNumeralPair(1, Split::kTrain, 17).source + " > " +
                              MakeNumeralPair(1, Split::kTrain, 17).target);
  const std::set<std::string> seen(train.begin(), train.end());
  for (const std::string& pair : TextsOf(file, Split::kTest)) EXPECT_FALSE(seen.contains(pair));
}

// Each reader says in one line what the other's file is.
TEST_F(Pairs, AreNoSingleTexts) {
  Tokenize({"tokenize.kind=numerals", "tokenize.numerals_pairs=100"});
  const std::string pairs = MessageOf([&] { CountTokens(In("a.h5")); });
  EXPECT_THAT(pairs, HasSubstr("holds pairs of source and target texts"));
  EXPECT_EQ(pairs.find('\n'), std::string::npos);
  WriteTokenFile(In("b.h5"), SmallData(), false);
  const std::string single = MessageOf([&] { CountPairs(In("b.h5")); });
  EXPECT_THAT(single, HasSubstr("a file of pairs is needed"));
  EXPECT_EQ(single.find('\n'), std::string::npos);
}

TEST_F(Pairs, AreCheckedOnOpening) {
  Tokenize({"tokenize.kind=numerals", "tokenize.numerals_pairs=100"});
  const auto put = [&](const char* name, std::uint64_t value) {
    const hid_t file = H5Fopen(In("a.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    const hid_t set = H5Dopen2(file, name, H5P_DEFAULT);
    const hsize_t at = 3, one = 1;
    const hid_t space = H5Dget_space(set), memory = H5Screate_simple(1, &one, nullptr);
    H5Sselect_hyperslab(space, H5S_SELECT_SET, &at, nullptr, &one, nullptr);
    H5Dwrite(set, H5T_NATIVE_UINT64, memory, space, H5P_DEFAULT, &value);
    for (const hid_t each : {space, memory}) H5Sclose(each);
    H5Dclose(set);
    H5Fclose(file);
  };
  put("/train/target_offsets", 0);
  EXPECT_THAT(MessageOf([&] { OpenPairs(); }), HasSubstr("/train/target_offsets: 0 at offset 3"));
  Tokenize({"tokenize.kind=numerals", "tokenize.numerals_pairs=100"});
  put("/valid/source", 60000);
  EXPECT_THAT(MessageOf([&] { OpenPairs(); }), HasSubstr("/valid/source: token at offset 3"));
}

TEST_F(Pairs, RefuseKeysThatDoNotFit) {
  const auto message = [&](std::vector<std::string> deck) {
    return MessageOf([&] { Tokenize(std::move(deck)); });
  };
  EXPECT_THAT(message({"tokenize.source=x"}), HasSubstr("tokenize.target"));
  EXPECT_THAT(message({"tokenize.kind=numerals", "tokenize.source=x", "tokenize.target=y"}),
              HasSubstr("makes its own pairs"));
  EXPECT_THAT(message({"tokenize.source=x", "tokenize.target=y", "tokenize.train=z"}),
              HasSubstr("files of single texts"));
  EXPECT_THAT(message({"tokenize.kind=harbour", "tokenize.source=x", "tokenize.target=y"}),
              HasSubstr("makes no pairs"));
  EXPECT_THAT(message({"tokenize.source=nowhere", "tokenize.target=y"}),
              HasSubstr("there is no such file"));
}

// Runs are continued on files whose texts have this hash: it does not change from version to
// version.
TEST_F(Pairs, KeepTheHashOfTheirTexts) {
  Tokenize(SmallTexts());
  EXPECT_EQ(OpenPairs().Of(Side::kSource).SourceSha256(),
            "4869b0c7574de64ea45a521809b529c8cd58eb3368e5300c2ba01635da54bd05");
}

// HDF5 holds a lock on the file that a job writes.
TEST_F(Pairs, AreNotWrittenByTwoJobsAtOnce) {
  const std::vector<std::string> deck = SmallTexts();
  Write("a.h5.tmp", "");
  const Descriptor other(In("a.h5.tmp"), O_RDWR);
  ASSERT_EQ(::flock(other.Get(), LOCK_EX), 0);
  EXPECT_THAT(MessageOf([&] { Tokenize(deck); }), HasSubstr("another job is writing this file"));
  EXPECT_TRUE(std::filesystem::exists(In("a.h5.tmp")));
  ASSERT_EQ(::flock(other.Get(), LOCK_UN), 0);
  EXPECT_EQ(Tokenize(deck).documents[0], 4);
}

TEST_F(Pairs, ThatAreNotUtf8AreRefusedOrReplaced) {
  std::vector<std::string> deck = SmallTexts();
  Write("d.valid", "die W\xFFlle\n");
  deck.push_back("tokenize.kind=byte");
  EXPECT_THAT(MessageOf([&] { Tokenize(deck); }), HasSubstr("d.valid"));
  deck.push_back("tokenize.invalid=replace");
  EXPECT_EQ(Tokenize(deck).replaced, 1);
  EXPECT_EQ(TextsOf(OpenPairs(), Split::kValid).at(0), "the wave > die W\xEF\xBF\xBDlle");
}

// The numerals: spelling, split by number, pieces.

struct Spelled {
  std::int64_t number;
  const char *digits, *english, *german;
};

TEST(Numerals, AreSpelledInThreeForms) {
  const std::vector<Spelled> expected = {
      {0, "0", "zero", "null"},
      {1, "1", "one", "eins"},
      {12, "12", "twelve", "zwölf"},
      {16, "16", "sixteen", "sechzehn"},
      {17, "17", "seventeen", "siebzehn"},
      {20, "20", "twenty", "zwanzig"},
      {21, "21", "twenty-one", "einundzwanzig"},
      {30, "30", "thirty", "dreißig"},
      {66, "66", "sixty-six", "sechsundsechzig"},
      {77, "77", "seventy-seven", "siebenundsiebzig"},
      {100, "100", "one hundred", "hundert"},
      {101, "101", "one hundred one", "hunderteins"},
      {111, "111", "one hundred eleven", "hundertelf"},
      {201, "201", "two hundred one", "zweihunderteins"},
      {1000, "1 000", "one thousand", "tausend"},
      {1001, "1 001", "one thousand one", "tausendeins"},
      {1100, "1 100", "one thousand one hundred", "tausendeinhundert"},
      {21000, "21 000", "twenty-one thousand", "einundzwanzigtausend"},
      {100000, "100 000", "one hundred thousand", "hunderttausend"},
      {101000, "101 000", "one hundred one thousand", "hunderteintausend"},
      {342117, "342 117", "three hundred forty-two thousand one hundred seventeen",
       "dreihundertzweiundvierzigtausendeinhundertsiebzehn"},
      {1000000, "1 000 000", "one million", "eine Million"},
      {1000001, "1 000 001", "one million one", "eine Million eins"},
      {1100000, "1 100 000", "one million one hundred thousand", "eine Million hunderttausend"},
      {2000000, "2 000 000", "two million", "zwei Millionen"},
      {21000100, "21 000 100", "twenty-one million one hundred", "einundzwanzig Millionen hundert"},
      {101000000, "101 000 000", "one hundred one million", "hunderteine Millionen"},
      {999999999, "999 999 999",
       "nine hundred ninety-nine million nine hundred ninety-nine thousand nine hundred "
       "ninety-nine",
       "neunhundertneunundneunzig Millionen "
       "neunhundertneunundneunzigtausendneunhundertneunundneunzig"}};
  for (const Spelled& each : expected) {
    EXPECT_EQ(InDigits(each.number), each.digits);
    EXPECT_EQ(InEnglish(each.number), each.english);
    EXPECT_EQ(InGerman(each.number), each.german);
  }
}

TEST(Numerals, ArePureFunctionsWithinTheirSplits) {
  std::array<std::set<std::int64_t>, 3> numbers;
  std::set<std::string> tags;
  for (const Split split : kSplits) {
    for (std::int64_t i = 0; i < 2000; ++i) {
      const NumeralPair pair = MakeNumeralPair(3, split, i);
      EXPECT_EQ(MakeNumeralPair(3, split, i).source, pair.source);
      EXPECT_EQ(SplitOfNumber(pair.number), split);
      EXPECT_LE(pair.number, kLargestNumeral);
      const std::string form = pair.source.substr(pair.source.find('>') + 2);
      EXPECT_NE(form, pair.target);
      const std::string tag = pair.source.substr(0, pair.source.find('>') + 1);
      tags.insert(tag);
      EXPECT_EQ(pair.target, tag == "<de>"   ? InGerman(pair.number)
                             : tag == "<en>" ? InEnglish(pair.number)
                                             : InDigits(pair.number));
      numbers.at(static_cast<std::size_t>(split)).insert(pair.number);
    }
  }
  EXPECT_EQ(tags, (std::set<std::string>{"<de>", "<en>", "<digits>"}));
  for (const std::int64_t number : numbers[2]) {
    EXPECT_FALSE(numbers[0].contains(number) || numbers[1].contains(number)) << number;
  }
  EXPECT_NE(MakeNumeralPair(4, Split::kTrain, 0).number,
            MakeNumeralPair(3, Split::kTrain, 0).number);
}

// Every pair is made of pieces, which give the text back; greedy cuts end where words do.
TEST(Numerals, AreMadeOfPieces) {
  const Vocabulary vocabulary = NumeralVocabulary();
  TokenCodec codec(vocabulary, kNumeralsTokenizer, "numerals");
  const auto encode = [&](const std::string& text) {
    std::vector<std::int32_t> ids;
    codec.Encode(text, ids);
    return ids;
  };
  const auto pieces = [&](const std::string& text) {
    std::vector<std::string> words;
    for (const std::int32_t id : encode(text)) {
      words.push_back(vocabulary.words.at(static_cast<std::size_t>(id)));
    }
    return words;
  };
  using Words = std::vector<std::string>;
  EXPECT_EQ(pieces("<de> 1 017"), (Words{"<de> ", "1", " ", "0", "1", "7"}));
  EXPECT_EQ(pieces("hunderteinundsechzigtausendsechs"),
            (Words{"hundert", "ein", "und", "sechzig", "tausend", "sechs"}));
  EXPECT_EQ(pieces("seventy-six hundred"), (Words{"seventy", "-", "six", " hundred"}));
  for (std::int64_t i = 0; i < 3000; ++i) {
    const NumeralPair pair = MakeNumeralPair(1, Split::kTrain, i);
    for (const std::string& text : {pair.source, pair.target}) {
      EXPECT_EQ(codec.Decode(encode(text)), text);
    }
  }
  EXPECT_THROW(encode("dreihundert Schiffe"), Error);
}

}  // namespace
}  // namespace trireme::data
