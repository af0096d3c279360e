// A batch job: its number, restarts and end, and the bounds of watchdogs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "folders.hpp"
#include "trireme/app/batch_job.hpp"
#include "trireme/app/job.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/json.hpp"

namespace trireme::app::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using trireme::test::WriteBytes;

// A batch job's number, restarts and end, as the environment tells.

class BatchJobTest : public testing::Test {
 protected:
  BatchJobTest() {
    for (const char* name : kNames) ::unsetenv(name);
    ::setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3", 1);
    ::tzset();
  }
  ~BatchJobTest() override {
    for (const char* name : kNames) ::unsetenv(name);
    ::unsetenv("TZ");
    ::tzset();
  }
  static BatchJob With(const char* name, const char* value) {
    ::setenv(name, value, 1);
    const BatchJob job = ReadBatchJob();
    ::unsetenv(name);
    return job;
  }
  static std::optional<double> End(const char* value) {
    const auto end = With("TRIREME_JOB_END_TIME", value).end_unix_seconds;
    EXPECT_EQ(With("SLURM_JOB_END_TIME", value).end_unix_seconds, end) << value;
    return end;
  }
  static constexpr const char* kNames[] = {"SLURM_JOB_ID", "SLURM_CLUSTER_NAME",
                                           "SLURM_RESTART_COUNT", "SLURM_JOB_END_TIME",
                                           "TRIREME_JOB_END_TIME"};
};

TEST_F(BatchJobTest, IsEmptyOutsideOfOne) {
  const BatchJob job = ReadBatchJob();
  EXPECT_EQ(job.id, "");
  EXPECT_EQ(job.cluster, "");
  EXPECT_EQ(job.restarts, 0);
  EXPECT_FALSE(job.end_unix_seconds);
}

TEST_F(BatchJobTest, ReadsSlurmsVariables) {
  EXPECT_EQ(With("SLURM_JOB_ID", "4711").id, "4711");
  EXPECT_EQ(With("SLURM_JOB_ID", "4711; true").id, "");
  EXPECT_EQ(With("SLURM_CLUSTER_NAME", "booster").cluster, "booster");
  EXPECT_EQ(With("SLURM_CLUSTER_NAME", "\x1b[2J").cluster, "");
  EXPECT_EQ(With("SLURM_RESTART_COUNT", "3").restarts, 3);
  EXPECT_EQ(With("SLURM_RESTART_COUNT", "-3").restarts, 0);
  EXPECT_EQ(With("SLURM_RESTART_COUNT", "many").restarts, 0);
}

TEST_F(BatchJobTest, ReadsItsEndInSecondsOrLocalTime) {
  EXPECT_EQ(End("1795356245"), 1795356245.0);
  EXPECT_EQ(End("2026-11-22T15:04:05"), 1795356245.0);  // CET: 14:04:05 UTC
  EXPECT_EQ(End("2026-07-22T15:04:05"), 1784725445.0);  // CEST: 13:04:05 UTC
  EXPECT_EQ(End("2028-02-29T00:00:00"), 1835391600.0);  // 28 February, 23:00:00 UTC
}

TEST_F(BatchJobTest, HasNoEndIfNoneCanBeRead) {
  for (const char* value : {"",
                            "NONE",
                            "N/A",
                            "UNLIMITED",
                            "Unknown",
                            "0",
                            "-5",
                            "1e999",
                            "12x",
                            ".",
                            "nan",
                            "inf",
                            "2026-11-22",
                            "2026-11-22 15:04:05",
                            "2026-13-22T15:04:05",
                            "2026-02-30T15:04:05",
                            "2026-11-22T25:04:05",
                            "2026-11-22T15:04:0x",
                            "2026-11-22T15:04:05Z",
                            "+026-11-22T15:04:05",
                            "2026-00-22T15:04:05",
                            "2026-11-00T15:04:05",
                            "2026-11-22T15:60:05"}) {
    EXPECT_FALSE(End(value)) << value;
  }
}

TEST_F(BatchJobTest, SlurmsOwnEndComesFirst) {
  ::setenv("TRIREME_JOB_END_TIME", "2000000000", 1);
  EXPECT_EQ(With("SLURM_JOB_END_TIME", "1900000000").end_unix_seconds, 1900000000.0);
  EXPECT_EQ(With("SLURM_JOB_END_TIME", "garbage").end_unix_seconds, 2000000000.0);
}

// The count of starts in a row from one step.

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

// The margin before a job's end.

constexpr double kUnixNow = 1795356245;
constexpr double kNow = 5000;  // on the monotonic clock
constexpr double kFactor = Deadline::kSafetyFactor;
constexpr double kFloor = Deadline::kFloorSeconds;

// A job that ends 1,000 seconds after the construction.
Deadline InThousand() { return {kUnixNow + 1000, kUnixNow, kNow}; }

// Stops from `needed` seconds before the end on, not a second earlier.
void ExpectNeeds(const Deadline& deadline, bool validation, double needed) {
  EXPECT_FALSE(deadline.MustStop(kNow + 1000 - needed - 1e-3, validation));
  EXPECT_TRUE(deadline.MustStop(kNow + 1000 - needed + 1e-3, validation));
}

