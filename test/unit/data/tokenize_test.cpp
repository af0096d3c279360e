// Tokenisers: WikiText's published counts, small texts by hand, and every refusal.
#include "trireme/data/tokenize.hpp"

#include <cstdlib>

#include "locked.hpp"
#include "scratch.hpp"
#include "text_fixture.hpp"

namespace trireme::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

TokenData TokenizeDeck(const std::vector<std::string>& keys) {
  const TestDeck test(keys);
  return Tokenize(ReadTokenize(test.deck), test.deck, test.deck.Text("data.file"));
}

class Tokenizing : public Scratch {
 protected:
  // Tokenises three texts with more keys.
  TokenData Texts(const std::string& train, const std::string& valid, const std::string& test,
                  std::vector<std::string> keys = {}) const {
    keys.push_back("tokenize.train=" + Write("train.txt", train));
    keys.push_back("tokenize.valid=" + Write("valid.txt", valid));
    keys.push_back("tokenize.test=" + Write("test.txt", test));
    return TokenizeDeck(keys);
  }
  static std::string Fails(const std::vector<std::string>& keys) {
    return MessageOf([&] { TokenizeDeck(keys); });
  }
};

// The words that ids stand for, joined by blanks.
std::string Spell(const TokenData& data, Split split) {
  std::string text;
  for (const std::int32_t id : data.tokens[static_cast<std::size_t>(split)]) {
    text += data.vocabulary.words[static_cast<std::size_t>(id)] + " ";
  }
  return text;
}

TEST_F(Tokenizing, WordsLinesAndUnknownWords) {
  const TokenData data = Texts(" the ship \n\nthe\tsea the\n", "ship boat", "sea\n");
  EXPECT_EQ(Spell(data, Split::kTrain), "the ship <eos> <eos> the sea the <eos> ");
  EXPECT_EQ(Spell(data, Split::kValid), "ship <unk> <eos> ");  // the last line needs no end
  EXPECT_EQ(Spell(data, Split::kTest), "sea <eos> ");
  // By falling frequency, ties by bytes.
  EXPECT_THAT(data.vocabulary.words, ElementsAre("<eos>", "the", "sea", "ship", "<unk>"));
  EXPECT_EQ(data.vocabulary.eos, 0);
  EXPECT_EQ(data.vocabulary.unk, 4);
  EXPECT_EQ(data.tokenizer, "word");
  EXPECT_FALSE(data.entropy_rate.has_value());
}

TEST_F(Tokenizing, MinCountTurnsRareWordsToUnk) {
  const TokenData data = Texts("a a b b c\na b <unk>\n", "a c\n", "b\n", {"tokenize.min_count=2"});
  EXPECT_EQ(Spell(data, Split::kTrain), "a a b b <unk> <eos> a b <unk> <eos> ");
  EXPECT_EQ(Spell(data, Split::kValid), "a <unk> <eos> ");
  EXPECT_THAT(data.vocabulary.words, ElementsAre("a", "b", "<eos>", "<unk>"));
}

TEST_F(Tokenizing, LowercaseBeyondAscii) {
  const TokenData data =
      Texts("Der ÄRGER ΣΟΦΙΑ Москва\n", "der\n", "Ärger\n", {"tokenize.lowercase=yes"});
  EXPECT_EQ(Spell(data, Split::kTrain), "der ärger σοφια москва <eos> ");
  EXPECT_EQ(Spell(data, Split::kTest), "ärger <eos> ");
  EXPECT_EQ(data.tokenizer, "word lowercase");
}

TEST_F(Tokenizing, WindowsTextsGiveTheSameTokens) {
  const TokenData unix = Texts("a b\nc\n", "a\n", "b\n");
  const TokenData windows = Texts(
      "\xEF\xBB\xBF"
      "a b\r\nc\r\n",
      "a\r\n", "b\r\n");
  EXPECT_EQ(unix.tokens, windows.tokens);
  EXPECT_EQ(unix.vocabulary.words, windows.vocabulary.words);
  EXPECT_NE(unix.source_sha256, windows.source_sha256);
}

