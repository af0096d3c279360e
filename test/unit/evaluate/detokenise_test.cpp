// WikiText's detokenisation, rule by rule.
#include "trireme/tasks/evaluate.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "trireme/data/text_units.hpp"

namespace trireme::tasks {
namespace {

TEST(Detokenise, FollowsEachRule) {
  const std::pair<const char*, const char*> cases[] = {
      {"a 10 @-@ year @,@ 000 1 @.@ 5", "a 10-year,000 1.5"},
      {"one , two ; three : four . Five ! Six ? x", "one, two; three: four. Five! Six? x"},
      {"the ships ' crew", "the ships' crew"},
      {"Smith 's ship", "Smith's ship"},
      {"( a b ) [ c ] { d }", "(a b) [c] {d}"},
      {"he said \" yes \" and ' no '", "he said \"yes\" and 'no'"},
      {"( never closed \" nor this", "( never closed \" nor this"},
      {" = Title = \n", " = Title =\n"},
      {" \n = = Section = = \n ", "\n== Section ==\n"},
      {"= = = x = = =", "=== x ==="},
      {"12 \xC2\xB0 C",
       "12\xC2\xB0"
       "C"},
      {"about N ships", "about 1 ships"},
      {"", ""},
      {"\"\xC2\xA0 x \xE2\x80\x89\"", "\"x\""},
      {"(   )", "()"},
  };
  for (const auto& [text, wanted] : cases) EXPECT_EQ(DetokeniseWikitext(text), wanted);
}

// As Python's regular expressions of these rules give it.
TEST(Detokenise, GivesTheKnownBytesOfWikiText) {
  const char* const shared = std::getenv("TRIREME_SHARED");
  std::ifstream file(std::string(shared == nullptr ? "" : shared) + "/data/wikitext-2/test.txt",
                     std::ios::binary);
  if (!file) GTEST_SKIP() << "WikiText-2 is not in TRIREME_SHARED: not checked";
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const data::TextUnits units = data::UnitsOf(text);
  EXPECT_EQ(units.words, 241211);
  EXPECT_EQ(units.lines, 4358);
  const std::string result = DetokeniseWikitext(text);
  EXPECT_EQ(result.size(), 1206463U);
  std::uint64_t hash = 0xCBF29CE484222325;  // FNV-1a
  for (const char c : result) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  EXPECT_EQ(hash, 0x4848965000EE78A0U);
}

}  // namespace
}  // namespace trireme::tasks
