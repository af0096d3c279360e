// Tokenizers: byte pairs, patterns, SentencePiece.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "bpe.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/json.hpp"
#include "trireme/base/utf8.hpp"
#include "trireme/data/tokenizer.hpp"

namespace trireme::data {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A byte-level BPE of nine tokens, to be changed by tests.

struct SmallBpe {
  // another: an entry more, of id 9.
  std::unique_ptr<Tokenizer> Make(const std::string& another) const {
    SmallBpe larger = *this;
    larger.json["model"]["vocab"][another] = 9;
    return larger.Make();
  }
  std::unique_ptr<Tokenizer> Make() const {
    return data::Make({{"tokenizer.json", json.dump()}}, "small.json");
  }
  void Add(int id, const std::string& content) {
    json["added_tokens"].push_back({{"id", id}, {"content", content}, {"special", true}});
  }

  nlohmann::json json = nlohmann::json::parse(R"({
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE",
      "vocab": {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4, "ab": 5, "bc": 6, "abc": 7, "de": 8},
      "merges": [["b", "c"], ["a", "b"], ["ab", "c"], ["d", "e"]]}})");
};

// Byte-level BPE: GPT-2's real vocabulary with published ids, small vocabularies whose ids are
// worked out by hand, long words, and cuts of long texts.

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

// Byte-level BPE: components that are not supported or broken are refused by name.

struct Case {
  const char* name;
  std::function<void(nlohmann::json&)> change;
  const char* message;
};

class Refused : public testing::TestWithParam<Case> {};