TEST(Deadline, NeverStopsAJobWithoutEnd) {
  Deadline deadline(std::nullopt, kUnixNow, kNow);
  deadline.Step(1e9);
  deadline.Checkpoint(1e9);
  EXPECT_FALSE(deadline.MustStop(1e18, true));
}

TEST(Deadline, LeavesTimeForAStepAndACheckpoint) {
  Deadline deadline = InThousand();
  deadline.Step(4);
  deadline.Checkpoint(100);
  ExpectNeeds(deadline, false, kFactor * 104 + kFloor);
  EXPECT_EQ(deadline.Left(kNow + 1), 999);
}

TEST(Deadline, LeavesTimeForAValidationThatFollows) {
  Deadline deadline = InThousand();
  deadline.Step(4);
  deadline.Checkpoint(100);
  deadline.Validation(50);
  ExpectNeeds(deadline, false, kFactor * 104 + kFloor);
  ExpectNeeds(deadline, true, kFactor * 154 + kFloor);
}

TEST(Deadline, CountsTheLongestSeen) {
  Deadline deadline = InThousand();
  for (const double seconds : {1.0, 8.0, 2.0, -5.0, std::nan("")}) {
    deadline.Step(seconds);
    deadline.Checkpoint(10 * seconds);
    deadline.Validation(20 * seconds);
  }
  ExpectNeeds(deadline, true, kFactor * (8 + 80 + 160) + kFloor);
}

TEST(Deadline, EstimatesHoldUntilTheFirstMeasurement) {
  Deadline deadline = InThousand();
  ExpectNeeds(deadline, false, kFactor * Deadline::kUnknownSeconds + kFloor);
  ExpectNeeds(deadline, true, kFactor * 2 * Deadline::kUnknownSeconds + kFloor);
  deadline.ExpectCheckpoint(200);
  deadline.ExpectValidation(100);
  ExpectNeeds(deadline, false, kFactor * 200 + kFloor);
  ExpectNeeds(deadline, true, kFactor * 300 + kFloor);
  deadline.Checkpoint(30);
  deadline.Validation(10);
  deadline.ExpectCheckpoint(200);
  ExpectNeeds(deadline, true, kFactor * 40 + kFloor);
}

TEST(Deadline, AnEndThatHasPassedStopsAtOnce) {
  const Deadline deadline(kUnixNow - 1, kUnixNow, kNow);
  EXPECT_TRUE(deadline.MustStop(kNow, false));
}

}  // namespace
}  // namespace trireme::app::test

namespace trireme::app {
namespace {

using comm::Phase;

// Bounds of the watchdogs.

class HangBoundTest : public testing::Test {
 protected:
  double Auto(Phase phase) const { return HangBound(phase, 0, longest_); }
  double Stated(Phase phase) const { return HangBound(phase, 2, longest_); }
  Deadline longest_{std::nullopt, 0, 0};
};

TEST_F(HangBoundTest, IsThatOfTheSetUpBeforeTheFirstStep) {
  EXPECT_EQ(Auto(Phase::kSetUp), kSetUpBound);
  EXPECT_EQ(Auto(Phase::kStep), kSetUpBound);
  EXPECT_EQ(Auto(Phase::kValidation), kSetUpBound);
  EXPECT_EQ(Auto(Phase::kCheckpoint), kDiskBound);
}

TEST_F(HangBoundTest, GrowsWithTheLongestStep) {
  longest_.ExpectCheckpoint(1);
  longest_.ExpectValidation(1);
  longest_.Step(1000);  // the first one prepares
  EXPECT_EQ(Auto(Phase::kStep), kSetUpBound);
  EXPECT_EQ(Stated(Phase::kStep), kSetUpBound);
  longest_.Step(0.1);
  EXPECT_EQ(Auto(Phase::kStep), kLeastBound);
  EXPECT_EQ(Auto(Phase::kCheckpoint), kDiskBound);
  longest_.Step(30);
  longest_.Step(1);
  EXPECT_EQ(Auto(Phase::kStep), 600);
  EXPECT_EQ(Auto(Phase::kValidation), 600);
  longest_.Validation(1000);
  EXPECT_EQ(Auto(Phase::kValidation), 3000);
  longest_.Checkpoint(400);
  EXPECT_EQ(Auto(Phase::kCheckpoint), 1200);
  EXPECT_EQ(Auto(Phase::kSetUp), kSetUpBound);
}

TEST_F(HangBoundTest, IsTheStatedOneButForCheckpointsAndSetUp) {
  longest_.ExpectCheckpoint(5);
  longest_.Step(30);
  longest_.Step(30);
  EXPECT_EQ(Stated(Phase::kStep), 2);
  EXPECT_EQ(Stated(Phase::kValidation), 2);
  EXPECT_EQ(Stated(Phase::kCheckpoint), 15);
  EXPECT_EQ(Stated(Phase::kSetUp), kSetUpBound);
  EXPECT_EQ(Stated(Phase::kEnd), kSetUpBound);
  EXPECT_EQ(HangBound(Phase::kSetUp, 7200, longest_), 7200);
}

}  // namespace
}  // namespace trireme::app
