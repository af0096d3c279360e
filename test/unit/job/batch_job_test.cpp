// A batch job's number, restarts and end, as the environment tells.
#include "trireme/app/batch_job.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>

namespace trireme::app::test {
namespace {

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

}  // namespace
}  // namespace trireme::app::test
