// Bounds of the watchdogs.
#include "trireme/app/job.hpp"

#include <gtest/gtest.h>

namespace trireme::app {
namespace {

using comm::Phase;

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
