// The count of starts in a row from one step.
#include "trireme/app/batch_job.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "folder_test.hpp"
#include "locked.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/json.hpp"

namespace trireme::app::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using trireme::test::WriteBytes;

class Restarts : public trireme::test::FolderTest {
 protected:
  int Count(std::int64_t step) { return CountStart(folder_, step); }
  std::string file_ = In("restarts.json");
};

TEST_F(Restarts, CountsStartsWithoutProgress) {
  EXPECT_EQ(Count(0), 1);
  EXPECT_EQ(Count(0), 2);
  EXPECT_EQ(Count(0), 3);
  EXPECT_EQ(Count(200), 1);
  EXPECT_EQ(Count(200), 2);
  EXPECT_EQ(Count(100), 1);
  EXPECT_EQ(Count(200), 1);
  EXPECT_EQ(nlohmann::json::parse(std::ifstream(file_)),
            (nlohmann::json{{"step", 200}, {"starts", 1}}));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(Restarts, ADamagedFileCountsAsNone) {
  for (const char* text :
       {"", "garbage", "{}", "[]", "7", R"({"step":5})", R"({"starts":5})",
        R"({"step":"5","starts":1})", R"({"step":5,"starts":-1})", R"({"step":5,"starts":1.5})",
        R"({"step":5,"starts":"1"})", R"({"step":5,"starts":2147483647})",
        R"({"step":5,"starts":18446744073709551615})", R"({"step":5.5,"starts":1})"}) {
    WriteBytes(file_, text);
    EXPECT_EQ(Count(5), 1) << text;
    EXPECT_EQ(Count(5), 2) << text;
  }
  WriteBytes(file_, R"({"step":5,"starts":1})" + std::string(10 << 20, ' '));
  EXPECT_EQ(Count(5), 1);
}

TEST_F(Restarts, TellTheStepOfTheLastStart) {
  ForgetStarts(folder_);
  EXPECT_EQ(LastStart(folder_), 0);
  Count(200);
  EXPECT_EQ(LastStart(folder_), 200);
  ForgetStarts(folder_);
  EXPECT_EQ(LastStart(folder_), 0);
  EXPECT_EQ(Count(200), 1);
  WriteBytes(file_, "garbage");
  EXPECT_EQ(LastStart(folder_), 0);
}

TEST_F(Restarts, ReplacesLinksInsteadOfFollowingThem) {
  const std::string victim = In("victim");
  WriteBytes(victim, R"({"step":5,"starts":1})");
  fs::create_symlink("victim", file_);
  fs::create_symlink("victim", file_ + ".tmp");  // a leftover
  EXPECT_EQ(Count(5), 1);
  EXPECT_EQ(Count(5), 2);
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(file_)));
  EXPECT_EQ(nlohmann::json::parse(std::ifstream(victim))["starts"], 1);
}

TEST_F(Restarts, SaysWhyTheNoteCannotBeWritten) {
  Count(5);
  const Locked closed(folder_, 0555);
  ASSERT_TRUE(closed.Good());
  try {
    Count(5);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kFailed);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("restarts.json.tmp"), HasSubstr("Permission denied"),
                                    HasSubstr("job.output")));
  }
}

}  // namespace
}  // namespace trireme::app::test
