// Byte-level BPE: GPT-2's real vocabulary with published ids, small vocabularies whose ids are
// worked out by hand, long words, and cuts of long texts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <random>

#include "small_bpe.hpp"

#include "trireme/base/json.hpp"

namespace trireme::data {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::int32_t> Ids(Tokenizer& tokenizer, const std::string& text) {
  std::vector<std::int32_t> ids;
  tokenizer.Encode(text, ids);
  return ids;
}

// GPT-2's folder, or an empty path.
std::string Gpt2Folder() {
  const char* const shared = std::getenv("TRIREME_SHARED");
  const std::string folder =
      (shared != nullptr ? std::string(shared) : "") + "/data/tokenizers/gpt2";
  return std::ifstream(folder + "/cases.jsonl") ? folder : "";
}

TEST(Gpt2, GivesThePublishedIds) {
  const std::string folder = Gpt2Folder();
  if (folder.empty()) GTEST_SKIP() << "GPT-2's vocabulary is not in TRIREME_SHARED: not checked";
  const auto tokenizer = Make(ReadFiles(folder, TokenizerKind::kBpe), folder);
  EXPECT_EQ(tokenizer->VocabularySize(), 50257);
  EXPECT_EQ(tokenizer->Eos(), 50256);
  EXPECT_EQ(tokenizer->Piece(15496), "Hello");
  std::ifstream cases(folder + "/cases.jsonl");
  int count = 0;
  for (std::string line; std::getline(cases, line); ++count) {
    const nlohmann::json expected = nlohmann::json::parse(line);
    const std::string text = expected.at("text");
    const auto ids = Ids(*tokenizer, text);
    EXPECT_EQ(ids, expected.at("ids").get<std::vector<std::int32_t>>()) << text;
    EXPECT_EQ(tokenizer->Decode(ids), text);
  }
  EXPECT_EQ(count, 47);
}

TEST(Gpt2, EncodesLongRunsAndAnyText) {
  const std::string folder = Gpt2Folder();
  if (folder.empty()) GTEST_SKIP() << "GPT-2's vocabulary is not in TRIREME_SHARED: not checked";
  const auto tokenizer = Make(ReadFiles(folder, TokenizerKind::kBpe), folder);
  std::mt19937 random(1);
  std::string any;
  for (int i = 0; i < 20000; ++i) {
    AppendUtf8(i % 3 == 0 ? random() % 0xd800 : random() % 128, any);
  }
  for (const std::string& text :
       {std::string(10000, ' '), std::string(10000, 'x'), std::string(100000, '\n') + "x", any}) {
    EXPECT_EQ(tokenizer->Decode(Ids(*tokenizer, text)), text);
  }
}

// A cut changes no id, whatever follows.
TEST(Gpt2, CutsAtSafePlaces) {
  const std::string folder = Gpt2Folder();
  if (folder.empty()) GTEST_SKIP() << "GPT-2's vocabulary is not in TRIREME_SHARED: not checked";
  const auto tokenizer = Make(ReadFiles(folder, TokenizerKind::kBpe), folder);
  std::mt19937 random(2);
  const std::vector<std::string> characters = {"a",  "b",  "'s", " ",  " ",     "\n",
                                               "\n", ",",  ".",  "1",  "\t",    "é",
                                               "東", "京", "。", "，", "\u0301"};
  for (int i = 0; i < 500; ++i) {
    std::string text;
    for (int j = 0; j < 40; ++j) text += characters[random() % characters.size()];
    const std::string begin = text;
    for (int j = 0; j < 20; ++j) text += characters[random() % characters.size()];
    const std::size_t cut = tokenizer->SafeCut(begin);
    ASSERT_LT(cut, begin.size());
    if (cut == 0) continue;
    auto parts = Ids(*tokenizer, text.substr(0, cut));
    tokenizer->Encode(std::string_view(text).substr(cut), parts);
    EXPECT_EQ(parts, Ids(*tokenizer, text)) << text << "\ncut at " << cut;
  }
  EXPECT_EQ(tokenizer->SafeCut("one two three"), 7U);
  EXPECT_EQ(tokenizer->SafeCut("one, two"), 0U);
  EXPECT_EQ(tokenizer->SafeCut("größer als é so"), 15U);
  EXPECT_EQ(tokenizer->SafeCut("東京。に"), 6U);
}

// Letters a to e are ids 0 to 4; ab 5, bc 6, abc 7, de 8.
TEST(SmallBpe, MergesTheLowestRankFirst) {
  SmallBpe small;
  EXPECT_THAT(Ids(*small.Make(), "abc"), ElementsAre(0, 6));  // bc goes before ab
  EXPECT_THAT(Ids(*small.Make(), "abab"), ElementsAre(5, 5));
  EXPECT_THAT(Ids(*small.Make(), "dede"), ElementsAre(8, 8));
  EXPECT_THAT(Ids(*small.Make(), ""), IsEmpty());
  small.json["model"]["merges"] = {"a b", "b c", "ab c", "d e"};
  EXPECT_THAT(Ids(*small.Make(), "abcabcd"), ElementsAre(7, 7, 3));
}

TEST(SmallBpe, MergesLongWordsAsShortOnes) {
  SmallBpe small;
  small.json["model"]["merges"] = {"a b", "b c", "ab c", "d e"};
  const auto tokenizer = small.Make();
  std::mt19937 random(3);
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>('a' + random() % 5);
  // No merge joins e and a: what lies between is the same alone.
  std::vector<std::int32_t> parts;
  std::size_t from = 0;
  for (std::size_t at = text.find("ea"); at != std::string::npos; at = text.find("ea", from)) {
    tokenizer->Encode(std::string_view(text).substr(from, at + 1 - from), parts);
    from = at + 1;
  }
  tokenizer->Encode(std::string_view(text).substr(from), parts);
  EXPECT_EQ(Ids(*tokenizer, text), parts);
}

TEST(SmallBpe, IgnoresMergesOfWholeWords) {
  SmallBpe small;
  small.json["model"]["ignore_merges"] = true;
  EXPECT_THAT(Ids(*small.Make(), "abc"), ElementsAre(7));
  EXPECT_THAT(Ids(*small.Make(), "abcd"), ElementsAre(0, 6, 3));
}

TEST(SmallBpe, FindsAddedTokensFirst) {
  SmallBpe small;
  small.Add(9, "<a>");
  small.Add(10, "<a>b");
  EXPECT_THAT(Ids(*small.Make(), "ab<a>c<a>bd"), ElementsAre(5, 9, 2, 10, 3));
  EXPECT_EQ(small.Make()->Piece(9), "<a>");
  EXPECT_EQ(small.Make()->IdOf("<a>"), 9);
  EXPECT_EQ(small.Make()->VocabularySize(), 11);
  small.json["added_tokens"][0]["lstrip"] = true;
  small.json["added_tokens"][0]["rstrip"] = true;
  EXPECT_THAT(Ids(*small.Make(), "ab \n<a> \tc"), ElementsAre(5, 9, 2));
}

// Added tokens with `normalized` come second, in the normalised text; white space that one takes
// may hold others. As tokenizers does it.
TEST(SmallBpe, FindsAddedTokensInTwoTurns) {
  SmallBpe small;
  small.Add(10, "<a>");
  small.Add(11, "a>");
  small.json["added_tokens"][1]["normalized"] = false;
  EXPECT_EQ(Ids(*small.Make("<"), "<a>a>"), (std::vector<std::int32_t>{9, 11, 11}));
  small.json["added_tokens"][1]["normalized"] = true;
  EXPECT_THAT(Ids(*small.Make("<"), "<a>a>"), ElementsAre(10, 11));
  small.json["added_tokens"][0]["rstrip"] = true;
  small.json["added_tokens"][1]["content"] = "  ";
  EXPECT_THAT(Ids(*small.Make("<"), "<a>    b"), ElementsAre(10, 11, 11, 1));
  small.json["normalizer"] = {{"type", "NFC"}};
  small.json["added_tokens"][1]["content"] = "e\u0301";
  EXPECT_THAT(Ids(*small.Make("<"), "a\u00E9e\u0301"), ElementsAre(0, 11, 11));
}

TEST(SmallBpe, AnUnknownTokenWithoutEntryIsNoneIfAllBytesHaveOne) {
  SmallBpe small;
  small.json["model"]["unk_token"] = "<unk>";
  EXPECT_THROW(small.Make(), Error);
  int id = 9;
  for (const std::string& byte : ByteAlphabet()) {
    if (!small.json["model"]["vocab"].contains(byte)) small.json["model"]["vocab"][byte] = id++;
  }
  EXPECT_EQ(small.Make()->Unk(), std::nullopt);
}

// Words of the pattern end at places that are certain, for any pattern that does not look behind.
TEST(SmallBpe, CutsWhereItsOwnPatternEndsWords) {
  SmallBpe small;
  small.json["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", "a+b|c"}}}, {"behavior", "Isolated"}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  EXPECT_EQ(small.Make()->SafeCut("ddcaabaa"), 6U);
  EXPECT_EQ(small.Make()->SafeCut("ddaa"), 0U);
  small.Add(9, "ba");  // may begin at the last character: a word's end there is not certain
  EXPECT_EQ(small.Make()->SafeCut("ddcaab"), 3U);
  EXPECT_EQ(small.Make()->SafeCut("ddbadd"), 4U);
  small.json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(?<=a)b|c";
  EXPECT_EQ(small.Make()->SafeCut("ddcaabaa"), 0U);
}

