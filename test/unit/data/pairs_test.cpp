// Files of pairs: from line-aligned texts and numerals to the file and back.
#include <gmock/gmock.h>
#include <hdf5.h>

#include <array>
#include <set>
#include <string>
#include <vector>

#include "line_pairs.hpp"
#include "scratch.hpp"
#include "text_fixture.hpp"
#include "trireme/data/pairs.hpp"

namespace trireme::data {
namespace {

using testing::HasSubstr;

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
  EXPECT_FALSE(file.SharesVocabulary());
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

TEST_F(Pairs, ThatAreNotUtf8AreRefusedOrReplaced) {
  std::vector<std::string> deck = SmallTexts();
  Write("d.valid", "die W\xFFlle\n");
  deck.push_back("tokenize.kind=byte");
  EXPECT_THAT(MessageOf([&] { Tokenize(deck); }), HasSubstr("d.valid"));
  deck.push_back("tokenize.invalid=replace");
  EXPECT_EQ(Tokenize(deck).replaced, 1);
  EXPECT_EQ(TextsOf(OpenPairs(), Split::kValid).at(0), "the wave > die W\xEF\xBF\xBDlle");
}

}  // namespace
}  // namespace trireme::data
