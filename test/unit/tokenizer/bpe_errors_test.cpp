// Byte-level BPE: components that are not supported or broken are refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <tuple>
#include <vector>

#include "small_bpe.hpp"

namespace trireme::data {
namespace {

using testing::HasSubstr;

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

using nlohmann::json;

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
        Case{"three", [](json& j) { j["model"]["merges"] = {"a b c"}; }, "no merge of two symbols"},
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
      {"a.model", TokenizerKind::kBpe, "is no tokenizer.json\n  tokenize.kind = sentencepiece"},
      {"tokenizer.json", TokenizerKind::kSentencePiece,
       "is no SentencePiece model\n  tokenize.kind = bpe"}};
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

}  // namespace
}  // namespace trireme::data