TEST_P(Refused, ByItsName) {
  SmallBpe small;
  GetParam().change(small.json);
  try {
    small.Make();
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("small.json: "));
    EXPECT_THAT(error.what(), HasSubstr(GetParam().message));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Bpe, Refused,
    testing::Values(
        Case{"model", [](json& j) { j["model"]["type"] = "WordPiece"; },
             "model.type: 'WordPiece' is not supported, only 'BPE'"},
        Case{"byte_fallback", [](json& j) { j["model"]["byte_fallback"] = true; },
             "model.byte_fallback: true: this is a SentencePiece model in another form"},
        Case{"unigram", [](json& j) { j["model"]["type"] = "Unigram"; },
             "model.type: 'Unigram': this is a SentencePiece model in another form"},
        Case{"dropout", [](json& j) { j["model"]["dropout"] = 0.1; }, "model.dropout"},
        Case{"suffix", [](json& j) { j["model"]["end_of_word_suffix"] = "</w>"; },
             "model.end_of_word_suffix: '</w>' is not supported"},
        Case{"normalizer",
             [](json& j) {
               j["normalizer"] = {{"type", "Lowercase"}};
             },
             "normalizer.type: 'Lowercase'"},
        Case{"pre_tokenizer",
             [](json& j) {
               j["pre_tokenizer"] = {{"type", "Metaspace"}};
             },
             "pre_tokenizer.type: 'Metaspace'"},
        Case{"no_bytes", [](json& j) { j["pre_tokenizer"] = nullptr; }, "has no ByteLevel"},
        Case{"nested",
             [](json& j) {
               const json bytes = j["pre_tokenizer"];
               j["pre_tokenizer"] = {{"type", "Sequence"},
                                     {"pretokenizers", {bytes, {{"type", "Whitespace"}}}}};
             },
             "pre_tokenizer.pretokenizers[1]"},
        Case{"behavior",
             [](json& j) {
               j["pre_tokenizer"] = {{"type", "Split"},
                                     {"pattern", {{"Regex", "x"}}},
                                     {"behavior", "MergedWithNext"}};
             },
             "pre_tokenizer.behavior: 'MergedWithNext'"},
        Case{"pattern",
             [](json& j) {
               j["pre_tokenizer"] = {
                   {"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}};
             },
             "the pattern '(a' is not understood"},
        Case{"post_processor",
             [](json& j) {
               j["post_processor"] = {{"type", "BertProcessing"}};
             },
             "post_processor.type: 'BertProcessing'"},
        Case{"decoder",
             [](json& j) {
               j["decoder"] = {{"type", "WordPiece"}};
             },
             "decoder.type: 'WordPiece'"},
        Case{"single_word",
             [](json& j) {
               j["added_tokens"] = {{{"id", 9}, {"content", "x"}, {"single_word", true}}};
             },
             "added_tokens[0].single_word"},
        Case{"another_id",
             [](json& j) {
               j["added_tokens"] = {{{"id", 9}, {"content", "ab"}}};
             },
             "added_tokens[0].id: 'ab' has id 9 here, but 5"},
        Case{"gap",
             [](json& j) {
               j["added_tokens"] = {{{"id", 9}, {"content", "x"}}, {{"id", 11}, {"content", "y"}}};
             },
             "added_tokens[1].id: 'y' has id 11 here, but 10"},
        Case{"unk", [](json& j) { j["model"]["unk_token"] = "?"; },
             "model.unk_token: '?' is not in the vocabulary, and byte"},
        Case{"merge", [](json& j) { j["model"]["merges"] = {"a x"}; },
             "'ax' is not in the vocabulary"},
        Case{"merged", [](json& j) { j["model"]["merges"] = {"a c"}; },
             "'ac' is not in the vocabulary"},
        Case{"three", [](json& j) { j["model"]["merges"] = {"a b c"}; },
             "not a merge of two symbols"},
        Case{"id", [](json& j) { j["model"]["vocab"]["a"] = -1; }, "model.vocab['a']"},
        Case{"huge", [](json& j) { j["model"]["vocab"]["a"] = 1LL << 40; }, "is not in [0, "},
        Case{"kind", [](json& j) { j["model"]["vocab"] = 3; }, "model.vocab: no object"},
        Case{"missing", [](json& j) { j.erase("model"); }, "model is missing"}),
    [](const auto& info) { return info.param.name; });

TEST(Files, ThatAreBrokenAreRefused) {
  EXPECT_THROW(Make({{"tokenizer.json", "{"}}, "here"), Error);
  EXPECT_THROW(Make({{"vocab.json", "{}"}}, "here"), Error);
  EXPECT_THROW(Make({{"vocab.json", "{\"a\": 0}"}, {"merges.txt", "a\n"}}, "here"), Error);
  EXPECT_THROW(ReadFiles("/nowhere/tokenizer.json", TokenizerKind::kBpe), Error);
  const std::string folder = testing::TempDir();
  const std::vector<std::tuple<std::string, TokenizerKind, std::string>> others = {
      {"vocab.json", TokenizerKind::kBpe, "is one half of a tokenizer\n  Name the folder"},
      {"a.model", TokenizerKind::kBpe, "is not a tokenizer.json\n  tokenize.kind = sentencepiece"},
      {"tokenizer.json", TokenizerKind::kSentencePiece,
       "is not a SentencePiece model\n  tokenize.kind = bpe"}};
  for (const auto& [name, kind, message] : others) {
    const std::string path = folder + "/" + name;
    std::ofstream(path) << "{}";
    try {
      ReadFiles(path, kind);
      ADD_FAILURE() << path << " is taken";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(path + ": " + message));
    }
    std::remove(path.c_str());
  }
}

// Patterns: what is read as Oniguruma reads it, what is refused by name, characters of Unicode 15
// and 16, and matches that stay whatever follows.

std::vector<std::string> Matches(const std::string& expression, const std::string& text) {
  const Pattern pattern(expression, "here");
  Pattern::Search search;
  search.Begin(text);
  std::vector<std::string> matches;
  for (std::size_t from = 0;;) {
    const auto [begin, end] = search.First(pattern, text, from);
    if (begin == text.size()) return matches;
    matches.push_back(text.substr(begin, end - begin));
    from = end;
  }
}

// The expectations are those of `tokenizers` 0.23; test patterns_parity has more.
TEST(Pattern, IsReadAsInRubysSyntax) {
  EXPECT_THAT(Matches("^a", "a\na\n"), ElementsAre("a", "a"));
  EXPECT_THAT(Matches("a$", "a\nab\na"), ElementsAre("a", "a"));
  EXPECT_THAT(Matches("a{1,2}+", "aaaaa"), ElementsAre("aaaaa"));
  EXPECT_THAT(Matches("(?:ab){,2}+c", "ababababc"), ElementsAre("ababababc"));
  EXPECT_THAT(Matches("a++b|a?+", "aaab"), ElementsAre("aaab"));
  EXPECT_THAT(Matches("\\h+", "xfaceg"), ElementsAre("face"));
  EXPECT_THAT(Matches("\\w+", "a\u0301\u2460 b\u00B2_\u203F-"),
              ElementsAre("a\u0301", "b\u00B2_\u203F"));
  EXPECT_THAT(Matches("[^(\\s|[.,!])]+", "a|b(c).d"), ElementsAre("a", "b", "c", "d"));
  EXPECT_THAT(Matches("[^\\S\\r\\n]+", "a \t\n\u180E "), ElementsAre(" \t", " "));
  EXPECT_THAT(Matches("\\p{Han}+", "\u6F22\u3001\u5B57"), ElementsAre("\u6F22", "\u5B57"));
  EXPECT_THAT(Matches("\\v|\\x41|\\u0042|\\x{43}", "\n\vABC"), ElementsAre("\v", "A", "B", "C"));
  EXPECT_THAT(Matches("(?i)a|b{x}", "AB{x}"), ElementsAre("A", "B{x}"));
  EXPECT_THAT(Matches(".", "a\r\n"), ElementsAre("a", "\r"));
}

TEST(Pattern, KnowsCharactersOfUnicode16) {
  const std::string capital = "\u1C89", letter = "\u1C8A", digit = "\U00010D40", mark = "\u0897";
  EXPECT_THAT(Matches("\\p{Lo}", "größer \U000323AF \U0001F600"), ElementsAre("\U000323AF"));
  EXPECT_THAT(Matches("\\p{L}+|\\p{N}", "a" + capital + letter + digit),
              ElementsAre("a" + capital + letter, digit));
  EXPECT_THAT(Matches("[\\p{Lu}\\p{M}]+", "a" + capital + mark + letter),
              ElementsAre(capital + mark));
  EXPECT_THAT(Matches("[^\\p{L}\\p{N}]+|\\P{L}", capital + "!" + digit), ElementsAre("!", digit));
  EXPECT_THAT(Matches("\\w+|\\W", letter + digit + "!"), ElementsAre(letter + digit, "!"));
}

TEST(Pattern, RefusesConstructsByName) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"\\bx", "\\b is not supported"},
      {"x\\Z", "\\Z is not supported"},
      {"\\Gx", "\\G is not supported"},
      {"(a)\\1", "\\1 is not supported"},
      {"\\pL", "\\p without braces is not supported"},
      {"\\p{Greek}", "\\p{Greek} is not supported"},
      {"\\p{^L}", "\\p{^L} is not supported"},
      {"\\p{Cn}", "\\p{Cn} is not supported"},
      {"(?m).", "(?m) is not supported"},
      {"a(?i)b", "(?i) is not supported"},
      {"(?<name>a)", "(?<n is not supported"},
      {"[a-z&&b]", "&& in a class is not supported"},
      {"[[:alpha:]]", "[:...:] is not supported"},
      {"[a[^b]]", "[^...] within a class is not supported"},
      {"[\\W_]", "\\W in a class is not supported"},
      {"[]a]", "']' at the beginning of a class"},
      {"[a-c-e]", "'-' within a class"},
      {"[z-a]", "a range in a class"},
      {"[a", "'[' without its ']'"},
      {"(a", "'(' without its ')'"},
      {"a)", "')' without its '('"},
      {"a+*", "a repeat of a repeat"},
      {"a{2}{3}", "a repeat of a repeat"},
      {"a{2}?", "{2}? is not supported"},
      {"a{3,1}", "{3,1} is not supported"},
      {"*a", "'*' has nothing to repeat"},
      {"\\xe9", "\\x of a byte beyond ASCII"},
      {"(?i:stra)", "'st' within (?i)"},
      {"(?i:\u00DF)", "a character beyond ASCII within (?i)"},
      {"(?i:\\p{Lu})", "\\p{Lu} within (?i)"},
      {std::string(100, '(') + "a" + std::string(100, ')'), "more than 50 open brackets"},
  };
  for (const auto& [expression, message] : cases) {
    try {
      const Pattern pattern(expression, "tokenizer.json: pre_tokenizer");
      ADD_FAILURE() << expression << " is taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.Code(), ExitCode::kBadInput);
      EXPECT_THAT(error.what(), HasSubstr("tokenizer.json: pre_tokenizer: the pattern '"));
      EXPECT_THAT(error.what(), HasSubstr(message)) << expression;
    }
  }
}

