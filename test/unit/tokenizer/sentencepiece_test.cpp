// SentencePiece models: training, ids, pieces, and what is no model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.hpp"
#include "trireme/data/tokenizer.hpp"

namespace trireme::data {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

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