TEST_F(Tokenizing, Bytes) {
  const TokenData data = Texts("a\xFF\n", "bc", "\n\n", {"tokenize.kind=byte"});
  EXPECT_EQ(data.tokens[0], (Ids{97, 255, 10}));
  EXPECT_EQ(data.tokens[1], (Ids{98, 99}));
  EXPECT_EQ(data.vocabulary.words.size(), 256u);
  EXPECT_EQ(data.vocabulary.words[200], "\xC8");
  EXPECT_EQ(data.vocabulary.eos, 10);
  EXPECT_EQ(data.vocabulary.unk, -1);
  WriteTokenFile(In("bytes.h5"), data, false);
  const TokenFile file = Open(In("bytes.h5"));
  EXPECT_EQ(file.Encode("a\xFF"), (Ids{97, 255}));
  EXPECT_EQ(file.Decode({104, 105, 10}), "hi\n");
}

TEST_F(Tokenizing, SourceSha256IsOfTheTextsInOrder) {
  // printf "abc d\n" | sha256sum
  EXPECT_EQ(Texts("ab", "c ", "d\n").source_sha256,
            "0d503f118067abbfdc80d6e72113acb66fce5b9e645a7f5a0f4aa4d74f3a5844");
}

TEST_F(Tokenizing, BadUtf8IsLocated) {
  EXPECT_THAT(MessageOf([&] { Texts("ok\nfine \xC3(\n", "a\n", "b\n"); }),
              HasSubstr(In("train.txt") + ":2: byte 0xc3 at offset 8 is not valid UTF-8"));
  // Overlong, surrogate, beyond U+10FFFF, cut off.
  for (const std::string bad : {"\xC0\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82"}) {
    EXPECT_THAT(MessageOf([&] { Texts("a b\n", "x" + bad, "b\n"); }),
                HasSubstr("valid.txt:1: byte"));
  }
}

TEST_F(Tokenizing, MissingEmptyAndShortTexts) {
  const std::string text = "tokenize.train=" + Write("a.txt", "a b\n");
  EXPECT_THAT(Fails({}), AllOf(HasSubstr("tokenize.train"), HasSubstr("needs a text")));
  EXPECT_THAT(Fails({text, "tokenize.valid=" + In("a.txt")}), HasSubstr("tokenize.test"));
  EXPECT_THAT(Fails({"tokenize.train=" + In("none.txt")}), HasSubstr("there is no such file"));
  EXPECT_THAT(Fails({"tokenize.train=" + folder_}), HasSubstr("is not a file"));
  EXPECT_THAT(Fails({text, "tokenize.valid=" + Write("empty.txt", "")}),
              AllOf(HasSubstr("tokenize.valid"), HasSubstr("the file is empty")));
  EXPECT_THAT(MessageOf([&] { Texts("\n", "a\n", "b\n"); }), HasSubstr("at least 2"));
  const Locked locked(folder_, 0);
  ASSERT_TRUE(locked.Good());
  EXPECT_THAT(Fails({text}),
              AllOf(HasSubstr("tokenize.train"), HasSubstr("cannot be read: Permission denied")));
}

// Lists, globs, packed texts and records, as the other kinds read them.
TEST_F(Tokenizing, WordsAndBytesReadAllInputs) {
  for (const std::string kind : {"word", "byte"}) {
    const std::vector<std::string> rest = {"tokenize.kind=" + kind,
                                           "tokenize.valid=" + Write("v.txt", "a b\n"),
                                           "tokenize.test=" + Write("t.txt", "b a\n")};
    const auto tokens = [&](const std::string& train,
                            const std::string& more = "tokenize.text_key=text") {
      std::vector<std::string> keys = rest;
      keys.push_back("tokenize.train=" + train);
      keys.push_back(more);
      return TokenizeDeck(keys);
    };
    const TokenData whole = tokens(Write("whole.txt", "a b\nb c\nlast a\n"));
    Write("part1.txt", "a b\n");
    Write("part2.txt", "b c");  // without an end of line
    Write("part3.txt", "last a\n");
    for (const std::string& train :
         {In("part1.txt") + ", " + In("part2.txt") + "," + In("part3.txt"), In("part*.txt"),
          Write("packed.txt", Gzip("a b\nb c\nlast a\n")),
          Write("records.jsonl", "{\"text\": \"a b\"}\n{\"text\": \"b c\\nlast a\"}\n")}) {
      const TokenData data = tokens(train);
      EXPECT_EQ(data.tokens, whole.tokens) << kind << " " << train;
      EXPECT_EQ(data.source_sha256, whole.source_sha256) << kind << " " << train;
    }
    EXPECT_EQ(tokens(Write("others.jsonl", "{\"body\": \"a b\\nb c\\nlast a\"}"),
                     "tokenize.text_key=body")
                  .tokens,
              whole.tokens);
  }
}