TEST(Pattern, LongRunsDoNotHitALimit) {
  const std::string blanks(12'000'000, ' ');
  EXPECT_THAT(Matches("\\s+(?!\\S)|\\s+", blanks + "x"), ElementsAre(blanks.substr(1), " "));
}

TEST(Pattern, TellsMatchesThatStayWhateverFollows) {
  const Pattern pattern("\\p{L}+|\\p{N}|\\s+(?!\\S)|\\s", "here");
  Pattern::Search search;
  const auto stays = [&](const std::string& text) {
    search.Begin(text);
    return search.First(pattern, text, 0, true).second;
  };
  EXPECT_EQ(stays("ab "), 2U);
  EXPECT_EQ(stays("ab"), 2U) << "no match: the text's size";
  EXPECT_EQ(search.First(pattern, "ab", 0, true).first, 2U);
  EXPECT_EQ(stays("12"), 1U);
  EXPECT_EQ(stays("  x"), 1U);
  EXPECT_TRUE(Pattern("(?<=a)b", "here").LooksBehind());
  EXPECT_TRUE(Pattern("b|^a", "here").LooksBehind());
  EXPECT_FALSE(pattern.LooksBehind());
}

// SentencePiece models: training, ids, pieces, and what is no model.

constexpr std::int64_t kTypes = 273;  // 256 bytes, three control tokens, some pieces

