// WikiText's detokenisation, rule by rule.
#include "trireme/evaluate/detokenise.hpp"

#include <gtest/gtest.h>

#include <utility>

namespace trireme::evaluate {
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

}  // namespace
}  // namespace trireme::evaluate