TEST_F(Tokenizing, KeysThatDoNotFitAreRefused) {
  const std::string train = "tokenize.train=" + Write("a.txt", "a b\n");
  EXPECT_THAT(Fails({"tokenize.kind=harbour", train}),
              AllOf(HasSubstr("tokenize.train"), HasSubstr("makes its own text")));
  EXPECT_THAT(Fails({"tokenize.kind=harbour", "tokenize.min_count=2"}), HasSubstr("kind = word"));
  EXPECT_THAT(Fails({"tokenize.kind=byte", train, "tokenize.lowercase=yes"}),
              HasSubstr("bytes are taken as they are"));
  EXPECT_THAT(Fails({train, "tokenize.harbour_seed=2"}), HasSubstr("kind = harbour"));
  EXPECT_THAT(Fails({"tokenize.min_count=0"}), HasSubstr("tokenize.min_count"));
  EXPECT_THAT(Fails({"tokenize.harbour_tokens=1099511627777"}),
              HasSubstr("between 2 and 1099511627776"));
  EXPECT_THAT(Fails({"data.batch=0"}), HasSubstr("data.batch"));
  for (const std::string key : {"sequence_length", "stride", "batch", "micro_batch"}) {
    EXPECT_THAT(Fails({"data." + key + "=2147483648"}), HasSubstr("and 2147483647")) << key;
    EXPECT_THAT(Fails({"data." + key + "=2147483647"}), testing::Not(HasSubstr("data."))) << key;
  }
  EXPECT_THAT(Fails({"tokenize.kind=letters"}), HasSubstr("not one of"));
}

TEST_F(Tokenizing, HarbourFillsItsFacts) {
  const std::vector<std::string> keys = {"tokenize.kind=harbour", "tokenize.harbour_tokens=3000",
                                         "tokenize.harbour_seed=5"};
  const TokenData data = TokenizeDeck(keys);
  EXPECT_EQ(data.tokens[0].size(), 3000u);
  EXPECT_EQ(data.tokens[1].size(), 300u);
  EXPECT_EQ(data.tokens[2].size(), 300u);
  EXPECT_EQ(data.tokenizer, "harbour");
  EXPECT_EQ(data.harbour_seed, 5);
  ASSERT_TRUE(data.entropy_rate.has_value());
  EXPECT_GT(*data.entropy_rate, 0);
  EXPECT_EQ(data.source_sha256.size(), 64u);
  EXPECT_NE(Ids(data.tokens[0].begin(), data.tokens[0].begin() + 300), data.tokens[1]);
}

TEST_F(Tokenizing, WikiText2HasThePublishedCounts) {
  const char* shared = std::getenv("TRIREME_SHARED");
  const std::string folder = std::string(shared == nullptr ? "" : shared) + "/data/wikitext-2/";
  if (!std::filesystem::exists(folder + "train.txt")) {
    GTEST_SKIP() << "WikiText-2 is not in '" << folder << "' (TRIREME_SHARED): counts not checked";
  }
  const TokenData data = TokenizeDeck({"tokenize.train=" + folder + "train.txt",
                                       "tokenize.valid=" + folder + "valid.txt",
                                       "tokenize.test=" + folder + "test.txt"});
  EXPECT_EQ(data.tokens[0].size(), 2'088'628u);
  EXPECT_EQ(data.tokens[1].size(), 217'646u);
  EXPECT_EQ(data.tokens[2].size(), 245'569u);
  EXPECT_EQ(data.vocabulary.words.size(), 33'278u);
  EXPECT_EQ(data.vocabulary.words[0], "the");
  WriteTokenFile(In("wikitext2.h5"), data, false);
  const TokenFile file = Open(In("wikitext2.h5"));
  EXPECT_EQ(AllTokens(file, Split::kTest), data.tokens[2]);
  EXPECT_EQ(file.MemoryBytes() / 2 / 1000, 2551);  // uint16: two bytes a token
}

}  // namespace
}  // namespace trireme::data