TEST(SmallBpe, PutsTheTemplateAround) {
  SmallBpe small;
  small.Add(9, "<s>");
  small.json["post_processor"] = nlohmann::json::parse(
      R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
          {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<s>", "type_id": 0}}],
          "special_tokens": {"<s>": {"id": "<s>", "ids": [9], "tokens": ["<s>"]}}})");
  std::vector<std::int32_t> prefix, suffix;
  small.Make()->Template(prefix, suffix);
  EXPECT_THAT(prefix, ElementsAre(9));
  EXPECT_THAT(suffix, ElementsAre(9));
}

TEST(SmallBpe, PutsABlankBeforeATextAndReplacesUnknownBytes) {
  SmallBpe small;
  EXPECT_THROW(Ids(*small.Make(), "a b"), Error);  // no entry for a blank
  small.json["model"]["vocab"]["?"] = 9;
  small.json["model"]["unk_token"] = "?";
  EXPECT_THAT(Ids(*small.Make(), "a  b"), ElementsAre(0, 9, 9, 1));
  small.json["model"]["fuse_unk"] = true;
  small.json["pre_tokenizer"]["use_regex"] = false;
  EXPECT_THAT(Ids(*small.Make(), "a  b"), ElementsAre(0, 9, 1));
  small.json["pre_tokenizer"]["add_prefix_space"] = true;
  EXPECT_THAT(Ids(*small.Make(), "ab"), ElementsAre(9, 5));
}

}  // namespace
}  // namespace trireme::data
