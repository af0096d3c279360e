// Recorder: scopes that nest, the bound, and what a null pointer costs: nothing.
#include "trireme/device/recorder.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace trireme::device {
namespace {

TEST(Recorder, KeepsScopesWithTheirPlace) {
  Recorder recorder(10, {});
  recorder.SetStep(7);
  {
    const Scope outer(&recorder, {.name = SliceName::kStep, .category = SliceCategory::kStep});
    recorder.SetTask(3, 1);
    const Scope inner(&recorder,
                      {.name = SliceName::kLayer, .phase = Phase::kBackward, .layer = 2});
  }
  const auto slices = recorder.Slices();
  ASSERT_EQ(slices.size(), 2u);
  const Slice &inner = slices[0], &outer = slices[1];
  EXPECT_EQ(inner.name, SliceName::kLayer);
  EXPECT_EQ(inner.phase, Phase::kBackward);
  EXPECT_EQ(inner.layer, 2);
  EXPECT_EQ(inner.micro_batch, 3);
  EXPECT_EQ(inner.chunk, 1);
  EXPECT_EQ(inner.step, 7);
  EXPECT_LE(outer.begin, inner.begin);
  EXPECT_LE(inner.begin, inner.end);
  EXPECT_LE(inner.end, outer.end);
}

TEST(Recorder, StopsAtItsBoundAndSaysFromWhichStep) {
  Recorder recorder(3, {});
  for (int step = 1; step <= 5; ++step) {
    recorder.SetStep(step);
    recorder.Add({.end = Seconds()});
  }
  EXPECT_EQ(recorder.Slices().size(), 3u);
  EXPECT_EQ(recorder.LeftOut(), 2);
  EXPECT_EQ(recorder.FirstStepLeftOut(), 4);
}

TEST(Recorder, TakesNothingFromBeforeItsTime) {
  const double before = Seconds();
  Recorder recorder(3, {});
  recorder.Add({.begin = before - 1, .end = Seconds()});
  EXPECT_GE(recorder.Slices().front().begin, before);
}

TEST(Recorder, IsNotNeeded) {
  const Scope scope(nullptr, {.name = SliceName::kUpdate, .queues = true});
}

}  // namespace
}  // namespace trireme::device
