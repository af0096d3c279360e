// Units of text: those of the tokens are those of the text that they stand for.
#include "trireme/data/text_units.hpp"

#include <gtest/gtest.h>

#include "word_tokens.hpp"

namespace trireme::data {
namespace {

using test::ByteData;
using test::Self;
using test::WordData;

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
