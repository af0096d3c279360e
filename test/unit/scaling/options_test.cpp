// Keys of [scaling], and the messages to those who mistype them.
#include "trireme/tasks/scaling.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace trireme::tasks {
namespace {

using testing::HasSubstr;

class ScalingOptionsTest : public testing::Test {
 protected:
  ScalingOptionsTest() { DeclareScaling(schema_); }
  ScalingOptions Of(const std::vector<std::string>& keys) const {
    return ReadScaling(deck::Deck::Parse(schema_, "", "a.in", keys));
  }
  std::string Refusal(const std::vector<std::string>& keys) const {
    try {
      static_cast<void>(Of(keys));
    } catch (const Error& error) {
      EXPECT_EQ(error.Code(), ExitCode::kBadInput);
      return error.what();
    }
    return "taken";
  }
  deck::Schema schema_;
};

TEST_F(ScalingOptionsTest, HaveDefaults) {
  const ScalingOptions options = Of({});
  EXPECT_TRUE(options.ranks.empty());
  EXPECT_EQ(options.kinds, std::vector{ScalingKind::kStrong});
  EXPECT_EQ(options.base_ranks, 0);
  EXPECT_GE(options.repeats, 2) << "intervals of confidence by default";
}

TEST_F(ScalingOptionsTest, ReadLists) {
  const ScalingOptions options = Of({"scaling.ranks=8, 1,2 ,4", "scaling.kind=weak,strong"});
  EXPECT_EQ(options.ranks, (std::vector{1, 2, 4, 8}));
  EXPECT_EQ(options.kinds, (std::vector{ScalingKind::kWeak, ScalingKind::kStrong}));
}

TEST_F(ScalingOptionsTest, RefuseWhatIsNoCount) {
  for (const char* text : {"0", "-1", "1,x", "2.5", "1,,2", "1,", "99999999999999999999"}) {
    EXPECT_THAT(Refusal({std::string("scaling.ranks=") + text}), HasSubstr("is no number of ranks"))
        << text;
  }
  EXPECT_THAT(Refusal({"scaling.ranks=1,2,1"}), HasSubstr("1 stands there twice"));
}

TEST_F(ScalingOptionsTest, RefuseWhatIsNoKind) {
  EXPECT_THAT(Refusal({"scaling.kind=week"}), HasSubstr("'week' is no kind"));
  EXPECT_THAT(Refusal({"scaling.kind=weak,weak"}), HasSubstr("twice"));
  EXPECT_THAT(Refusal({"scaling.kind="}), HasSubstr("no kind is named"));
  EXPECT_THAT(Refusal({"scaling.rank=2"}), HasSubstr("scaling.ranks"));
}

}  // namespace
}  // namespace trireme::tasks
