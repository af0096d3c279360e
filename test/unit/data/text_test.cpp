// Texts of any size to token files: documents and where they are cut, splits, masks, packed files.
#include "text_fixture.hpp"

namespace trireme::data {
namespace {

using testing::ElementsAre;

// Texts whose lines and paragraphs fall on the ends of ranges in every way.
const std::vector<std::string> kTexts = {
    "",
    "\n\n",
    "one",
    "one\n",
    "one\ntwo\r\n\nthree\n\n\n",
    "\n\nfirst\nsecond\n \t\nthird\r\n\r\nfourth\r\nfifth",
    "a\n\nb\n\nc\nd\ne\n\n\n\n\nf\n\ng",
    "a line that is longer than most of the ranges\n\nx\ny\nanother one that is long, too\nz",
};

TEST_F(Texts, RangesOfAnySizeGiveTheSameDocuments) {
  for (std::size_t i = 0; i < kTexts.size(); ++i) {
    Write("a", kTexts[i]);
    for (const DocumentEnd end : {DocumentEnd::kLine, DocumentEnd::kBlankLine}) {
      const auto whole = Documents("a", end, 1'000);
      for (int range = 1; range < 60; ++range) {
        EXPECT_EQ(Documents("a", end, range), whole) << "text " << i << ", range " << range;
      }
    }
  }
}

TEST_F(Texts, Documents) {
  Write("a", kTexts[5]);
  EXPECT_THAT(Documents("a", DocumentEnd::kLine, 1'000),
              ElementsAre("first", "second", " \t", "third", "fourth", "fifth"));
  EXPECT_THAT(Documents("a", DocumentEnd::kBlankLine, 1'000),
              ElementsAre("first\nsecond", "third", "fourth\r\nfifth"));
  EXPECT_THAT(Documents("a", DocumentEnd::kFile, 3), ElementsAre(kTexts[5]));
  Write("b", "\xEF\xBB\xBFmark\nline");
  EXPECT_THAT(Documents("b", DocumentEnd::kFile, 3), ElementsAre("mark\nline"));
  EXPECT_THAT(Documents("b", DocumentEnd::kLine, 4), ElementsAre("mark", "line"));
}

// Lines and paragraphs beyond the buffers of a MiB, with an end of line across two of them.
TEST_F(Texts, LongLines) {
  constexpr std::size_t kBuffer = std::size_t{1} << 20;
  const std::string line(3 * kBuffer + 7, 'x'), other(kBuffer - 1, 'y');
  Write("a", other + "\r\n" + line + "\n\n" + other);
  for (const std::int64_t range : {std::int64_t{1} << 30, std::int64_t{400'000}}) {
    EXPECT_THAT(Documents("a", DocumentEnd::kLine, range), ElementsAre(other, line, other));
    EXPECT_THAT(Documents("a", DocumentEnd::kBlankLine, range),
                ElementsAre(other + "\r\n" + line, other));
  }
}

TEST_F(Texts, PackedFilesOfSeveralMembers) {
  std::string text;
  for (std::int64_t i = 0; i < 300'000; ++i) text += std::to_string(i * 7919) + "\n";
  Write("a", text);
  // Zeros fill the last block of a tape.
  Write("a.gz", Gzip(text.substr(0, 1'000)) + Gzip(text.substr(1'000)) + std::string(700, '\0'));
  Write("a.zst", Zstd(text.substr(0, 5'000)) + Zstd(text.substr(5'000)));
  const auto documents = Documents("a", DocumentEnd::kLine, 100'000);
  EXPECT_EQ(documents.size(), 300'000U);
  EXPECT_EQ(Documents("a.gz", DocumentEnd::kLine, 100'000), documents);
  EXPECT_EQ(Documents("a.zst", DocumentEnd::kLine, 100'000), documents);
}

TEST_F(Texts, TokenFile) {
  Write("1.txt", "a b\nc");
  Write("2.jsonl", "{\"text\": \"d\\u00e9\", \"n\": 1}\n\n{\"text\": \"\"}\n{\"text\": \"e\"}");
  Write("3.txt", "");
  const TextTokens done = Run(PlanOf(In("*.txt") + " , " + In("2.jsonl")));
  EXPECT_EQ(Train(), "<begin>a b\nc<end><begin>d\xC3\xA9<end><begin>e<end>");
  EXPECT_THAT(Values<std::uint64_t>("/train/documents", H5T_NATIVE_UINT64), ElementsAre(0, 7, 12));
  EXPECT_THAT(Values<std::int32_t>("/test/tokens", H5T_NATIVE_INT32),
              ElementsAre(257, 'x', 'y', 256));
  EXPECT_THAT(Values<std::uint8_t>("/tokenizer/tokenizer.json", H5T_NATIVE_UINT8),
              ElementsAre('{', '}'));
  EXPECT_THAT(done.texts[0].tokens, ElementsAre(15, 4, 4));
  EXPECT_THAT(done.documents, ElementsAre(3, 1, 1));
  const TokenCounts counts = CountTokens(In("a.h5"));
  EXPECT_EQ(counts.vocabulary, 258);
  EXPECT_TRUE(counts.documents[0]);
  EXPECT_FALSE(counts.masks[0]);
  EXPECT_FALSE(std::filesystem::exists(In("a.h5.tmp")));
}

TEST_F(Texts, PromptsAreMasked) {
  Write("a.jsonl", "{\"ask\": \"12\", \"say\": \"345\"}\n{\"ask\": \"\", \"say\": \"6\"}\n");
  TextPlan plan = PlanOf(In("a.jsonl"));
  plan.keys = {"say", "ask"};
  plan.encode.masks = true;
  Run(plan);
  EXPECT_EQ(Train(), "<begin>12345<end><begin>6<end>");
  EXPECT_THAT(Values<std::uint8_t>("/train/mask", H5T_NATIVE_UINT8),
              ElementsAre(0, 0, 0, 1, 1, 1, 1, 0, 1, 1));
  EXPECT_THAT(Values<std::uint8_t>("/valid/mask", H5T_NATIVE_UINT8), ElementsAre(1, 1, 1, 1));
}

// The size of the units, and so of the pieces that are written, changes nothing.
TEST_F(Texts, SplitsByHash) {
  std::string text;
  for (int i = 0; i < 4'000; ++i) text += "document " + std::to_string(i) + "\n";
  Write("a", text);
  TextPlan plan;
  plan.files = FindTextFiles(In("a"), Split::kTrain);
  plan.document = DocumentEnd::kLine;
  plan.encode = {.eos = {256}, .masks = false, .valid_fraction = 0.2, .test_fraction = 0.1};
  const TextTokens done = Run(plan);
  EXPECT_NEAR(static_cast<double>(done.documents[1]), 800, 80);
  EXPECT_NEAR(static_cast<double>(done.documents[2]), 400, 60);
  EXPECT_EQ(done.documents[0] + done.documents[1] + done.documents[2], 4'000);
  const auto train = Values<std::int32_t>("/train/tokens", H5T_NATIVE_INT32);
  const auto valid = Values<std::uint64_t>("/valid/documents", H5T_NATIVE_UINT64);
  plan.unit_bytes = 1'000;
  Run(plan);
  EXPECT_EQ((Values<std::int32_t>("/train/tokens", H5T_NATIVE_INT32)), train);
  EXPECT_EQ((Values<std::uint64_t>("/valid/documents", H5T_NATIVE_UINT64)), valid);
}

// A corpus of few documents fills all splits: the smallest hashes go where there is none.
TEST_F(Texts, FewDocumentsFillAllSplits) {
  for (const int documents : {3, 4, 20}) {
    std::string text;
    for (int i = 0; i < documents; ++i) text += "document " + std::to_string(i) + "\n";
    TextPlan plan;
    plan.encode = {.eos = {256}, .valid_fraction = 1e-9, .test_fraction = 1e-9};
    plan.files = FindTextFiles(Write("few", text), Split::kTrain);
    plan.document = DocumentEnd::kLine;
    const TextTokens done = Run(plan);
    EXPECT_THAT(done.documents, ElementsAre(documents - 2, 1, 1));
    const std::string train = Train();
    const auto valid = Values<std::int32_t>("/valid/tokens", H5T_NATIVE_INT32);
    EXPECT_EQ(train.find(tokenizer.Decode(valid)), std::string::npos);
    // Cut into other units, the choice is the same.
    plan.unit_bytes = 7;
    Run(plan);
    EXPECT_EQ(Train(), train);
    EXPECT_EQ(Values<std::int32_t>("/valid/tokens", H5T_NATIVE_INT32), valid);
  }
}

TEST_F(Texts, TooFewDocumentsAreRefusedWithAdvice) {
  TextPlan plan;
  plan.encode = {.eos = {256}, .valid_fraction = 0.1, .test_fraction = 0.1};
  plan.files = FindTextFiles(Write("few", "one\ntwo"), Split::kTrain);
  EXPECT_THAT(MessageOf([&] { Run(plan); }),
              testing::AllOf(testing::HasSubstr("1 document of tokenize.train"),
                             testing::HasSubstr("tokenize.document = line or blank_line")));
}

TEST_F(Texts, MovesTakeTheSmallestHashAndLeaveNoSplitEmpty) {
  const auto document = [](std::uint64_t hash, Split split) {
    return HashedDocument{.hash = hash, .tokens = 5, .split = split};
  };
  const std::array<bool, 3> all = {true, true, true};
  SplitSizes sizes{.tokens = {10, 0, 10}, .documents = {2, 0, 2}};
  const auto moves = MovesToEmptySplits({document(9, Split::kTrain), document(8, Split::kTrain),
                                         document(2, Split::kTest), document(1, Split::kTest)},
                                        all, sizes);
  ASSERT_EQ(moves.size(), 1U);
  EXPECT_EQ(moves[0].document.hash, 1U);
  EXPECT_EQ(moves[0].to, Split::kValid);
  EXPECT_THAT(sizes.documents, ElementsAre(2, 1, 1));
  // Nothing is taken from a split that has one document, nor for a split that has texts of its own.
  sizes = {.tokens = {5, 5, 0}, .documents = {1, 1, 0}};
  EXPECT_TRUE(
      MovesToEmptySplits({document(1, Split::kTrain), document(2, Split::kValid)}, all, sizes)
          .empty());
  sizes = {.tokens = {10, 0, 0}, .documents = {2, 0, 0}};
  EXPECT_TRUE(MovesToEmptySplits({document(1, Split::kTrain), document(2, Split::kTrain)},
                                 {true, false, false}, sizes)
                  .empty());
}

TEST_F(Texts, ALongDocumentIsEncodedInPieces) {
  constexpr std::size_t kMebibyte = std::size_t{1} << 20;
  const std::string text(9 * kMebibyte + 3, 'x');
  Write("a", text);
  Run(PlanOf(In("a")));
  EXPECT_LE(tokenizer.longest, 3 * kMebibyte);
  EXPECT_EQ(Train(), "<begin>" + text + "<end>");
}

TEST_F(Texts, RanksGetAllUnitsInLikeShares) {
  std::vector<TextFile> files(2);
  files[0].bytes = 1'000;
  files[1] = {.path = "b.gz", .packing = Packing::kGzip, .bytes = 100};
  const auto units = CutIntoUnits(files, DocumentEnd::kLine, 100);
  EXPECT_EQ(units.size(), 11U);
  std::vector<std::size_t> all;
  for (int rank = 0; rank < 3; ++rank) {
    const auto mine = UnitsOfRank(units, files, rank, 3);
    EXPECT_GE(mine.size(), 2U);
    all.insert(all.end(), mine.begin(), mine.end());
  }
  std::sort(all.begin(), all.end());
  EXPECT_THAT(all, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10));
}

}  // namespace
}  // namespace trireme::data
