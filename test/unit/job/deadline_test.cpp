// The margin before a job's end.
#include "trireme/app/batch_job.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace trireme::app::test {
namespace {

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