std::vector<std::string> Sentences() {
  std::vector<std::string> sentences;
  for (int i = 0; i < 200; ++i) {
    sentences.push_back(i % 2 == 0 ? "the ship sails north" : "the other ship lies in port");
  }
  return sentences;
}

class SentencePieceModel : public testing::TestWithParam<ModelType> {
 protected:
  std::vector<std::int32_t> Ids(const std::string& text) const {
    std::vector<std::int32_t> ids;
    tokenizer_->Encode(text, ids);
    return ids;
  }
  std::string Pieces(const std::string& text) const {
    std::string pieces;
    for (const std::int32_t id : Ids(text)) pieces += tokenizer_->Piece(id);
    return pieces;
  }

  const Files files_ = TrainSentencePiece(Sentences(), GetParam(), kTypes);
  const std::unique_ptr<Tokenizer> tokenizer_ = Make(files_, "here");
};

TEST_P(SentencePieceModel, EncodesAndDecodes) {
  EXPECT_STREQ(tokenizer_->Kind(), "sentencepiece");
  EXPECT_EQ(tokenizer_->VocabularySize(), kTypes);
  EXPECT_EQ(tokenizer_->Source(), files_);
  for (const std::string text :
       {"the ship", "  two  blanks ", "größer 東京 😀", "a\tb\nc", "12 ships", "x"}) {
    const std::vector<std::int32_t> ids = Ids(text);
    EXPECT_EQ(tokenizer_->Decode(ids), text);
    EXPECT_EQ(Pieces(text), " " + text);  // a blank begins every text
    for (const std::int32_t id : ids) EXPECT_NE(id, tokenizer_->Unk());
  }
  EXPECT_THAT(Ids(""), IsEmpty());
  EXPECT_LT(Ids("the ship sails north").size(), 21U);  // pieces, not letters
}

TEST_P(SentencePieceModel, NamesItsTokens) {
  EXPECT_EQ(tokenizer_->Unk(), 0);
  EXPECT_EQ(tokenizer_->Eos(), 2);
  EXPECT_EQ(tokenizer_->IdOf("</s>"), 2);
  EXPECT_EQ(tokenizer_->IdOf("<unk>"), 0);
  EXPECT_EQ(tokenizer_->IdOf("<|endoftext|>"), std::nullopt);
  EXPECT_EQ(tokenizer_->Piece(2), "</s>");
  EXPECT_EQ(tokenizer_->Piece(*tokenizer_->IdOf("<0xC3>")), "\xC3");
  std::vector<std::int32_t> prefix, suffix;
  tokenizer_->Template(prefix, suffix);
  EXPECT_THAT(prefix, IsEmpty());
  EXPECT_THAT(suffix, IsEmpty());
}

// Before a blank between two words, if the model is BPE.
TEST_P(SentencePieceModel, CutsLongTexts) {
  const std::size_t cut = tokenizer_->SafeCut("the ship  sails x ");
  EXPECT_EQ(cut, GetParam() == ModelType::kBpe ? 15U : 0U);
  EXPECT_EQ(tokenizer_->SafeCut("the\xE2\x96\x81 ship"), 0U);
  EXPECT_EQ(tokenizer_->SafeCut("the"), 0U);
  if (cut == 0) return;
  std::vector<std::int32_t> ids = Ids("the ship  sails");
  tokenizer_->EncodeRest(" x ship", ids);
  EXPECT_EQ(ids, Ids("the ship  sails x ship"));
}

TEST_P(SentencePieceModel, IsTheSameEveryTime) {
  EXPECT_EQ(TrainSentencePiece(Sentences(), GetParam(), kTypes), files_);
}

// The blank that begins every text is 0.025% of these, below the share of characters that become
// pieces.
TEST_P(SentencePieceModel, TakesTextsAlmostWithoutBlanks) {
  std::vector<std::string> sentences;
  std::uint32_t state = 1;
  for (int i = 0; i < 20; ++i) {
    std::string& dna = sentences.emplace_back();
    while (dna.size() < 4000) dna += "ACGT"[(state = state * 1664525 + 1013904223) >> 30];
  }
  const std::unique_ptr<Tokenizer> made =
      Make(TrainSentencePiece(sentences, GetParam(), kTypes), "here");
  for (const std::string text : {"GATTACA", "a b", ""}) {
    std::vector<std::int32_t> ids;
    made->Encode(text, ids);
    EXPECT_EQ(made->Decode(ids), text);
    std::string pieces;
    for (const std::int32_t id : ids) pieces += made->Piece(id);
    EXPECT_EQ(pieces, text.empty() ? "" : " " + text);
  }
}

// To a model U+2581 is a blank: texts that hold it are trained on, though they do not come back.
TEST_P(SentencePieceModel, TakesItsOwnMarkOfABlank) {
  std::vector<std::string> sentences = Sentences();
  sentences.emplace_back("the\xE2\x96\x81ship");
  EXPECT_NO_THROW(TrainSentencePiece(sentences, GetParam(), kTypes));
}

INSTANTIATE_TEST_SUITE_P(Types, SentencePieceModel,
                         testing::Values(ModelType::kBpe, ModelType::kUnigram),
                         [](const auto& info) {
                           return info.param == ModelType::kBpe ? "Bpe" : "Unigram";
                         });

TEST(SentencePieceErrors, WhatIsNoModelIsRefused) {
  const Files good = TrainSentencePiece(Sentences(), ModelType::kBpe, kTypes);
  const std::string& bytes = good.at("tokenizer.model");
  for (const std::string& bad :
       {std::string(), std::string("no model"), std::string(1000, '\xff'), bytes.substr(0, 500)}) {
    try {
      Make({{"tokenizer.model", bad}}, "some.model");
      ADD_FAILURE() << bad.size() << " bytes were taken for a model";
    } catch (const Error& error) {
      EXPECT_EQ(error.Code(), ExitCode::kBadInput);
      EXPECT_THAT(error.what(), HasSubstr("some.model: this is not a SentencePiece model"));
    }
  }
  try {
    Make({{"tokenizer.model", "IQ== 0\nIg== 1\n"}}, "llama3.model");
    ADD_FAILURE() << "tiktoken's file was taken for a model";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("llama3.model: this is a file of tiktoken"));
  }
  EXPECT_THROW(ReadFiles("/nowhere/a.model", TokenizerKind::kSentencePiece), Error);
}

TEST(SentencePieceErrors, ModelsThatCannotBeTrained) {
  EXPECT_THROW(TrainSentencePiece({}, ModelType::kBpe, kTypes), Error);
  for (const std::int64_t types : {10, 100'000}) {
    EXPECT_THROW(TrainSentencePiece(Sentences(), ModelType::kUnigram, types), Error) << types;
  }
}

}  // namespace
}  // namespace trireme::data
